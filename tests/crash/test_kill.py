"""kill -9 at every named fault point and at random moments; then the store must be whole.

Whole means: it opens, verifies, holds every acknowledged commit, and the files are those of before
or after the verb, never something between.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fixtures import forked

import ortet

SOAK = int(os.environ.get("ORTET_SOAK", "1"))
HERE = Path(__file__).parent


def prepare(base: Path, engine: str) -> None:
    """A workspace with two commits and something uncommitted."""
    work = base / "work"
    (work / "dir").mkdir(parents=True)
    (work / "a").write_bytes(b"a" * 200_000)
    (work / "dir/b").write_text("b")
    (work / "gone").write_text("only in the first commit")
    with ortet.open(base / "store") as hub, hub.workspace(work, engine=engine) as ws:
        ws.commit("first")
        (ws.path / "gone").unlink()
        (ws.path / "dir/b").write_text("second")
        os.link(ws.path / "a", ws.path / "a2")
        ws.commit("second")
        (ws.path / "dir/c").write_text("not committed")


def run_worker(
    base: Path, scenario: str, engine: str, fault: str, *, tell: bool = False
) -> tuple[int, list[str]]:
    start = subprocess.run if tell else forked.run  # it must be told before anything is imported
    worker = start(
        [sys.executable, str(HERE / "worker.py"), scenario, str(base), engine],
        env={**os.environ, "ORTET_FAULT": fault, **({"ORTET_TELL_POINTS": "1"} if tell else {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert worker.returncode in (0, -signal.SIGKILL), worker.stderr
    return worker.returncode, worker.stdout.splitlines()


def print_of(root: Path) -> dict[str, str]:
    found = {}
    for path in sorted(root.rglob("*")):
        kind = "dir" if path.is_dir() else hashlib.sha256(path.read_bytes()).hexdigest()
        found[str(path.relative_to(root))] = kind
    return found


def check_whole(base: Path, engine: str, said: list[str]) -> dict[str, str]:
    with ortet.open(base / "store") as hub:
        hub.verify()
        for line in said:
            if line.startswith("commit "):
                assert hub.show(line.split()[1]).oid == line.split()[1]
        with hub.workspace(base / "work", engine=engine) as ws:
            files = print_of(ws.path)
            ws.commit("after the crash")
            hub.verify()
        hub.sweep()
        hub.verify()
        if not (base / "elsewhere").exists():  # doing it again clears what was left half-way
            hub.restore(hub.log(ws.name)[-1].oid, to=base / "elsewhere")
    leftovers = [path.name for path in base.iterdir() if path.name.startswith(".ortet.stage")]
    assert leftovers == []
    return files


def legal_files(tmp: Path, scenario: str, engine: str) -> list[dict[str, str]]:
    """The files before the scenario and after it, without any fault."""
    base = tmp / "legal"
    prepare(base, engine)
    with ortet.open(base / "store") as hub, hub.workspace(base / "work", engine=engine) as ws:
        before = print_of(ws.path)
    run_worker(base, scenario, engine, "")
    with ortet.open(base / "store") as hub, hub.workspace(base / "work", engine=engine) as ws:
        # The scenario writes one file by itself, before it restores.
        edited = {**before, "uncommitted": hashlib.sha256(b"must survive").hexdigest()}
        return [before, edited, print_of(ws.path)]


def points_of(tmp: Path, scenario: str, engine: str) -> list[str]:
    """The fault points a scenario passes."""
    base = tmp / f"points-{scenario}"
    prepare(base, engine)
    _, said = run_worker(base, scenario, engine, "", tell=True)
    return list(dict.fromkeys(line.split()[1] for line in said if line.startswith("point ")))


@pytest.mark.parametrize("engine", ["folder", "overlay"])
def test_restore_killed_at_any_point_leaves_old_or_new_files(engine: str, tmp_path: Path) -> None:
    legal = legal_files(tmp_path, "restore", engine)
    points = points_of(tmp_path, "restore", engine)
    assert len(points) >= 5
    for number, point in enumerate(points):
        base = tmp_path / str(number)
        prepare(base, engine)
        code, said = run_worker(base, "restore", engine, f"{point}:kill")
        assert code == -signal.SIGKILL
        assert check_whole(base, engine, said) in legal, point


@pytest.mark.parametrize("engine", ["folder", "overlay"])
@pytest.mark.parametrize("scenario", ["commit", "fork", "elsewhere", "sweep"])
def test_a_kill_at_any_point_leaves_a_whole_store(
    scenario: str, engine: str, tmp_path: Path
) -> None:
    points = points_of(tmp_path, scenario, engine)
    assert [point for point in points if point.startswith(("commit.", "build."))]
    for number, point in enumerate(points):
        base = tmp_path / str(number)
        prepare(base, engine)
        code, said = run_worker(base, scenario, engine, f"{point}:kill")
        assert code == -signal.SIGKILL
        check_whole(base, engine, said)


@pytest.mark.soak
@pytest.mark.parametrize("engine", ["folder", "overlay"])
def test_random_kills_lose_no_acknowledged_commit(engine: str, tmp_path: Path) -> None:
    prepare(tmp_path, engine)
    dice = random.Random(7)
    for _ in range(15 * SOAK):
        with forked.Popen(
            [sys.executable, str(HERE / "worker.py"), "grow", str(tmp_path), engine],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        ) as worker:
            assert worker.stdout is not None
            said = []
            for _ in range(dice.randrange(1, 40)):
                said.append(worker.stdout.readline().strip())
            try:  # somewhere inside the next verb
                worker.wait(dice.random() * 0.02)
            except subprocess.TimeoutExpired:
                worker.kill()
            said += worker.stdout.read().splitlines()
        with ortet.open(tmp_path / "store") as hub:
            hub.verify()
            for line in said:
                if line.startswith("commit "):
                    assert hub.show(line.split()[1]).oid == line.split()[1]
