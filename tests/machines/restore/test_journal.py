"""kill -9 at every step of a thaw, and of going back: the old files or the new ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ortet.errors import NotFound
from ortet.history.records import Image
from ortet.machines.restore.restore import recover_restore

Eye = Callable[[Path], Any]
Torture = Callable[[Path], None]


def _nested(bench: Any, torture: Torture) -> tuple[Image, Image]:
    torture(bench.root)
    target = bench.freeze()
    bench.disturb()
    return target, bench.freeze()


POINTS = [
    "thaw.begun",
    "build.directories",
    "build.files",
    "build.links",
    "thaw.staged",
    "thaw.journaled",
    "thaw.kept",
    "thaw.placed",
    "thaw.altered",
    "thaw.settled",
]


AFTER = ["thaw.done", "thaw.undone", "thaw.cleaned"]

PARTS = {"thaw.kept": 4, "thaw.placed": 4, "thaw.altered": 2}
"""Points that one restore reaches often, and the number of tests that share their hits."""


@pytest.mark.parametrize(
    ("point", "first"),
    [(point, first) for point in POINTS for first in range(1, PARTS.get(point, 1) + 1)],
)
def test_kill_at_any_step_and_the_old_files_are_back(
    bench: Any, torture: Torture, see: Eye, *, point: str, first: int
) -> None:
    target, current = _nested(bench, torture)
    before = see(bench.root)
    count = first
    while not bench.survives(f"{point}:kill:{count}", lambda: bench.thaw(target)):
        assert recover_restore(bench.stage)
        assert see(bench.root) == before
        assert not recover_restore(bench.stage)
        bench.check(current)
        count += PARTS.get(point, 1)
    assert count > first
    bench.index = bench.shop.index()
    bench.check(target)


@pytest.mark.parametrize("point", AFTER)
def test_kill_after_the_last_step_and_the_new_files_stay_and_it_is_logged(
    bench: Any, torture: Torture, see: Eye, *, point: str, caplog: pytest.LogCaptureFixture
) -> None:
    torture(bench.root)
    wanted, target = see(bench.root), bench.freeze()
    bench.disturb()
    assert not bench.survives(f"{point}:kill", lambda: bench.thaw(target))
    assert see(bench.root) == wanted
    assert recover_restore(bench.stage)
    assert "finished an interrupted restore of files" in caplog.text
    assert see(bench.root) == wanted
    bench.index = bench.shop.index()
    bench.check(target)


@pytest.mark.parametrize("first", ["thaw.placed:kill:6", "thaw.settled:kill"])
@pytest.mark.parametrize("point", ["thaw.undo", "thaw.undone", "thaw.cleaned"])
@pytest.mark.slow
def test_recovery_may_be_killed_at_any_step_and_repeated(
    bench: Any, torture: Torture, see: Eye, *, first: str, point: str
) -> None:
    target, current = _nested(bench, torture)
    before = see(bench.root)
    count = 1
    while True:
        assert not bench.survives(first, lambda: bench.thaw(target))
        if bench.survives(f"{point}:kill:{count}", lambda: recover_restore(bench.stage)):
            break
        recover_restore(bench.stage)
        assert see(bench.root) == before
        bench.check_clean()
        count += 5
    assert count > 1
    assert see(bench.root) == before
    bench.check(current)


def test_a_restore_after_a_killed_restore_gives_the_target_files(
    bench: Any, torture: Torture, see: Eye
) -> None:
    torture(bench.root)
    wanted, target = see(bench.root), bench.freeze()
    bench.disturb()
    assert not bench.survives("thaw.placed:kill:3", lambda: bench.thaw(target))
    recover_restore(bench.stage)
    bench.thaw(target)
    assert see(bench.root) == wanted
    bench.check(target)


def test_recovery_of_a_missing_workspace_is_refused_and_keeps_the_journal(bench: Any) -> None:
    (bench.root / "f").write_text("target")
    target = bench.freeze()
    (bench.root / "f").write_text("current")
    assert not bench.survives("thaw.placed:kill", lambda: bench.thaw(target))
    moved = bench.root.rename(bench.root.with_name("moved"))
    with pytest.raises(NotFound) as error:
        recover_restore(bench.stage)
    assert error.value.kind == "no_workspace"
    moved.rename(bench.root)
    recover_restore(bench.stage)
    assert (bench.root / "f").read_text() == "current"
