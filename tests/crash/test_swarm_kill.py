"""The driver of a swarm is killed with -9, at points and at random times, and called again.

Proven: it ends as if nobody had been killed; no attempt that is done is done again, none is counted
twice, the best is adopted exactly once, and no process or fork is left.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.crash.points import SWARM, check_points
from tests.crash.running import run
from tests.crash.saying import marks
from tests.crash.swarming import NAME, N, prepare
from tests.fixtures.prepared import Prepared

import ortet

SOAK = int(os.environ.get("ORTET_SOAK", "1"))

POINTS = [
    "swarm.begun",
    "swarm.starting",
    "swarm.ended",
    "swarm.recorded",
    "swarm.taken-over",
    "swarm.choosing",
    "swarm.adopted",
    "swarm.merged",
    "swarm.harvested",
    "swarm.dropped",
    "restore.going",
    "restore.after-thaw",
    "restore.after-move",
    "remove.begun",
    "remove.rows",
    "journal.before-append",
    "journal.after-append",
    "commit.after-move",
    "commit.after-flush",
]


def check(base: Path, name: str, kept: list[int], *, files: bool) -> None:
    with ortet.open(base / "store") as hub:
        hub.verify()
        view = hub.get(NAME)
        result = hub.swarms.get(view, name)
        assert (result.state, result.kept) == ("finished", kept)
        assert [(one.state, one.score) for one in result.attempts] == [
            ("done", float(i)) for i in range(N)
        ]
        assert [row.name for row in hub.sessions()] == [NAME]
        assert [row.name for row in hub.workspaces.table.all()] == [view.internals.row.branch]
        moves = [
            op.detail for op in hub.refs.reflog(view.internals.row.branch) if op.verb == "adopt"
        ]
        assert Counter(moves)[result.attempts[N - 1].commit] == (1 if len(kept) == 1 else 0)
        if not files:
            assert {f"learned {i}" for i in range(N)} == {f.text for f in view.facts()}
            learned = Counter(
                e.data["text"] for e in view.events() if e.kind == "fact" and not e.waiting
            )
            assert set(learned.values()) == {1}
    if files:
        made = sorted(path.name for path in (base / "work").iterdir())
        assert made == ["a", *(f"mine-{i}" for i in sorted(kept))]


def campaign(base: Path, dice: random.Random, *, rounds: int, keep: Any, files: bool) -> int:
    """Swarms, each killed a few times; returns how often."""
    killed = 0
    for number in range(rounds):
        place = base / f"round-{number}"
        place.mkdir()
        prepare(place)
        kills = dice.randrange(1, 4)
        while True:
            fault, after, delay = "", None, 0.0
            if kills and dice.random() < 0.6:
                fault = f"{dice.choice(POINTS)}:kill:{dice.randrange(1, 4)}"
            elif kills:
                after, delay = dice.randrange(0, 9), dice.random() * 0.1
            kills = max(0, kills - 1)
            ended = run(
                "swarm",
                place,
                fault=fault,
                after=after,
                delay=delay,
                name="race",
                keep=keep,
                files=files,
            )
            killed += ended.killed
            if not ended.killed:
                break
        kept = [N - 1] if keep == 1 else list(range(N - 1, -1, -1))
        assert ended.of("result") == [["finished", kept, [float(i) for i in range(N)], [""] * N]]
        check(place, "race", kept, files=files)
        if not files:
            done = Counter(line[1] for line in marks(place / "marks") if line[0] == "done")
            began = Counter(line[1] for line in marks(place / "marks") if line[0] == "began")
            assert set(done) == {str(i) for i in range(N)}
            assert all(began[i] >= done[i] for i in done)
    return killed


@pytest.mark.soak
@pytest.mark.parametrize(
    ("keep", "files", "seed"),
    [(1, False, 1), (1, True, 2), ("merge", True, 3)],
    ids=["minds", "files", "merged"],
)
def test_swarm_with_a_killed_driver_ends_as_if_uninterrupted(
    tmp_path: Path, keep: Any, files: bool, seed: int
) -> None:
    rounds = 2 * SOAK
    dice = random.Random(seed)
    killed = campaign(tmp_path, dice, rounds=rounds, keep=keep, files=files)
    assert killed > 0


@pytest.mark.parametrize("point", [point for point in POINTS if point.startswith("swarm.")])
def test_swarm_killed_at_each_fault_point_ends_with_the_same_result(
    swarm_store: Prepared, point: str
) -> None:
    base = swarm_store.put_back()
    keep: Any = "merge" if point == "swarm.merged" else 1
    how: Any = {"name": "race", "keep": keep, "files": False}
    if point == "swarm.taken-over":
        assert run("swarm", base, fault="swarm.starting:kill", **how).killed
    assert run("swarm", base, fault=f"{point}:kill", **how).killed
    ended = run("swarm", base, **how)
    kept = [N - 1] if keep == 1 else list(range(N - 1, -1, -1))
    assert ended.of("result") == [["finished", kept, [float(i) for i in range(N)], [""] * N]]
    check(base, "race", kept, files=False)
    if point in ("swarm.choosing", "swarm.adopted", "swarm.harvested", "swarm.dropped"):
        done = Counter(line[1] for line in marks(base / "marks") if line[0] == "done")
        assert set(done.values()) == {1}  # what was done is not done again


@pytest.mark.parametrize("way", SWARM)
def test_swarm_reaches_exactly_the_listed_fault_points(swarm_store: Prepared, way: str) -> None:
    base = swarm_store.put_back()
    how: Any = {"name": "race", "keep": "merge" if way == "merged" else 1, "files": False}
    if way == "taken over":
        assert run("swarm", base, fault="swarm.starting:kill", **how).killed
    ended = run("swarm", base, points=True, **how)
    assert ended.code == 0
    found = {name for name in ended.points() if name.startswith("swarm.")}
    check_points(f'SWARM["{way}"]', SWARM[way], sorted(found))


def test_every_swarm_point_is_killed_at() -> None:
    reached = {point for points in SWARM.values() for point in points}
    assert {point for point in POINTS if point.startswith("swarm.")} == reached


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may be reaped while we read
        return False


@pytest.mark.parametrize("interrupted", ["count", "again"])
def test_interrupted_attempts_are_counted_or_retried_and_leave_no_process(
    swarm_store: Prepared, interrupted: str
) -> None:
    base = swarm_store.put_back()
    first = run("block", base, after=4, interrupted=interrupted, stop_when=None)
    assert first.killed
    assert first.of("seen")[-1][0] == 1  # one is done, two go on for ever
    pids = [int(line[1]) for line in marks(base / "marks")]
    ended = run("block", base, interrupted=interrupted, stop_when=0.0)
    ((done, *others),) = ended.of("result")
    assert (done, others[2]) == ("done", "stopped")  # the others had begun, but for a moment
    assert set(others) <= {"stopped", *(["interrupted"] if interrupted == "count" else [])}
    pids += [int(line[1]) for line in marks(base / "marks")]
    assert [pid for pid in pids if is_alive(pid)] == []
    with ortet.open(base / "store") as hub:
        assert [row.name for row in hub.sessions()] == [NAME]
        hub.verify()
