"""A session with files: one hash holds both, and both go back together."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.fixtures import forked

from ortet.config.environment import open_hub
from ortet.errors import Conflict, Invalid
from ortet.hub.hub import Hub
from ortet.sessions.session import Session

pytestmark = pytest.mark.files({"a": "one"})


def said(session: Session) -> list[str]:
    return [message.content for message in session.messages()]


class TestMindOnly:
    def test_restore_keeps_later_commits_and_uncommitted_events_in_the_reflog(
        self, hub: Hub
    ) -> None:
        with hub.session("s") as s:
            s.say("user", "one")
            first = s.commit()
            s.say("user", "two")
            second = s.commit()
            s.say("user", "not committed")
            report = s.restore(first.oid)
            assert (report.to, report.deeds) == (first.oid, [])
            assert said(s) == ["one"]
            assert s.commit() == first
            s.say("user", "another two")
            assert said(s) == ["one", "another two"]
            third = s.commit()
            assert third.parents == [first.oid]
            s.restore(second.oid)
            assert said(s) == ["one", "two"]
            s.restore(f"{s.internals.row.branch}@{{3}}")
            assert said(s) == ["one", "two", "not committed"]

    def test_a_restored_session_goes_on_at_the_next_open(self, store: Path) -> None:
        with open_hub(store) as hub, hub.session("s") as s:
            s.say("user", "one")
            first = s.commit()
            s.say("user", "two")
            s.commit()
            s.restore(first.oid)
        with open_hub(store) as hub, hub.session("s") as s:
            assert said(s) == ["one"]
            s.say("user", "three")
        with open_hub(store) as hub, hub.session("s") as s:
            assert said(s) == ["one", "three"]
            s.commit()
            s.rewind()
            assert said(s) == ["one"]
            hub.verify()

    def test_restore_names_later_effects_which_stay_done(self, hub: Hub) -> None:
        with hub.session("s") as s:
            s.say("user", "one")
            first = s.commit()
            s.act(lambda: "sent", name="send_mail", key="mail-1", replay="once")
            report = s.restore(first.oid)
            assert [deed.name for deed in report.deeds] == ["send_mail"]
            assert "1 effect happened later and stays done: send_mail" in str(report)
            assert s.act(lambda: "twice", name="send_mail", key="mail-1", replay="once") == "sent"

    def test_land_of_a_session_without_a_directory_is_refused(self, hub: Hub) -> None:
        with hub.session("s") as s, pytest.raises(Invalid) as caught:
            s.land()
        assert caught.value.kind == "no_directory"


class TestBoth:
    def test_one_commit_holds_session_state_and_files(self, store: Path, work: Path) -> None:
        with open_hub(store) as hub, hub.session("fix", workspace=work) as s:
            s.say("user", "make it two")
            first = s.commit("before")
            result = s.run("echo two > a; echo done", why="as asked")
            assert (result.exit_code, result.stdout) == (0, "done\n")
            s.say("assistant", "it is two")
            second = s.commit("after")
            assert s.commit("again") == second
            assert first.state != second.state
            hub.verify()
        with open_hub(store) as hub, hub.session("fix") as s:
            assert said(s) == ["make it two", "it is two"]
            s.rewind()
            assert said(s) == ["make it two"]
            assert (work / "a").read_text() == "one"
            s.restore(second.oid)
            assert said(s) == ["make it two", "it is two"]
            assert (work / "a").read_text() == "two\n"
            assert s.commit() == second

    def test_restore_with_only_restores_files_or_session_state_alone(
        self, hub: Hub, work: Path
    ) -> None:
        with hub.session("fix", workspace=work) as s:
            s.say("user", "one")
            first = s.commit()
            (work / "a").write_text("two")
            s.say("user", "two")
            s.commit()
            s.restore(first.oid, only={"files"})
            assert (work / "a").read_text() == "one"
            assert said(s) == ["one", "two"]
            s.commit("files of one, mind of two")
            (work / "a").write_text("three")
            s.restore(first.oid, only="mind")
            assert (work / "a").read_text() == "three"
            assert said(s) == ["one"]
            mixed = s.commit("mind of one")
        with pytest.raises(Invalid):
            hub.session("fix").restore(mixed.oid, only={"soul"})

    def test_restore_of_session_state_only_persists_at_the_next_open(
        self, store: Path, work: Path
    ) -> None:
        with open_hub(store) as hub, hub.session("fix", workspace=work) as s:
            s.say("user", "one")
            first = s.commit()
            s.say("user", "two")
            s.commit()
            s.restore(first.oid, only="mind")
        with open_hub(store) as hub, hub.session("fix") as s:
            assert said(s) == ["one"]

    def test_the_command_line_commits_both(self, store: Path, work: Path) -> None:
        with open_hub(store) as hub, hub.session("fix", workspace=work) as s:
            s.say("user", "one")
            s.commit()
            s.say("user", "two")
        (work / "a").write_text("by an editor")
        with open_hub(store) as hub, hub.workspace(work) as ws:
            made = ws.commit("both")
        with open_hub(store) as hub, hub.session("fix") as s:
            assert said(s) == ["one", "two"]
            assert s.head is not None
            assert s.head.oid == made.oid
            assert s.commit() == made
            s.say("user", "three")
        with open_hub(store) as hub, hub.workspace(work) as ws:
            ws.rewind()
        with open_hub(store) as hub, hub.session("fix") as s:
            assert said(s) == ["one"]
            hub.verify()

    def test_a_directory_has_one_session(self, hub: Hub, work: Path, tmp_path: Path) -> None:
        with hub.session("fix", workspace=work) as s:
            s.commit()
        with pytest.raises(Conflict) as caught:
            hub.session("other", workspace=work)
        assert caught.value.kind == "workspace_taken"
        (tmp_path / "else").mkdir()
        with pytest.raises(Conflict) as caught:
            hub.session("fix", workspace=tmp_path / "else")
        assert caught.value.kind == "workspace_differs"

    def test_killed_session_continues_with_its_events_and_files(
        self, store: Path, work: Path
    ) -> None:
        code = f"""
import ortet, os, signal
s = ortet.open({str(store)!r}).session("fix", workspace={str(work)!r}, goal="survive")
s.say("user", "one"); s.commit()
s.run("echo half > a", why="begin"); s.say("assistant", "half way")
os.kill(os.getpid(), signal.SIGKILL)
"""
        assert forked.run([sys.executable, "-c", code], check=False).returncode == -9
        with open_hub(store) as hub, hub.session("fix") as s:
            assert s.goal == "survive"
            assert said(s) == ["one", "half way"]
            assert (work / "a").read_text() == "half\n"
            assert [(e.name, e.state, e.why) for e in s.effects()] == [("run", "done", "begin")]
            s.commit()
            s.rewind()
            assert (work / "a").read_text() == "one"
            hub.verify()

    def test_forks_have_their_own_files_and_session_state(self, store: Path, work: Path) -> None:
        with open_hub(store) as hub:
            s = hub.session("fix", workspace=work, engine="folder")
            s.say("user", "try three ways")
            kids = s.fork(3)
            assert [kid.name for kid in kids] == ["fix/1", "fix/2", "fix/3"]
            for number, kid in enumerate(kids):
                kid.say("assistant", f"way {number}")
                kid.run(f"echo {number} > a")
                kid.commit()
            assert (work / "a").read_text() == "one"
            assert [(kid.machine.path / "a").read_text() for kid in kids] == ["0\n", "1\n", "2\n"]
            (mind,) = s.fork(1, machine=False)
            assert said(mind) == ["try three ways"]
            mind.say("user", "no files needed")
            mind.commit()
            hub.verify()
        with open_hub(store) as hub, hub.session("fix/2") as kid:
            assert said(kid) == ["try three ways", "way 1"]
            assert (kid.machine.path / "a").read_text() == "1\n"
            kid.land()
            assert (work / "a").read_text() == "1\n"
