"""Single steps of a thaw fail, or somebody steps in between: everything is put back."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ortet._util import failpoints
from ortet._util.codec import decode
from ortet.errors import NotFound, Unavailable
from ortet.history.records import Image
from ortet.machines.dirfd import open_directory
from ortet.machines.restore.restore import recover_restore
from ortet.machines.restore.steps import RestoreBegin, RestoreLog, undo_steps

Eye = Callable[[Path], Any]
Torture = Callable[[Path], None]

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


def fault(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    armed = failpoints.parse(text)
    monkeypatch.setattr(failpoints, "_armed", lambda: armed)


@pytest.mark.parametrize("point", POINTS)
def test_an_error_at_any_step_puts_everything_back(
    bench: Any, torture: Torture, see: Eye, *, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    torture(bench.root)
    target = bench.freeze()
    bench.disturb()
    current = bench.freeze()
    before = see(bench.root)
    for count in (1, 2, 7, 15):
        with monkeypatch.context() as patch:
            fault(patch, f"{point}:nospace:{count}")
            try:
                bench.thaw(target)
            except Unavailable as error:
                assert error.kind == "disk_full"
            else:
                break  # it comes to this point less often
        assert see(bench.root) == before
        bench.check(current)
    else:
        return
    assert count > 1


def test_a_file_saved_between_kill_and_recovery_is_kept(bench: Any) -> None:
    for name in ("placed", "kept", "other"):
        (bench.root / name).write_text("target")
    target = bench.freeze()
    for name in ("placed", "kept", "other"):
        (bench.root / name).write_text("current")
    assert not bench.survives("thaw.placed:kill:2", lambda: bench.thaw(target))
    assert (bench.root / "kept").read_text() == "target"
    (bench.root / "kept").write_text("saved by an editor")
    (bench.root / "new").write_text("new")
    recover_restore(bench.stage)
    assert (bench.root / "kept").read_text() == "saved by an editor"
    assert (bench.root / "placed").read_text() == "current"
    assert (bench.root / "other").read_text() == "current"
    assert (bench.root / "new").read_text() == "new"
    bench.check_clean()


def test_undo_of_steps_that_were_not_executed_changes_nothing(
    bench: Any, torture: Torture, see: Eye
) -> None:
    torture(bench.root)
    target = bench.freeze()
    bench.disturb()
    before = see(bench.root)
    assert not bench.survives("thaw.journaled:kill", lambda: bench.thaw(target))
    steps = decode(RestoreLog, (bench.stage / "journal").read_bytes()).steps
    begin = decode(RestoreBegin, (bench.stage / "begin").read_bytes())
    with open_directory(begin.root) as root, open_directory(begin.area) as area:
        staged = sorted(os.listdir(area))
        undo_steps(root, area, steps)
        assert sorted(os.listdir(area)) == staged
    assert see(bench.root) == before
    # every kind of step is in it, and metadata comes first: undone last, it restores times
    kinds = [type(step).__name__ for step in steps]
    assert {"MetadataStep", "KeepStep", "PlaceStep"} <= set(kinds)
    assert kinds == sorted(kinds, key=lambda kind: kind != "MetadataStep")
    recover_restore(bench.stage)
    assert see(bench.root) == before


def _nested(bench: Any, torture: Torture) -> tuple[Image, Image]:
    torture(bench.root)
    target = bench.freeze()
    bench.disturb()
    return target, bench.freeze()


AFTER = ["thaw.done", "thaw.undone", "thaw.cleaned"]

PARTS = {"thaw.kept": 4, "thaw.placed": 4, "thaw.altered": 2}
"""Points that one restore reaches often, and the number of tests that share their hits."""


@pytest.mark.parametrize(
    ("point", "first"),
    [(point, first) for point in POINTS for first in range(1, PARTS.get(point, 1) + 1)],
)
def test_a_restore_killed_at_any_step_is_undone_by_recovery(
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
def test_a_restore_killed_after_its_last_step_is_completed_and_logged(
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
