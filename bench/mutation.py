"""Measure how many small changes of the source the tests notice: a mutation score per module.

Cosmic Ray makes the mutants. This program runs the tests of a module against each of them, in a
copy of the tree, and prints a Markdown table. A mutant that no test notices is printed as a diff.

The program imports what the tests need once and forks a process for each mutant. It is started by
scripts/mutation.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import gc
import importlib
import importlib.util
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from cosmic_ray.ast import ast_nodes, get_ast  # type: ignore[import-not-found]
from cosmic_ray.mutating import mutate_code  # type: ignore[import-not-found]
from cosmic_ray.plugins import get_operator, operator_names  # type: ignore[import-not-found]

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = 80
SEED = 0
MEMORY = 4 << 30
"""Bytes for one run: a mutant may fill a list for ever."""
WARM = ("apsw", "blake3", "click", "cryptography.hazmat.primitives.ciphers.aead", "hypothesis")
EQUIVALENT = ("Is_Eq", "IsNot_NotEq", "Eq_Is", "NotEq_IsNot")
"""Operators that swap equality and identity: with None and interned text they change nothing."""


LEFT_ALONE = ("os.kill(", "if TYPE_CHECKING", "@overload")
"""Lines without mutants. One of os.kill could end a process that the tests have not started; the
others are for type checkers only."""


class Subject(NamedTuple):
    """A module, the tests that should notice its mutants, and its functions, if not all."""

    area: str
    path: str
    tests: str
    functions: str = ""


SUBJECTS = [
    Subject("errors", "errors.py", "test_errors.py"),
    Subject(
        "budget",
        "sessions/actions/budget_math.py",
        "sessions/actions/test_budget_math.py sessions/actions/test_budget.py",
    ),
    Subject("budget", "sessions/actions/budget.py", "sessions/actions/test_budget.py"),
    Subject("budget", "sessions/actions/bill.py", "sessions/actions/test_budget.py"),
    Subject("leases", "store/lease.py", "store/test_lease.py sessions/test_session.py"),
    Subject(
        "leases",
        "backends/sqlite/catalog.py",
        "conformance/test_catalog.py",
        "acquire extend release seize lease move",
    ),
    Subject(
        "leases",
        "backends/sqlite/rows.py",
        "conformance/test_catalog.py",
        "claim_lease check_lease find_lease expiry",
    ),
    Subject("merge", "history/merge/tree_merge.py", "history/merge/test_tree_merge.py"),
    Subject(
        "merge",
        "history/merge/text_merge.py",
        "history/merge/test_text_merge.py history/merge/test_tree_merge.py",
    ),
    Subject(
        "merge",
        "journal/state/merge.py",
        "journal/state/test_merge.py sessions/history/test_merge.py",
    ),
    Subject(
        "effects",
        "sessions/actions/effects.py",
        "sessions/actions/test_effects.py sessions/test_intents.py sessions/test_session.py "
        "sessions/history/test_replay.py sessions/test_odd_values.py workspaces/test_undo.py "
        "sessions/writing/test_inbox.py",
    ),
    Subject(
        "effects",
        "sessions/actions/actions.py",
        "sessions/actions/test_actions.py sessions/test_session.py sessions/history/test_replay.py "
        "sessions/test_odd_values.py",
    ),
]


class Mutant(NamedTuple):
    line: int
    operator: str
    source: str


class Runner:
    """Runs tests in a copy of the tree; each run is a forked process with a time limit."""

    def __init__(self, copy: Path) -> None:
        self.copy = copy
        self._cache = copy / "bytecode"
        self._log = copy / "log"
        for name in WARM:
            importlib.import_module(name)
        self._pytest = importlib.import_module("pytest")
        gc.freeze()

    def run(self, tests: Sequence[str], seconds: float, *, first: bool = False) -> int | None:
        """Return the exit code of pytest; None when it took longer than `seconds`.

        Only the first run writes bytecode: of the sources as they are.
        """
        pid = os.fork()
        if not pid:
            self._in_child(tests, first)
        try:
            return _wait(pid, time.monotonic() + seconds)
        finally:
            _end_group(pid)
            shutil.rmtree(self.copy / "temporary", ignore_errors=True)

    def forget(self, path: Path) -> None:
        """Remove the bytecode of a source: a mutant may have the time and size of the original."""
        for prefix in (str(self._cache), None):
            sys.pycache_prefix = prefix
            Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)

    def said(self) -> str:
        """What the last run printed."""
        return self._log.read_text(errors="replace")

    def _in_child(self, tests: Sequence[str], first: bool) -> None:
        code = 3
        try:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            os.chdir(self.copy)
            log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            null = os.open(os.devnull, os.O_RDONLY)
            for old, new in ((null, 0), (log, 1), (log, 2)):
                os.dup2(old, new)
            sys.path[:0] = [str(self.copy), str(self.copy / "src")]
            sys.pycache_prefix = str(self._cache)
            sys.dont_write_bytecode = not first
            os.environ["PYTHONPATH"] = f"{self.copy / 'src'}:{self.copy}"
            os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
            os.environ["PYTHONDONTWRITEBYTECODE"] = "" if first else "1"
            options = ["-x", "-q", "--quick", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
            options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of what is warm
            options += ["--basetemp", str(self.copy / "temporary")]
            code = int(self._pytest.main([*options, *tests]))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def _wait(pid: int, deadline: float) -> int | None:
    pause = 0.005
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return None
        time.sleep(pause)


def _end_group(pid: int) -> None:
    """Kill what a run has left behind: every process of the group that it made."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def mutants(source: str, functions: Sequence[str]) -> list[list[Mutant]]:
    """All mutants, in one list for each place and sort of operator.

    Annotations are left out: nothing evaluates them. Of equal mutants one is kept.
    """
    tree, syntax, lines = get_ast(source), ast.parse(source), source.splitlines()
    skipped = list(_annotations(syntax))
    wanted = [
        (node.lineno, node.end_lineno or 0)
        for node in ast.walk(syntax)
        if isinstance(node, ast.FunctionDef) and node.name in functions
    ]
    places: dict[tuple[str, tuple[int, int]], list[Mutant]] = defaultdict(list)
    seen = {source}
    for name in operator_names():
        kind = get_operator(name)
        if kind.arguments() or name.endswith(EQUIVALENT):
            continue
        short = name.partition("/")[2]
        found = [start for node in ast_nodes(tree) for start, _ in kind().mutation_positions(node)]
        for number, start in enumerate(found):
            if any(a <= start < b for a, b in skipped):
                continue
            line = lines[start[0] - 1]
            if any(word in line for word in LEFT_ALONE) or line[start[1] :].startswith("*,"):
                continue  # the latter is no operator: arguments behind it have to be named
            if functions and not any(a <= start[0] <= b for a, b in wanted):
                continue
            made = mutate_code(source, kind(), number)
            if made is not None and made not in seen:
                seen.add(made)
                places[short.partition("_")[0], start].append(Mutant(start[0], short, made))
    return list(places.values())


def _annotations(tree: ast.Module) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    for node in ast.walk(tree):
        for name in ("annotation", "returns"):
            if (at := getattr(node, name, None)) is not None:
                yield (at.lineno, at.col_offset), (at.end_lineno, at.end_col_offset)


def sample(places: list[list[Mutant]], most: int) -> list[Mutant]:
    """At most `most` mutants: one of each place in random order, then a second of each, and so on.

    The seed is fixed: two runs over the same source take the same mutants.
    """
    chance = random.Random(SEED)
    places = [chance.sample(place, len(place)) for place in places]
    chance.shuffle(places)
    deepest = max(map(len, places), default=0)
    ordered = [place[depth] for depth in range(deepest) for place in places if depth < len(place)]
    return ordered[:most]


def measure(runner: Runner, subject: Subject, most: int) -> list[str]:
    """Run the mutants of one module; return its row of the table."""
    path = runner.copy / "src" / "ortet" / subject.path
    source = path.read_text()
    tests = [f"tests/{name}" for name in subject.tests.split()]
    began = time.monotonic()
    if runner.run(tests, 120, first=True) != 0:
        raise SystemExit(f"the tests of {subject.path} fail without a mutant:\n{runner.said()}")
    limit = 10 + 5 * (time.monotonic() - began)
    places = mutants(source, subject.functions.split())
    chosen = sample(places, most)
    count: Counter[str] = Counter()
    try:
        for one in sorted(chosen):
            path.write_text(one.source)
            runner.forget(path)
            code = runner.run(tests, limit)
            verdict = "timed out" if code is None else "killed" if code else "survived"
            count[verdict] += 1
            if verdict != "killed":
                tell(f"{verdict}: {subject.path}:{one.line} {one.operator}\n{_diff(source, one)}")
    finally:
        path.write_text(source)
        runner.forget(path)
    every = sum(map(len, places))
    tell(f"{subject.path}: {dict(count)} in {time.monotonic() - began:.0f} s")
    return row(subject, every, count)


def row(subject: Subject, every: int, count: Mapping[str, int]) -> list[str]:
    ran = sum(count.values())
    name = f"`{subject.path}`" + (" (leases)" if subject.functions else "")
    shown = str(ran) if ran == every else f"{ran} of {every}"
    score = (count.get("killed", 0) + count.get("timed out", 0)) / ran
    counts = [str(count.get(verdict, 0)) for verdict in ("killed", "survived", "timed out")]
    return [subject.area, name, shown, *counts, f"{100 * score:.0f} %"]


def _diff(source: str, mutant: Mutant) -> str:
    lines = difflib.unified_diff(source.splitlines(), mutant.source.splitlines(), n=0, lineterm="")
    return "\n".join(f"    {line}" for line in list(lines)[3:])


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def table(rows: Sequence[Sequence[str]]) -> str:
    head = ["area", "module", "mutants", "killed", "survived", "timed out", "score"]
    lines = [head, ["---"] * 2 + ["---:"] * 5, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/mutation", description=__doc__)
    names = {Path(subject.path).stem: subject for subject in SUBJECTS}
    parser.add_argument("module", nargs="*", help=f"which of: {', '.join(names)}")
    parser.add_argument(
        "--sample", type=int, default=SAMPLE, metavar="N", help="at most so many a module"
    )
    given = parser.parse_args()
    if wrong := set(given.module) - set(names):
        parser.error(f"unknown: {', '.join(sorted(wrong))}; give some of: {', '.join(names)}")
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else None) as place:
        copy = Path(place)
        listed = ["git", "-c", "safe.directory=*", "ls-files", "-z", "-co", "--exclude-standard"]
        files = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for name in filter(None, files.split("\0")):
            if (ROOT / name).is_file() and name.startswith(("src/", "tests/", "pyproject")):
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, copy / name)
        runner = Runner(copy)
        chosen = given.module or names
        print(table([measure(runner, names[name], given.sample) for name in chosen]))


if __name__ == "__main__":
    main()
