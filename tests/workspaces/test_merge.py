"""Merge and land: what comes in, what is refused, and the way back."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ortet.errors import Conflict, Invalid, NotFound
from ortet.hub.hub import Hub
from ortet.workspaces.workspace import Workspace

Read = Callable[[Path], dict[str, str]]
Open = Callable[..., Hub]

ENGINES = ["folder", "overlay"]


def branch_heads(hub: Hub) -> dict[str, str]:
    return {head.name: head.oid.hex() for head in hub.refs.branches()}


class TestMerge:
    def test_merge_combines_the_changes_of_both_sides_in_one_commit(
        self, hub: Hub, ws: Workspace, work: Path
    ) -> None:
        (child,) = ws.fork()
        (child.path / "a.txt").write_text("one\ntwo\nTHREE\n")
        (child.path / "new").write_text("new")
        (child.path / "src/main.py").unlink()
        (work / "a.txt").write_text("ONE\ntwo\nthree\n")
        result = ws.merge(child)
        assert (work / "a.txt").read_text() == "ONE\ntwo\nTHREE\n"
        assert (work / "new").read_text() == "new"
        assert not (work / "src/main.py").exists()
        assert result.commit == ws.head
        assert (result.commit.message, result.conflicts) == ("merge proj/1", [])  # type: ignore[union-attr]
        ours, theirs = (hub.show(oid) for oid in ws.head.parents)  # type: ignore[union-attr]
        assert ours.message == "before merging proj/1"
        assert theirs == child.head
        assert theirs.message == "before being merged"
        assert ws.status().clean

    @pytest.mark.parametrize("engine", ["folder", "overlay"])
    @pytest.mark.parametrize("is_open", [True, False])
    def test_by_name_records_what_is_not_committed(
        self, hub: Hub, work: Path, engine: str, is_open: bool
    ) -> None:
        ws = hub.workspace(work)
        ws.files.branch.row = msgspec.structs.replace(ws.row, forks=engine)
        (child,) = ws.fork()
        (child.path / "committed").touch()
        before = child.commit("c")
        (child.path / "not-yet").touch()
        if not is_open:
            child.close()
        tried = ws.merge("proj/1", dry_run=True)
        assert not tried.up_to_date
        assert hub.show("proj/1") == before
        ws.merge("proj/1", message="my words")
        assert (work / "committed").exists() and (work / "not-yet").exists()
        assert hub.show("proj/1").parents == [before.oid]
        assert ws.head == hub.show("proj/1")  # ours had nothing new, so it is the same line
        assert ws.merge("proj/1").up_to_date
        assert ws.merge("proj/1", dry_run=True).up_to_date
        assert ws.merge(before).up_to_date

    def test_merge_by_name_of_a_workspace_open_in_another_process_is_refused(
        self, hub: Hub, opened: Open, work: Path
    ) -> None:
        ws = hub.workspace(work)
        ws.files.branch.row = msgspec.structs.replace(ws.row, forks="overlay")
        (child,) = ws.fork()
        head = child.commit()
        other = opened()
        with pytest.raises(Conflict, match="open in another process"):
            other.workspace(work).merge("proj/1")
        assert other.workspace(work).merge(head).up_to_date

    @pytest.mark.parametrize("wrong", [None, 5, ""])
    def test_merge_of_a_value_that_is_no_reference_is_refused(
        self, ws: Workspace, wrong: Any
    ) -> None:
        ws.commit()
        with pytest.raises(Invalid):
            ws.merge(wrong)

    def test_merge_uses_the_given_message(self, ws: Workspace, work: Path) -> None:
        (child,) = ws.fork()
        (child.path / "b").touch()
        (work / "c").touch()
        assert ws.merge(child, message="together").commit.message == "together"  # type: ignore[union-attr]

    def test_what_is_merged_already_changes_nothing(self, hub: Hub, ws: Workspace) -> None:
        (child,) = ws.fork()
        before = branch_heads(hub)
        for other in (child, child.name, ws, "HEAD", "proj"):
            assert ws.merge(other).commit == ws.head
        assert branch_heads(hub) == before

    def test_a_conflict_is_data_and_touches_no_file(
        self, hub: Hub, ws: Workspace, work: Path, read: Read
    ) -> None:
        (child,) = ws.fork()
        (child.path / "a.txt").write_text("theirs\n")
        (child.path / "new").write_text("would come")
        (work / "a.txt").write_text("ours\n")
        before = read(work), read(child.path)
        with pytest.raises(Conflict, match="favor='ours'") as caught:
            ws.merge(child)
        assert caught.value.kind == "merge_conflict"
        assert [one["path"] for one in caught.value.details["conflicts"]] == ["a.txt"]
        assert (read(work), read(child.path)) == before
        assert ws.status().clean
        assert hub.show("proj").message == "before merging proj/1"

    @pytest.mark.parametrize("favor", ["ours", "theirs"])
    def test_favor_resolves_conflicts_with_the_chosen_side(
        self, ws: Workspace, work: Path, favor: Any
    ) -> None:
        (child,) = ws.fork()
        (child.path / "a.txt").write_text("theirs\n")
        (child.path / "new").write_text("comes")
        (work / "a.txt").write_text("ours\n")
        result = ws.merge(child, favor=favor)
        assert (work / "a.txt").read_text() == f"{favor}\n"
        assert (work / "new").exists()
        assert [(c.path, c.settled) for c in result.conflicts] == [("a.txt", True)]

    def test_an_unknown_favor_is_invalid(self, ws: Workspace) -> None:
        (child,) = ws.fork()
        with pytest.raises(Invalid, match="'ours' or 'theirs'"):
            ws.merge(child, favor="mine")  # type: ignore[arg-type]
        with pytest.raises(Invalid, match="'ours' or 'theirs'"):
            child.land(favor="mine")  # type: ignore[arg-type]

    def test_a_dry_run_touches_neither_files_nor_branches(
        self, hub: Hub, ws: Workspace, work: Path, read: Read
    ) -> None:
        (child,) = ws.fork()
        (child.path / "a.txt").write_text("theirs\n")
        (work / "a.txt").write_text("ours\n")
        before = read(work), branch_heads(hub), len(hub.catalog.ops())
        tried = ws.merge(child, dry_run=True)
        assert (tried.commit, [c.path for c in tried.conflicts]) == (None, ["a.txt"])
        assert ws.merge(child, dry_run=True, favor="ours").conflicts[0].settled
        assert [c.path for c in ws.merge("proj/1", dry_run=True).conflicts] == ["a.txt"]
        assert (read(work), branch_heads(hub), len(hub.catalog.ops())) == before
        assert not ws.status().clean

    def test_a_dry_run_before_the_first_commit(self, hub: Hub, tmp_path: Path) -> None:
        for name, text in (("x", "left"), ("y", "right")):
            (tmp_path / name).mkdir()
            (tmp_path / name / "same").write_text(text)
        one, two = (hub.workspace(tmp_path / name, engine="folder") for name in ("x", "y"))
        assert [c.path for c in one.merge(two, dry_run=True).conflicts] == ["same"]
        assert branch_heads(hub) == {}

    def test_merge_without_a_common_ancestor_takes_files_of_both(
        self, hub: Hub, ws: Workspace, tmp_path: Path
    ) -> None:
        (tmp_path / "other").mkdir()
        (tmp_path / "other/theirs").write_text("theirs")
        other = hub.workspace(tmp_path / "other", engine="folder")
        ws.merge(other)
        assert (ws.path / "theirs").read_text() == "theirs"
        assert (ws.path / "a.txt").exists()

    def test_merge_of_a_workspace_in_another_store_suggests_export_and_import(
        self, opened: Open, ws: Workspace, tmp_path: Path
    ) -> None:
        (tmp_path / "other").mkdir()
        other = opened(tmp_path / "second").workspace(tmp_path / "other", engine="folder")
        for dry_run in (False, True):
            with pytest.raises(Invalid, match=r"export.*import"):
                ws.merge(other, dry_run=dry_run)

    def test_merge_of_a_workspace_opened_by_another_hub_of_the_same_store_works(
        self, opened: Open, ws: Workspace, work: Path
    ) -> None:
        (child,) = ws.fork()
        child.close()
        child = opened().workspace(name="proj/1")
        (child.path / "new").touch()
        ws.merge(child)
        assert (work / "new").exists()

    def test_merge_of_an_unknown_branch_is_not_found(self, ws: Workspace) -> None:
        ws.commit("first")
        with pytest.raises(NotFound, match="nobody"):
            ws.merge("nobody")

    def test_merge_that_loses_the_race_changes_no_file_and_can_be_retried(
        self, opened: Open, ws: Workspace, work: Path, read: Read
    ) -> None:
        (child,) = ws.fork()
        (child.path / "new").touch()
        (work / "mine").touch()
        opened().workspace(work, engine="folder").commit("faster")
        before = read(work)
        (work / "later").touch()
        with pytest.raises(Conflict) as caught:
            ws.merge(child)
        assert caught.value.kind == "head_moved"
        assert read(work) == before | {"later": ""}
        ws.merge(child)
        assert read(work) == before | {"later": "", "new": ""}


@pytest.mark.parametrize("engine", ENGINES)
class TestLand:
    def test_applies_the_difference_to_the_directory(
        self, hub: Hub, work: Path, read: Read, engine: str
    ) -> None:
        with hub.workspace(work, engine="folder") as ws:
            ws.commit("first")
        with hub.workspace(work, engine=engine, files="private") as private:
            private.run("echo new > new; rm src/main.py; sed -i s/three/THREE/ a.txt")
            (work / "a.txt").write_text("ONE\ntwo\nthree\n")  # meanwhile, in the original
            (work / "mine").write_text("mine")
            report = private.land()
            assert read(work) == {
                "a.txt": "ONE\ntwo\nTHREE\n",
                "new": "new\n",
                "mine": "mine",
            }
            assert report.removed == 1
            landed = hub.show("proj")
            assert landed.message == f"landed {private.name}"
            assert [hub.show(oid).message for oid in landed.parents] == [
                f"before landing {private.name}",
                "before landing",
            ]
        with hub.workspace(work, engine="folder") as ws:
            assert ws.status().clean
            ws.rewind()
            assert read(work)["a.txt"] == "ONE\ntwo\nthree\n"
            assert "src/main.py" in read(work)

    def test_land_of_a_fork_moves_the_open_original_workspace(
        self, hub: Hub, work: Path, engine: str
    ) -> None:
        ws = hub.workspace(work)
        twice = hub.workspace(work, engine="folder")
        (child,) = twice.fork() if engine == "folder" else ws.fork()
        assert child.engine == engine
        child.run("echo new > new")
        child.land()
        assert ws.commit("nothing new") == hub.show("proj")
        assert ws.status().clean
        (work / "more").touch()
        assert ws.commit("more").parents == [hub.show("proj~1").oid]

    def test_twice_lands_only_what_is_new(
        self, hub: Hub, work: Path, read: Read, engine: str
    ) -> None:
        with hub.workspace(work, engine=engine, files="private") as private:
            private.run("echo 1 > new")
            private.land()
            (name,) = [head.name for head in hub.refs.branches() if head.name != private.name]
            heads = branch_heads(hub)
            assert (private.land().written, branch_heads(hub)) == (0, heads)
            (work / "new").write_text("edited since\n")
            private.run("echo 2 > other")
            private.land()
            assert read(work)["new"] == "edited since\n"
            assert read(work)["other"] == "2\n"
            assert hub.show(name).message == f"landed {private.name}"

    def test_a_conflict_leaves_both_sides_as_they_are(
        self, hub: Hub, work: Path, read: Read, engine: str
    ) -> None:
        with hub.workspace(work, engine=engine, files="private") as private:
            private.run("echo theirs > a.txt; echo new > new")
            (work / "a.txt").write_text("ours\n")
            before = read(work), read(private.path)
            with pytest.raises(Conflict, match="nothing was changed"):
                private.land()
            assert (read(work), read(private.path)) == before
            private.land(favor="theirs")
            assert read(work)["a.txt"] == "theirs\n"


class TestLandAgain:
    def test_land_after_an_undone_landing_applies_the_changes_again(
        self, hub: Hub, ws: Workspace, work: Path
    ) -> None:
        (child,) = ws.fork()
        (child.path / "new").write_text("new")
        child.land()
        ws.rewind()
        assert not (work / "new").exists()
        assert child.land().written > 0
        assert (work / "new").read_text() == "new"

    def test_a_fork_of_a_fork_lands_with_what_it_builds_on(self, ws: Workspace, work: Path) -> None:
        (child,) = ws.fork()
        (child.path / "a.txt").write_text("one\nchild\nthree\n")
        (child.path / "by-child").touch()
        (grandchild,) = child.fork()
        (grandchild.path / "a.txt").write_text("one\ngrandchild\nthree\n")
        grandchild.land()
        assert (work / "a.txt").read_text() == "one\ngrandchild\nthree\n"
        assert (work / "by-child").exists()
        child.land()
        assert (work / "a.txt").read_text() == "one\ngrandchild\nthree\n"

    def test_a_fork_of_a_private_copy_lands_with_what_it_builds_on(
        self, hub: Hub, work: Path
    ) -> None:
        private = hub.workspace(work, engine="folder", files="private")
        (private.path / "by-private").touch()
        (child,) = private.fork()
        (child.path / "by-child").touch()
        child.land()
        assert (work / "by-private").exists()
        assert (work / "by-child").exists()

    def test_siblings_land_one_after_the_other(self, ws: Workspace, work: Path) -> None:
        for number, child in enumerate(ws.fork(3)):
            (child.path / f"by-{number}").touch()
            child.land()
        assert {"by-0", "by-1", "by-2"} <= set(os.listdir(work))

    def test_land_of_an_in_place_workspace_is_refused(self, ws: Workspace) -> None:
        with pytest.raises(Invalid, match="name one of its forks, such as proj/1"):
            ws.land()

    def test_land_on_a_missing_directory_is_refused_and_can_be_retried(
        self, ws: Workspace, work: Path
    ) -> None:
        (child,) = ws.fork()
        ws.close()
        (child.path / "new").write_text("kept")
        work.rename(work.with_name("away"))
        with pytest.raises(NotFound, match="create it first"):
            child.land()
        work.with_name("away").rename(work)
        child.land()
        assert (work / "new").read_text() == "kept"

    def test_land_registers_a_directory_that_was_never_opened_in_place(
        self, hub: Hub, work: Path
    ) -> None:
        with hub.workspace(work, engine="folder", files="private") as private:
            (private.path / "new").touch()
            private.land()
        row = hub.workspaces.table.find_at(work, "inplace", "folder")
        assert row is not None
        assert (row.forks, (work / "new").exists()) == ("", True)
