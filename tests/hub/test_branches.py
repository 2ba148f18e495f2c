"""Renaming and deleting branches under the workspaces that work on them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ortet.errors import Conflict, Invalid, NotFound, Refused
from ortet.hub import branches
from ortet.hub.hub import Hub
from ortet.ids import from_hex
from ortet.workspaces.workspace import Workspace


class TestRename:
    def test_the_workspace_goes_with_its_branch(self, hub: Hub, ws: Workspace, work: Path) -> None:
        first = ws.commit("first")
        ws.close()
        assert branches.rename(hub.internals.session_manager, "proj", "better/name") == from_hex(
            first.oid
        )
        assert hub.refs.get("proj") is None
        with hub.workspace(work, engine="folder") as again:
            assert (again.name, again.commit("same")) == ("better/name", first)
        assert [row.name for row in hub.workspaces.table.all()] == ["better/name"]
        assert hub.workspaces.reopen("proj", work).name == "better/name"

    def test_open_workspace_continues_under_the_renamed_branch(
        self, hub: Hub, ws: Workspace, work: Path
    ) -> None:
        first = ws.commit("first")
        branches.rename(hub.internals.session_manager, "proj", "renamed")
        (work / "b").touch()
        assert (ws.name, ws.commit("second").parents) == ("renamed", [first.oid])
        assert [head.name for head in hub.refs.branches()] == ["renamed"]

    def test_a_fork_keeps_its_files(self, hub: Hub, ws: Workspace) -> None:
        (child,) = ws.fork()
        (child.path / "new").write_text("uncommitted")
        child.close()
        branches.rename(hub.internals.session_manager, "proj/1", "winner")
        with hub.workspace(name="winner") as child:
            assert (child.path / "new").read_text() == "uncommitted"
            child.land()
        assert (ws.path / "new").exists()
        assert [kid.name for kid in ws.fork()] == ["proj/1"]

    def test_branch_without_a_workspace_can_be_renamed(self, hub: Hub, ws: Workspace) -> None:
        point = from_hex(ws.commit("first").oid)
        hub.refs.create("side", point)
        branches.rename(hub.internals.session_manager, "side", "aside")
        assert hub.show("aside").oid == point.hex()

    def test_a_taken_name_is_a_conflict(self, hub: Hub, ws: Workspace, tmp_path: Path) -> None:
        ws.fork()
        (tmp_path / "fresh").mkdir()
        hub.workspace(tmp_path / "fresh", engine="folder")  # has no commit yet
        for name in ("proj/1", "fresh", "proj"):
            with pytest.raises(Conflict, match="choose another name"):
                branches.rename(hub.internals.session_manager, "proj", name)
        assert hub.workspaces.table.need("fresh").directory == tmp_path / "fresh"

    def test_a_bad_name_changes_nothing(self, hub: Hub, ws: Workspace) -> None:
        ws.commit("first")
        with pytest.raises(Invalid):
            branches.rename(hub.internals.session_manager, "proj", "a..b")
        assert hub.workspaces.table.need("proj") is not None

    def test_rename_of_a_branch_that_does_not_exist_is_not_found(
        self, hub: Hub, ws: Workspace
    ) -> None:
        with pytest.raises(NotFound, match="commit first"):
            branches.rename(hub.internals.session_manager, "proj", "x")
        ws.commit("first")
        with pytest.raises(NotFound, match="there is proj"):
            branches.rename(hub.internals.session_manager, "nobody", "x")


class TestDelete:
    def test_deleted_branch_is_still_found_in_the_reflog(self, hub: Hub, ws: Workspace) -> None:
        first = ws.commit("first")
        hub.refs.create("side", from_hex(first.oid))
        assert branches.delete(hub.internals.session_manager, "side") == from_hex(first.oid)
        assert hub.refs.get("side") is None
        assert hub.show("side@{1}") == first

    def test_a_branch_in_use_is_refused(self, hub: Hub, ws: Workspace) -> None:
        ws.commit("first")
        with pytest.raises(Refused, match="ortet drop proj --branch"):
            branches.delete(hub.internals.session_manager, "proj")
        hub.drop("proj")
        branches.delete(hub.internals.session_manager, "proj")
        assert hub.refs.branches() == []

    def test_delete_of_a_branch_that_does_not_exist_is_not_found(self, hub: Hub) -> None:
        with pytest.raises(NotFound, match="none yet"):
            branches.delete(hub.internals.session_manager, "nobody")


def test_branch_of_a_session_cannot_be_deleted_or_renamed(hub: Hub) -> None:
    with hub.session("talk") as session:
        session.say("user", "hello")
        head = session.commit("said")
        with pytest.raises(Refused, match="session 'talk' works on branch"):
            branches.delete(hub.internals.session_manager, session.internals.row.branch)
        with pytest.raises(Refused, match="session 'talk' works on branch"):
            branches.rename(hub.internals.session_manager, session.internals.row.branch, "other")
        assert session.head == head


def test_the_hub_lists_its_branches_and_tags(hub: Hub, ws: Workspace) -> None:
    first = ws.commit("first")
    assert hub.tag("green") == first
    (ws.path / "b").touch()
    second = ws.commit("second")
    assert hub.tag("blue", "proj") == second
    assert hub.tags() == {"blue": second.oid, "green": first.oid}
    assert hub.branches() == {"proj": second.oid}
    assert hub.show("green") == first


def test_a_tag_is_never_moved(hub: Hub, ws: Workspace) -> None:
    first = ws.commit("first")
    hub.tag("green")
    (ws.path / "b").touch()
    ws.commit("second")
    with pytest.raises(Conflict, match="there is a tag 'green' already"):
        hub.tag("green")
    with pytest.raises(NotFound):
        hub.tag("red", "no-such-ref")
    assert hub.tags() == {"green": first.oid}
