"""The main job, shown: commit, break things, go back, fork attempts, land the best, prove it; and
the same with what runs, where the host can."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import ortet

T = TypeVar("T")
COLOUR = sys.stdout.isatty() and "NO_COLOR" not in os.environ

SHOP = """\
def total(prices):
    result = 0
    for price in prices[:-1]:
        result += price
    return result
"""
FSUM = """\
import math


def total(prices):
    return math.fsum(prices)
"""
CHECK = """\
from shop import total
cases = [([1, 2, 3], 6), ([], 0), ([5], 5), ([0.1] * 10, 1.0)]
print(sum(total(prices) == wanted for prices, wanted in cases))
"""
ATTEMPTS = {
    "loop to the end": "sed -i 's/prices\\[:-1\\]/prices/' shop.py",
    "skip the first": "sed -i 's/prices\\[:-1\\]/prices[1:]/' shop.py",
    "use math.fsum()": f"cat > shop.py <<'END'\n{FSUM}END\n",
}


def paint(code: str, text: str) -> str:
    return f"\033[{code}m{text}\033[0m" if COLOUR else text


def title(text: str) -> None:
    print("\n" + paint("1;36", f"== {text}"))


def say(text: str) -> None:
    print(f"   {text}")


def timed(label: str, deed: Callable[[], T]) -> T:
    begin = time.perf_counter()
    result = deed()
    took = (time.perf_counter() - begin) * 1000
    say(f"{label:<58}{paint('32', f'{took:9.2f} ms')}")
    return result


def command(place: Path, *words: str) -> None:
    """One `ortet` command, as a user would type it."""
    print("   " + paint("33", "$ " + " ".join(words)))
    program = str(Path(sys.executable).with_name("ortet"))
    done = subprocess.run(
        [program, *words[1:]], cwd=place, capture_output=True, text=True, check=False
    )
    for line in (done.stdout + done.stderr).rstrip().splitlines():
        print(f"     {line}")
    if done.returncode:
        raise SystemExit(f"`{' '.join(words)}` exited with {done.returncode}")


def make_project(project: Path) -> None:
    """A small program beside 2 000 files that nobody wants to scan at every step."""
    project.mkdir()
    (project / "shop.py").write_text(SHOP)
    (project / "check.py").write_text(CHECK)
    for package in range(40):
        folder = project / "node_modules" / f"package-{package}"
        folder.mkdir(parents=True)
        for number in range(50):
            (folder / f"file-{number}.js").write_text(f"export default {package * number}\n" * 20)
    (project / "run.sh").write_text("#!/bin/sh\npython3 check.py\n")
    (project / "run.sh").chmod(0o750)
    (project / "latest").symlink_to("shop.py")


def fingerprint(root: Path) -> str:
    """Names, modes, times, link targets and contents of everything below `root`, but no .ortet."""
    digest = hashlib.sha256()
    for path in [root, *sorted(root.rglob("*"))]:
        if path.name == ".ortet" or "__pycache__" in path.parts:
            continue
        stat = path.lstat()
        digest.update(f"{path.relative_to(root)} {stat.st_mode:o} {stat.st_mtime_ns}\n".encode())
        if path.is_symlink():
            digest.update(os.readlink(path).encode())
        elif path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()


def commit_and_break(ws: ortet.Workspace, project: Path) -> str:
    title("Commit the project, and again after each step")
    first = timed("first commit, 2 004 files", lambda: ws.commit("as it was"))
    say(f"commit {first.oid[:12]}   state {first.state[:12]}")
    before = fingerprint(project)
    ws.run("echo '# checked by hand' >> shop.py")
    timed("one file changed by a shell command", lambda: ws.commit("a comment"))
    ws.run("rm -rf node_modules/package-1* && mv check.py test.py && chmod 600 run.sh")
    timed("a careless step: 12 directories gone, one file renamed", lambda: ws.commit("oops"))
    changes = ws.diff(first.oid)
    kinds = sorted({change.kind for change in changes})
    say(f"{len(changes)} differences from the first commit: {', '.join(kinds)}")
    timed("restore the first commit", lambda: ws.restore(first.oid))
    if fingerprint(project) != before:
        raise SystemExit("the restored files differ")
    say("every byte, mode and time is as it was")
    return first.oid


def fork_and_land(ws: ortet.Workspace, project: Path) -> None:
    title("Fork three attempts, score them, land the best")
    forks = timed("fork(3), which writes their shared base once", lambda: ws.fork(len(ATTEMPTS)))
    scores = {}
    for fork, (idea, edit) in zip(forks, ATTEMPTS.items(), strict=True):
        fork.run(edit)
        result = fork.run(["python3", "-B", "check.py"])
        scores[fork.name] = int(result.stdout or 0)
        label = f"{fork.name}: {idea}, {scores[fork.name]} of 4 checks pass, commit"
        timed(label, partial(fork.commit, idea))
    say(f"the project itself is untouched: {(project / 'shop.py').read_text() == SHOP}")
    best = max(forks, key=lambda fork: scores[fork.name])
    timed(f"land {best.name}", best.land)
    timed("fork(3) again", lambda: ws.fork(3))
    say("project/shop.py is now:")
    for line in (project / "shop.py").read_text().splitlines():
        print("     " + paint("35", line))


def prove(hub: ortet.Hub, project: Path, first: str, place: Path) -> None:
    title("Restore into a new directory, compare, verify")
    copy = place / "copy"
    with hub.workspace(project) as ws:
        head = ws.commit("the end")
        timed("restore everything to a new directory", lambda: hub.restore(head.oid, to=copy))
        if fingerprint(copy) != fingerprint(project):
            raise SystemExit("the copy differs from the project")
        say("the copy equals the project: names, modes, times, links and contents")
    with hub.workspace(copy) as again:
        same = again.commit("the same state, elsewhere").state == head.state
    say(f"committed from there it has the same state: {same}")
    timed("verify every hash and reference", hub.verify)
    command(project, "ortet", "init")
    command(project, "ortet", "log")
    command(project, "ortet", "diff", first[:12], "HEAD")
    command(project, "ortet", "verify")


COUNTER = """\
import sys
warm = {n: n * n for n in range(100_000)}
count = 0
for line in sys.stdin:
    count += 1
    print(f"asked {count} times, {len(warm):_} values in memory", flush=True)
"""


def ask(session: ortet.Session) -> str:
    """What the program that runs in a machine says next."""
    job = session.programs.job("counter")
    at = job.read().cursor
    job.write(b"\n")
    said = b""
    while not said.endswith(b"\n"):
        piece = job.read(at, 10)
        said, at = said + piece.data, piece.cursor
    return said.decode().strip()


def go_on(hub: ortet.Hub, place: Path) -> None:
    title("Commit what runs, fork it, bring it back")
    live = place / "live"
    live.mkdir()
    (live / "counter.py").write_text(COUNTER)
    try:
        s = hub.session("live", workspace=live, engine="criu")
    except ortet.Unsupported as error:
        say(f"not on this host: {error}")
        return
    s.spawn("counter", ["python3", "counter.py"], stdin=True)
    s.shell("main", command=["bash", "--norc", "-i"]).write(b"echo typed, not sent")
    say(f"a program in the machine: {ask(s)}")
    c = timed("commit it, with memory and a half-typed line", lambda: s.commit("it runs"))
    copies = timed("fork(3)", lambda: s.fork(3))
    for copy in copies[:2]:
        ask(copy)
    for copy in copies:
        say(f"{copy.name}: {ask(copy)}")
    s.programs.job("counter").kill()
    s.run("rm counter.py")
    timed("killed and deleted; restore", lambda: s.restore(c.oid))
    say(f"it goes on: {ask(s)}")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="ortet-demo-") as name:
        place = Path(name)
        os.environ["ORTET_URL"] = str(place / "store")
        project = place / "project"
        make_project(project)
        print(f"Ortet {ortet.__version__}, in {place} (removed at the end)")
        with ortet.open() as hub:
            with hub.workspace(project) as ws:
                first = commit_and_break(ws, project)
                fork_and_land(ws, project)
            prove(hub, project, first, place)
            go_on(hub, place)
    print("\n" + paint("1;32", "done"))


if __name__ == "__main__":
    main()
