"""kill -9 and full disks at each fault point of the store; then it opens, verifies, and goes on."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fixtures import forked
from tests.fixtures.prepared import copy_tree

import ortet.objects
from ortet.ids import from_hex
from ortet.objects.base import Kind, ObjectRef, ReferenceParser
from ortet.objects.gc.sweep import sweep
from ortet.objects.gc.verify import verify
from ortet.objects.store import PackedObjectStore

SOAK = int(os.environ.get("ORTET_SOAK", "1"))
WORKER = Path(__file__).parent / "worker.py"
POINTS = [
    "recover.after-cut",
    "recover.before-cut",
    "seal.after-index",
    "seal.after-put",
    "seal.begin",
    "sweep.after-copy",
    "sweep.after-delete",
    "sweep.after-epoch",
    "sweep.after-mark",
    "sweep.before-epoch",
    "sweep.locked",
    "tail.after-sync",
    "tail.after-write",
    "tail.before-sync",
    "tail.before-write",
]
"""Every fault point of the local store."""

Open = Callable[..., PackedObjectStore]


def run(base: Path, verb: str, name: str, count: int, fault: str = "") -> tuple[int, list[str]]:
    done = forked.run(
        [sys.executable, str(WORKER), verb, str(base), name, str(count)],
        env={**os.environ, "ORTET_FAULT": fault},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode in (0, 1, -signal.SIGKILL), done.stderr
    assert done.returncode != 1 or "Unavailable" in done.stderr, done.stderr
    return done.returncode, done.stdout.splitlines()


def check(store: PackedObjectStore, base: Path, walk: ReferenceParser, said: list[str]) -> None:
    """Every head is whole, and none is older than what was acknowledged last."""
    heads = {path.stem: from_hex(path.read_text()) for path in (base / "heads").glob("*.head")}
    links = [ObjectRef(oid, Kind.COMMIT) for oid in heads.values()]
    assert verify(store, lambda: links, walk).problems == []
    acknowledged = [line.split()[1] for line in said if line.startswith("commit ")]
    for oid in acknowledged[-1:]:
        store.get(from_hex(oid))


def verbs(point: str) -> str:
    return "sweeps" if point.startswith("sweep.") else "commits"


FAULTS = [
    f"{point}:{action}:{nth}"
    for point in POINTS
    for action in ("kill", "nospace")
    for nth in (1, 4)
    if action == "kill" or (nth == 1 and point != "tail.after-sync")  # by then all is on the disk
]


@pytest.fixture(scope="session")
def torn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a torn tail of a killed process. It holds no absolute path: copies are valid."""
    base = tmp_path_factory.mktemp("torn")
    code, _ = run(base, "commits", "before", 12, "toy.before-head:kill:12")  # leaves a tail
    assert code == -signal.SIGKILL
    tails = list((base / "store/local/tails").iterdir())
    assert tails
    for tail in tails:
        data = tail.read_bytes()
        tail.unlink()  # killed while sealing, it can be one file with its pack, which stays whole
        tail.write_bytes(data + b"torn")
    return base


@pytest.mark.parametrize("fault", FAULTS)
def test_a_kill_or_full_disk_at_each_fault_point_loses_no_commit(
    open_store: Open, tmp_path: Path, walk: ReferenceParser, *, torn: Path, fault: str
) -> None:
    point, action, nth = fault.split(":")
    for name in ("store", "heads"):
        copy_tree(torn / name, tmp_path / name)
    code, said = run(tmp_path, verbs(point), "killed", 40, fault)
    assert code != 0 or nth != "1" or action == "nospace", f"{point} was not reached"
    check(open_store(), tmp_path, walk, said)
    code, said = run(tmp_path, "commits", "killed", 10)
    assert code == 0
    check(open_store(), tmp_path, walk, said)
    assert run(tmp_path, "sweeps", "s", 2)[0] == 0
    check(open_store(), tmp_path, walk, said)


def test_the_tested_failpoints_are_those_of_the_source() -> None:
    found = {
        name
        for file in Path(ortet.objects.__path__[0]).rglob("*.py")
        if file.name != "sweep_remote.py"  # tests/sessions/test_shared_sweep.py kills that one
        for name in re.findall(r'^\s+failpoint\("([a-z.-]+)"\)', file.read_text(), re.MULTILINE)
    }
    assert sorted(found) == POINTS, f"replace POINTS by:\n{sorted(found)}"
    assert {point.split(".")[0] for point in POINTS} == {"tail", "seal", "recover", "sweep"}
    assert len(POINTS) == 15


@pytest.mark.soak
@pytest.mark.slow
def test_kills_at_random_moments_lose_no_commit(
    open_store: Open, tmp_path: Path, walk: ReferenceParser
) -> None:
    (tmp_path / "heads").mkdir()
    dice = random.Random(3)
    for turn in range(10 * SOAK):
        jobs = [
            forked.Popen(
                [sys.executable, str(WORKER), verb, str(tmp_path), name, "1000"],
                stdout=subprocess.PIPE,
                text=True,
            )
            for verb, name in (("commits", "a"), ("commits", "b"), ("sweeps", "s"))
        ]
        said: list[str] = []
        for job in jobs:
            assert job.stdout is not None
            said += [job.stdout.readline() for _ in range(dice.randrange(1, 30))]
        dice.shuffle(jobs)
        for job in jobs:
            job.kill()
        for job in jobs:
            job.communicate()
        store = open_store()
        check(store, tmp_path, walk, [])
        if turn % 3 == 0:
            heads = [
                ObjectRef(from_hex(path.read_text()), Kind.COMMIT)
                for path in (tmp_path / "heads").glob("*.head")
            ]
            sweep(store, lambda links=heads: links, walk, min_garbage=0.0)  # type: ignore[misc]
            check(store, tmp_path, walk, [])
        store.close()
