"""Plans: what of a directory is to be looked at."""

from __future__ import annotations

import os
from pathlib import Path

from ortet.machines.capture.frames import DirectoryScan, ScanPlan, compare_all, compare_names
from ortet.machines.capture.stat_index import DirectoryNode, stat_record


def frame_of(path: Path, *known: str) -> DirectoryScan:
    node = DirectoryNode()
    for name in known:
        node.put(name, stat_record((path / name).lstat()))
    return DirectoryScan(node, b"", fd=os.open(path, os.O_RDONLY), name="", plan=None)


def test_adding_to_a_plan_unites_names_and_all_wins_over_some() -> None:
    plan = ScanPlan()
    plan.add({b"": {b"x"}, b"a/b": {b"y\xff"}})
    plan.add({b"a/b": {b"z"}, b"a": None})
    plan.add({b"a": {b"w"}})
    assert plan.names == {"x"}
    assert plan.subplan(b"a").names is None, "all is more than some"
    assert plan.subplan(b"a/b").names == {"y\udcff", "z"}
    assert set(plan.children) == {"a"}


def test_list_all_reports_changed_new_and_deleted_names(tmp_path: Path) -> None:
    for name in ("same", "changed", "gone"):
        (tmp_path / name).write_text(name)
    frame = frame_of(tmp_path, "same", "changed", "gone")
    (tmp_path / "changed").write_text("otherwise")
    (tmp_path / "gone").unlink()
    (tmp_path / "new").write_text("new")
    found = compare_all(frame)
    assert {name for name, _ in found.changed} == {"changed", "new"}
    assert (found.removed, found.unreadable) == ({"gone"}, [])
    frame.close()
    frame.close()


def test_list_all_reports_a_rename_as_one_new_and_one_deleted_name(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("x")
    frame = frame_of(tmp_path, "old")
    (tmp_path / "old").rename(tmp_path / "new")
    found = compare_all(frame)
    assert [name for name, _ in found.changed] == ["new"]
    assert found.removed == {"old"}
    frame.close()


def test_look_at_checks_only_the_given_names(tmp_path: Path) -> None:
    for name in ("same", "changed", "gone"):
        (tmp_path / name).write_text(name)
    frame = frame_of(tmp_path, "same", "changed", "gone")
    (tmp_path / "changed").write_text("otherwise")
    (tmp_path / "gone").unlink()
    found = compare_names(frame, ["same", "gone", "never"])
    assert (found.changed, found.removed) == ([], {"gone"})
    assert [name for name, _ in compare_names(frame, ["changed"]).changed] == ["changed"]
    frame.close()
