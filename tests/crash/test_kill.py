"""kill -9 at every named fault point and at random moments; then the store must be whole.

Whole means: it opens, verifies, holds every acknowledged commit, and the files are those of before
or after the verb, never something between.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from tests.crash.points import STORE, check_points
from tests.crash.running import Ended, run
from tests.crash.store_verbs import SCENARIOS, prepare
from tests.fixtures.prepared import Prepared

import ortet

SOAK = int(os.environ.get("ORTET_SOAK", "1"))
OTHERS = ["commit", "fork", "elsewhere", "sweep"]

Workspaces = Callable[[str], Prepared]


def print_of(root: Path) -> dict[str, str]:
    found = {}
    for path in sorted(root.rglob("*")):
        kind = "dir" if path.is_dir() else hashlib.sha256(path.read_bytes()).hexdigest()
        found[str(path.relative_to(root))] = kind
    return found


def check_acknowledged(hub: ortet.Hub, ended: Ended) -> None:
    for (oid,) in ended.of("commit"):
        assert hub.show(oid).oid == oid


def check_whole(base: Path, engine: str, ended: Ended) -> dict[str, str]:
    with ortet.open(base / "store") as hub:
        hub.verify()
        check_acknowledged(hub, ended)
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


@pytest.fixture(scope="session")
def legal_files(workspaces: Workspaces) -> Callable[[str], list[dict[str, str]]]:
    """Return the files before and after a restore that no fault interrupts, for an engine."""

    @cache
    def of(engine: str) -> list[dict[str, str]]:
        base = workspaces(engine).put_back()
        with ortet.open(base / "store") as hub, hub.workspace(base / "work", engine=engine) as ws:
            before = print_of(ws.path)
        assert run("store.restore", base, engine=engine).code == 0
        with ortet.open(base / "store") as hub, hub.workspace(base / "work", engine=engine) as ws:
            # The scenario writes one file by itself, before it restores.
            edited = {**before, "uncommitted": hashlib.sha256(b"must survive").hexdigest()}
            return [before, edited, print_of(ws.path)]

    return of


@pytest.mark.parametrize(("scenario", "engine"), STORE)
def test_scenario_reaches_exactly_the_listed_fault_points(
    scenario: str, engine: str, workspaces: Workspaces
) -> None:
    ended = run(f"store.{scenario}", workspaces(engine).put_back(), points=True, engine=engine)
    assert ended.code == 0
    found = list(dict.fromkeys(ended.points()))
    check_points(f'STORE["{scenario}", "{engine}"]', STORE[scenario, engine], found)


def test_every_scenario_has_its_fault_points_listed_for_both_engines() -> None:
    scenarios = ["restore", *OTHERS]
    assert {*scenarios, "grow"} == set(SCENARIOS)  # grow is killed at random moments
    assert sorted(STORE) == sorted((s, e) for s in scenarios for e in ("folder", "overlay"))
    for (scenario, _), points in STORE.items():
        assert len(points) >= 5
        assert scenario == "restore" or any(p.startswith(("commit.", "build.")) for p in points)


@pytest.mark.parametrize(
    ("engine", "point"),
    [(engine, point) for engine in ("folder", "overlay") for point in STORE["restore", engine]],
)
def test_restore_killed_at_any_point_leaves_old_or_new_files(
    engine: str,
    point: str,
    workspaces: Workspaces,
    legal_files: Callable[[str], list[dict[str, str]]],
) -> None:
    legal = legal_files(engine)
    base = workspaces(engine).put_back()
    ended = run("store.restore", base, fault=f"{point}:kill", engine=engine)
    assert ended.killed
    assert check_whole(base, engine, ended) in legal


@pytest.mark.parametrize(
    ("scenario", "engine", "point"),
    [
        (scenario, engine, point)
        for scenario in OTHERS
        for engine in ("folder", "overlay")
        for point in STORE[scenario, engine]
    ],
)
def test_a_kill_at_any_point_leaves_a_whole_store(
    scenario: str, engine: str, point: str, workspaces: Workspaces
) -> None:
    base = workspaces(engine).put_back()
    ended = run(f"store.{scenario}", base, fault=f"{point}:kill", engine=engine)
    assert ended.killed
    check_whole(base, engine, ended)


@pytest.mark.soak
@pytest.mark.parametrize("engine", ["folder", "overlay"])
@pytest.mark.slow
def test_random_kills_lose_no_acknowledged_commit(engine: str, tmp_path: Path) -> None:
    prepare(tmp_path, engine)
    dice = random.Random(7)
    for _ in range(15 * SOAK):
        after, delay = dice.randrange(1, 40), dice.random() * 0.02
        ended = run("store.grow", tmp_path, after=after, delay=delay, engine=engine)
        assert ended.killed
        with ortet.open(tmp_path / "store") as hub:
            hub.verify()
            check_acknowledged(hub, ended)
