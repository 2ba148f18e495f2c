"""Every code block of README.md and docs/guide is executed, in order, in a fresh place."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
from tests.fixtures import forked, postgres, ray, s3, services, valkey

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "guide").glob("*.md"))]
NEEDS = {
    "live.md": ("root", "criu"),
    "scale-out.md": ("postgres", "s3", "valkey", "slow"),
    "ray.md": ("ray", "slow"),
    "swarms.md": ("slow",),
    "cli.md": ("slow",),
}
"""Page -> the markers of what its blocks need; all of them need an installed `ortet`."""
NOT_EXECUTED = {"text", "toml"}
FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)
MARK = "<<step %d ended with %d>>"


class Block(NamedTuple):
    language: str
    code: str
    line: int


class Step(NamedTuple):
    command: str
    expected: str


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(found[1].strip(), found[2], text.count("\n", 0, found.start(2)) + 1)
        for found in FENCE.finditer(text)
    ]


def steps_of(code: str) -> list[Step]:
    """`$ ` starts a command, `> ` continues it, everything else is its output."""
    steps: list[Step] = []
    for line in code.splitlines():
        if line.startswith("$ "):
            steps.append(Step(line[2:], ""))
        elif line.startswith("> "):
            steps[-1] = steps[-1]._replace(command=f"{steps[-1].command}\n{line[2:]}")
        else:
            steps[-1] = steps[-1]._replace(expected=f"{steps[-1].expected}{line}\n")
    return steps


def matches(expected: str, actual: str) -> bool:
    """`...` stands for any text, a line with nothing else for any number of lines."""
    pattern = re.escape(expected.strip()).replace(re.escape("..."), ".*")
    pattern = pattern.replace(".*\\\n", "(?:.*\n)?").replace("\\\n.*", "(?:\n.*)?")
    return re.fullmatch(pattern, actual.strip(), re.DOTALL) is not None


class Shell:
    """Runs console blocks; directory and variables carry over from one to the next."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._kept = place.parent / "shell-state"

    def run(self, steps: list[Step]) -> list[tuple[int, str]]:
        script = ["set -a"]
        if self._kept.exists():
            script += [f". '{self._kept}'", 'cd "$PWD"']
        for number, step in enumerate(steps):
            script += [step.command, f"printf '{MARK}\\n' {number} $?".replace("%d", "%s")]
        script.append(f"export -p > '{self._kept}'")
        done = subprocess.run(
            ["sh", "-c", "\n".join(script)],
            cwd=self._place,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        outputs = re.split(r"<<step \d+ ended with (\d+)>>\n", done.stdout)
        return [(int(code), text) for text, code in zip(outputs[::2], outputs[1::2], strict=False)]


def check_console(shell: Shell, block: Block, where: str) -> None:
    steps = steps_of(block.code)
    results = shell.run(steps)
    assert len(results) == len(steps), f"{where}: the shell stopped after {len(results)} commands"
    for step, (code, output) in zip(steps, results, strict=True):
        assert code == 0, f"{where}: `{step.command}` exited with {code}:\n{output}"
        assert matches(step.expected, output), (
            f"{where}: `{step.command}` printed\n{output}\nand not\n{step.expected}"
        )


def execute(page: Path, place: Path) -> None:
    shell = Shell(place)
    names: dict[str, Any] = {"__name__": "__docs__"}
    for block in blocks_of(page):
        where = f"{page.relative_to(ROOT)}:{block.line}"
        if block.language == "python":
            # Blank lines in front make a traceback point into the page.
            code = compile("\n" * (block.line - 1) + block.code, str(page), "exec")
            exec(code, names)
        elif block.language == "console":
            check_console(shell, block, where)
        elif block.language == "bash":
            check_console(shell, Block("console", f"$ {block.code}", block.line), where)
        else:
            assert block.language in NOT_EXECUTED, (
                f"{where}: no way to execute a block of {block.language!r}; "
                f"use python, console or bash, or {sorted(NOT_EXECUTED)} for what is only shown"
            )


@pytest.fixture
def servers(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, str]]:
    """What a page of many hosts finds in its environment: real servers of its own."""
    if "ray" in NEEDS.get(page.name, ()):
        yield {"RAY_ADDRESS": ray.shared().address}
        return
    if "postgres" not in NEEDS.get(page.name, ()):
        yield {}
        return
    s3.set_environ(monkeypatch)
    database = postgres.shared()
    names = [postgres.new_schema() for _ in range(2)]
    with ExitStack() as last:
        admin = last.enter_context(psycopg.connect(database.url(), autocommit=True))
        for name in names:
            admin.execute(f"CREATE DATABASE {name}")
            last.callback(admin.execute, f"DROP DATABASE {name} WITH (FORCE)")
        endpoint = services.address("s3")
        s3.make_bucket(endpoint, "team")
        signal = last.enter_context(valkey.valkey_server())
        yield {
            "DATABASE": database.url(names[0]),
            "RESTORED": database.url(names[1]),
            "BUCKET": f"s3://team/ortet?endpoint={endpoint}",
            "ENDPOINT": endpoint,
            "SIGNAL": signal.url,
            "PATH": f"{postgres.programs()}:{os.environ['PATH']}",
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
        }


def marked(page: Path) -> Any:
    """A page with the markers of what its blocks need."""
    needs = NEEDS.get(page.name, ())
    return pytest.param(page, marks=[getattr(pytest.mark, need) for need in needs], id=page.name)


@pytest.mark.parametrize("page", [marked(page) for page in PAGES])
@pytest.mark.slow
def test_the_code_blocks_of_every_page_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, servers: dict[str, str]
) -> None:
    home, place = tmp_path / "home", tmp_path / "place"
    home.mkdir()
    place.mkdir()
    for name, value in servers.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "config"))
    programs = [str(Path(sys.executable).parent), os.environ["PATH"]]
    if page.name != "README.md":  # which is tried with `ortet` as it is installed
        (tmp_path / "bin").mkdir()
        forked.script(tmp_path / "bin/ortet")
        programs.insert(0, str(tmp_path / "bin"))
    monkeypatch.setenv("PATH", ":".join(programs))
    monkeypatch.delenv("ORTET_URL", raising=False)
    monkeypatch.setenv("ORTET_AGENT", "off")  # a page that shows it starts it itself
    monkeypatch.chdir(place)
    execute(page, place)


def test_readme_shows_both_ways_in() -> None:
    languages = {block.language for block in blocks_of(ROOT / "README.md")}
    assert {"python", "console"} <= languages


def test_every_relative_link_leads_to_an_existing_file() -> None:
    for page in [*PAGES, *sorted(ROOT.glob("docs/**/*.md")), ROOT / "ARCHITECTURE.md"]:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            assert "://" in target or (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize(
    ("expected", "actual", "verdict"),
    [
        ("one\n", "one\n", True),
        ("one\n", "two\n", False),
        ("...\n", "", True),
        ("...\n", "many\nlines\n", True),
        ("...\nlast\n", "last\n", True),
        ("...\nlast\n", "first\nlast\n", True),
        ("...\nlast\n", "first\n", False),
        ("first\n...\n", "first\n", True),
        ("a ... c\n", "a b c\n", True),
        ("a.c\n", "abc\n", False),
        ("", "noise\n", False),
    ],
)
def test_ellipsis_in_expected_output_matches_any_text(
    expected: str, actual: str, verdict: bool
) -> None:
    assert matches(expected, actual) is verdict


def test_a_failing_console_block_fails(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    shell = Shell(place)
    check_console(shell, Block("console", "$ mkdir in && cd in\n$ x=5\n", 1), "here")
    check_console(shell, Block("console", "$ basename $PWD; echo $x\nin\n5\n", 1), "here")
    with pytest.raises(AssertionError, match="exited with 3"):
        check_console(shell, Block("console", "$ (exit 3)\n", 1), "here")
    with pytest.raises(AssertionError, match="and not"):
        check_console(shell, Block("console", "$ echo yes\nno\n", 1), "here")
