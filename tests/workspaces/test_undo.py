"""undo and redo: as an editor has them, for files and mind together, and nothing is ever lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from ortet.backends.base import Op
from ortet.config.environment import open_hub
from ortet.errors import Conflict, Invalid, NotFound, Refused
from ortet.hub.hub import Hub
from ortet.ids import Oid
from ortet.sessions.session import Session
from ortet.workspaces.undo import UNCOMMITTED_MESSAGE, UndoHistory
from ortet.workspaces.workspace import Workspace

pytestmark = pytest.mark.files({})


@pytest.fixture
def ws(hub: Hub, work: Path) -> Workspace:
    """A workspace with three commits, whose file says their numbers."""
    workspace = hub.workspace(work)
    for number in ("1", "2", "3"):
        (work / "a").write_text(number)
        workspace.commit(number)
    return workspace


def said(session: Session) -> list[str]:
    return [message.content for message in session.messages()]


class TestFiles:
    def test_undo_and_redo_step_through_commits(self, ws: Workspace, work: Path) -> None:
        seen = []
        for verb in (ws.undo, ws.undo, ws.redo, ws.undo, ws.redo, ws.redo):
            verb()
            seen.append((work / "a").read_text())
        assert seen == ["2", "1", "2", "1", "2", "3"]

    def test_undo_and_redo_beyond_the_ends_are_refused(self, ws: Workspace, work: Path) -> None:
        with pytest.raises(NotFound) as none:
            ws.redo()
        assert none.value.kind == "nothing_to_redo"
        ws.undo(2)
        with pytest.raises(NotFound) as first:
            ws.undo()
        assert first.value.kind == "nothing_to_undo"
        assert (work / "a").read_text() == "1"
        with pytest.raises(NotFound, match="only 2 can be done again"):
            ws.redo(3)
        ws.redo(2)
        assert (work / "a").read_text() == "3"

    def test_undo_first_undoes_uncommitted_work_and_redo_restores_it(
        self, ws: Workspace, work: Path
    ) -> None:
        head = ws.head
        assert head is not None
        (work / "a").write_text("not committed")
        (work / "b").write_text("new")
        found = ws.undo()
        assert [step.verb for step in found.steps] == ["work"]
        assert [(c.kind, c.path) for c in found.changes] == [("modified", "a"), ("removed", "b")]
        assert found.kept and found.restored.to == head.oid != found.was
        assert ((work / "a").read_text(), (work / "b").exists()) == ("3", False)
        ws.undo()
        assert (work / "a").read_text() == "2"
        ws.redo(2)
        assert ((work / "a").read_text(), (work / "b").read_text()) == ("not committed", "new")

    def test_a_log_that_is_written_stops_neither_undo_nor_redo(
        self, ws: Workspace, work: Path
    ) -> None:
        seen = []
        for number, verb in enumerate([ws.undo] * 4 + [ws.redo] * 4):
            (work / "log").write_text(f"line {number}")
            verb()
            seen.append((work / "a").read_text())
        assert seen == ["3", "2", "2", "1", "2", "2", "3", "3"]
        assert (work / "log").read_text() == "line 0"  # all is as it was before the first

    def test_uncommitted_work_between_undos_can_be_undone_and_redone(
        self, ws: Workspace, work: Path
    ) -> None:
        ws.undo()
        (work / "idea").write_text("mine")
        assert [step.detail for step in ws.undo().steps] == [UNCOMMITTED_MESSAGE]
        assert ((work / "idea").exists(), (work / "a").read_text()) == (False, "2")
        ws.redo()
        assert ((work / "idea").read_text(), (work / "a").read_text()) == ("mine", "2")
        ws.redo()
        assert (work / "a").read_text() == "3"

    def test_change_of_ignored_files_is_no_undo_step(self, ws: Workspace, work: Path) -> None:
        (work / ".ortetignore").write_text("*.log\n")
        ws.commit("rules")
        (work / "x.log").write_text("noise")  # which moves the time of the directory
        found = ws.undo()
        assert ([step.detail for step in found.steps], found.kept) == (["rules"], False)

    def test_commit_after_an_undo_discards_the_redo_steps(self, ws: Workspace, work: Path) -> None:
        ws.undo()
        (work / "a").write_text("other")
        ws.commit("other")
        with pytest.raises(NotFound):
            ws.redo()
        ws.undo()
        assert (work / "a").read_text() == "2"
        ws.redo()
        assert (work / "a").read_text() == "other"

    def test_restore_rewind_and_merge_are_undone_to_what_was_before(
        self, ws: Workspace, work: Path
    ) -> None:
        first = ws.log()[-1]
        (work / "a").write_text("not committed")
        ws.restore(first)
        assert ws.undo().steps[0].verb == "restore"
        assert (work / "a").read_text() == "not committed"
        ws.rewind()
        assert ws.undo().steps[0].verb == "rewind"
        assert (work / "a").read_text() == "not committed"
        (fork,) = ws.fork()
        fork.run("echo theirs > theirs")
        fork.close()
        (work / "mine").write_text("mine")
        ws.merge(fork.name)
        assert (work / "theirs").exists()
        assert ws.undo().steps[0].verb == "merge"
        assert (work / "mine").exists() and not (work / "theirs").exists()

    def test_landed_changes_can_be_undone_and_redone(
        self, ws: Workspace, hub: Hub, work: Path
    ) -> None:
        (fork,) = ws.fork()
        fork.run("echo landed > a")
        fork.land()
        assert (work / "a").read_text() == "landed\n"
        ws.undo()
        assert (work / "a").read_text() == "3"
        ws.redo()
        assert (work / "a").read_text() == "landed\n"

    def test_restore_of_some_paths_can_be_undone(self, ws: Workspace, work: Path) -> None:
        (work / "a").write_text("half an idea")
        (work / "b").write_text("kept")
        ws.restore("HEAD~1", paths=["a"])
        assert (work / "a").read_text() == "2"
        ws.undo()
        assert ((work / "a").read_text(), (work / "b").read_text()) == ("half an idea", "kept")
        ws.restore("HEAD~1", paths=["a", "b"])
        ws.undo()
        assert (work / "b").read_text() == "kept"

    def test_a_dry_run_changes_nothing(self, ws: Workspace, hub: Hub, work: Path) -> None:
        (work / "b").write_text("new")
        ops = hub.catalog.last_op()
        found = ws.undo(2, dry_run=True)
        assert [step.detail for step in found.steps] == [UNCOMMITTED_MESSAGE, "3"]
        assert [(c.kind, c.path) for c in found.changes] == [("modified", "a"), ("removed", "b")]
        assert found.kept and found.restored.to == ws.log()[1].oid
        assert hub.catalog.last_op() == ops
        assert (work / "b").read_text() == "new"
        assert ws.undo(2).changes == found.changes

    def test_several_at_once_name_every_step(self, ws: Workspace) -> None:
        assert [step.detail for step in ws.undo(2).steps] == ["3", "2"]
        assert [step.detail for step in ws.redo(2).steps] == ["2", "3"]

    @pytest.mark.parametrize("n", [0, -1, True, "1"])
    def test_undo_with_a_bad_count_is_refused(self, ws: Workspace, n: int) -> None:
        with pytest.raises(Invalid):
            ws.undo(n)

    def test_undo_before_the_first_commit_is_refused(self, hub: Hub, work: Path) -> None:
        with pytest.raises(NotFound, match="commit first"):
            hub.workspace(work).undo()

    def test_redo_works_in_the_next_process(
        self, hub: Hub, ws: Workspace, store: Path, work: Path
    ) -> None:
        ws.undo(2)
        hub.close()
        with open_hub(store) as later, later.workspace(work) as again:
            again.redo()
            assert (work / "a").read_text() == "2"

    def test_undo_and_redo_work_in_a_fork(self, ws: Workspace) -> None:
        (fork,) = ws.fork()
        fork.run("echo mine > a")
        fork.commit("mine")
        fork.undo()
        assert fork.run("cat a").stdout == "3"
        fork.redo()
        assert fork.run("cat a").stdout == "mine\n"


class TestMind:
    def test_undo_and_redo_move_session_state_and_files_together(
        self, hub: Hub, work: Path
    ) -> None:
        with hub.session("s", workspace=work) as s:
            for number in ("one", "two"):
                s.say("user", number)
                (work / "a").write_text(number)
                s.commit(number)
            s.act(lambda: "sent", name="send_mail", key="m", replay="once")
            found = s.undo()
            assert (said(s), (work / "a").read_text()) == (["one"], "one")
            assert [deed.name for deed in found.restored.deeds] == ["send_mail"]
            assert found.events > 0 and found.kept
            s.redo()
            assert (said(s), (work / "a").read_text()) == (["one", "two"], "two")

    def test_workspace_undo_moves_a_session_that_is_not_open(self, hub: Hub, work: Path) -> None:
        with hub.session("s", workspace=work) as s:
            for number in ("one", "two"):
                s.say("user", number)
                (work / "a").write_text(number)
                s.commit(number)
        with hub.workspace(work) as ws:
            ws.undo(dry_run=True)
            ws.undo()
        assert [m.content for m in hub.get("s").messages()] == ["one"]
        assert (work / "a").read_text() == "one"

    def test_workspace_undo_of_a_session_open_elsewhere_is_refused(
        self, hub: Hub, store: Path, work: Path
    ) -> None:
        with open_hub(store) as other, other.session("s", workspace=work) as s:
            for number in ("one", "two"):
                (work / "a").write_text(number)
                s.commit(number)
            with hub.workspace(work) as ws, pytest.raises((Refused, Conflict)):
                ws.undo()
            assert (work / "a").read_text() == "two"

    def test_undo_and_redo_work_without_files(self, hub: Hub) -> None:
        with hub.session("s") as s:
            for number in ("one", "two"):
                s.say("user", number)
                s.commit(number)
            s.say("user", "three")
            seen = []
            for verb in (s.undo, s.undo, s.redo, s.redo):
                verb()
                seen.append(said(s))
            assert seen == [["one", "two"], ["one"], ["one", "two"], ["one", "two", "three"]]

    def test_adopt_can_be_undone(self, hub: Hub, work: Path) -> None:
        with hub.session("s", workspace=work) as s:
            s.say("user", "one")
            (work / "a").write_text("one")
            s.commit("one")
            (kid,) = s.fork()
            kid.run("echo theirs > a")
            kid.commit("theirs")
            s.adopt(kid)
            assert (work / "a").read_text() == "theirs\n"
            assert s.undo().steps[0].verb == "adopt"
            assert (work / "a").read_text() == "one"


def op(seq: int, verb: str, old: str, new: str, detail: str = "") -> Op:
    def oid(text: str) -> Oid | None:
        return Oid(text.encode()) if text else None

    return Op(seq, seq, verb, "branch:b", oid(old), oid(new), "", detail)


class TestTrail:
    def test_undo_works_after_the_reflog_was_trimmed(self) -> None:
        """A sweep trims the reflog: an undo of what it no longer holds still leads somewhere."""
        trail = UndoHistory([op(9, "undo", "C", "A", "2 steps"), op(10, "commit", "A", "D", "d")])
        assert trail.find("undo", 1, Oid(b"D"))[0] == b"A"
        with pytest.raises(NotFound):
            trail.find("redo", 1, Oid(b"D"))

    def test_moves_that_change_nothing_visible_are_not_counted(self) -> None:
        trail = UndoHistory(
            [op(1, "commit", "", "A"), op(2, "move", "A", "B"), op(3, "move", "B", "A")]
        )
        assert trail.find("undo", 1, Oid(b"B"), lambda *_: True)[:2] == (b"B", 1)
        assert trail.find("undo", 1, Oid(b"B"))[:2] == (b"A", 2)
        assert trail.find("undo", 2, Oid(b"A"))[:2] == (b"A", 2)
        with pytest.raises(NotFound, match="only 2 can be undone"):
            trail.find("undo", 3, Oid(b"A"))

    def test_undo_without_any_move_is_refused(self) -> None:
        with pytest.raises(NotFound):
            UndoHistory([]).find("undo", 1, Oid(b"A"))
