"""Sessions without a directory: a machine of their own at first use, and none before."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fixtures import forked

from ortet.config.environment import open_hub
from ortet.errors import Conflict, Invalid, Unsupported
from ortet.hub.hub import Hub
from ortet.sessions.session import Session

Read = Callable[[Path], dict[str, str]]


@pytest.fixture(params=["folder", "overlay"])
def s(request: pytest.FixtureRequest, hub: Hub) -> Session:
    return hub.session("x", engine=request.param)


class TestRoom:
    def test_session_without_commands_starts_no_machine(self, hub: Hub, store: Path) -> None:
        with hub.session("x") as s:
            s.say("user", "hi")
            s.commit()
            (kid,) = s.fork()
            kid.say("user", "on")
            kid.commit()
        assert hub.workspaces.table.get("x") is None
        assert not (store / "local/machines").exists()

    def test_machine_files_are_committed_and_restored_with_the_session_state(
        self, hub: Hub, s: Session, tmp_path: Path, read: Read
    ) -> None:
        s.say("user", "before any file")
        empty = s.commit()
        result = s.run("echo hi > f; mkdir d; echo deep > d/g; cat f")
        assert (result.exit_code, result.stdout) == (0, "hi\n")
        assert (s.path / "f").read_text() == "hi\n"
        first = s.commit("one file")
        s.run("echo ho > f")
        s.commit()
        s.restore(first.oid)
        assert (s.path / "f").read_text() == "hi\n"
        assert [change.path for change in s.diff(empty.oid)] == ["d", "d/g", "f"]
        s.restore(empty.oid)
        assert list(s.path.iterdir()) == []
        assert [m.content for m in s.messages()] == ["before any file"]
        assert s.commit() == empty
        hub.restore(first.oid, to=tmp_path / "out")
        assert read(tmp_path / "out") == {"f": "hi\n", "d/g": "deep\n"}
        hub.verify()

    def test_machine_files_are_there_at_the_next_open(self, store: Path) -> None:
        with open_hub(store) as hub, hub.session("x") as s:
            s.run("echo hi > f")
        with open_hub(store) as hub, hub.session("x") as s:
            assert s.run("cat f").stdout == "hi\n"
            s.commit()
            hub.sweep()
            hub.verify()
            assert hub.get(s.id).internals.row.files == "room"

    def test_commands_do_not_see_the_host_directory(self, s: Session) -> None:
        assert not Path(s.run("pwd").stdout.strip()).exists() or s.machine.engine == "folder"

    def test_forks_have_their_own_files_and_can_be_merged_or_adopted(
        self, hub: Hub, s: Session
    ) -> None:
        s.run("echo base > f")
        one, two = s.fork(2)
        one.run("echo one > f")
        two.run("echo two > g")
        assert (s.path / "f").read_text() == "base\n"
        s.merge(two)
        s.merge(one)
        assert (s.path / "f").read_text() == "one\n"
        assert (s.path / "g").read_text() == "two\n"
        two.run("echo again > f")
        s.adopt(two)
        assert (s.path / "f").read_text() == "again\n"
        with pytest.raises(Invalid) as caught:
            two.land()
        assert caught.value.kind == "no_directory"
        hub.verify()

    def test_fork_of_an_empty_machine_is_empty(self, s: Session) -> None:
        s.run("true")
        (kid,) = s.fork()
        assert kid.run("ls -A").stdout == ""

    def test_fork_without_a_machine_starts_from_the_files_of_its_parent(
        self, hub: Hub, work: Path
    ) -> None:
        with hub.session("w", workspace=work) as s:
            (kid,) = s.fork(machine=False)
            assert kid.run("cat a.txt").stdout == "one\ntwo\nthree\n"
            kid.run("echo changed > a.txt")
            s.merge(kid)
        assert (work / "a.txt").read_text() == "changed\n"

    def test_whatif_starts_with_the_committed_machine_files(self, s: Session) -> None:
        s.run("echo 1 > f")
        s.commit()
        event = s.say("user", "left")
        other = s.whatif(event.seq, message="right")
        assert other.run("cat f").stdout == "1\n"
        assert [m.content for m in other.messages()] == ["right"]

    def test_an_adopted_commit_brings_its_files(self, hub: Hub, work: Path) -> None:
        with hub.session("w", workspace=work) as w:
            w.say("user", "hi")
            oid = w.commit().oid
        with hub.session("x") as s:
            s.adopt(oid)
            assert s.run("cat a.txt").stdout == "one\ntwo\nthree\n"

    @pytest.mark.parametrize("point", ["room.before-row", "room.before-session"])
    def test_session_killed_while_its_machine_is_created_works_again(
        self, store: Path, point: str
    ) -> None:
        script = (
            "import sys; from ortet.config.environment import open_hub\n"
            "s = open_hub(sys.argv[1]).session('x'); s.say('user', 'hi'); s.run('echo hi > f')\n"
        )
        run = forked.run(
            [sys.executable, "-c", script, store],
            check=False,
            capture_output=True,
            env={**os.environ, "ORTET_FAULT": f"{point}:kill"},
        )
        assert run.returncode == -9, run.stderr
        with open_hub(store) as hub, hub.session("x") as s:
            assert s.effects() == []
            s.run("echo ho > f")
            assert s.run("cat f").stdout == "ho\n"
            s.commit()
            hub.verify()

    def test_session_without_a_workspace_refuses_inplace_files_and_unknown_engines(
        self, hub: Hub
    ) -> None:
        with pytest.raises(Invalid) as caught:
            hub.session("x", files="inplace")
        assert caught.value.kind == "bad_workspace"
        with pytest.raises((Invalid, Unsupported)):
            hub.session("x", engine="none")
        assert hub.sessions() == []

    def test_workspace_gets_another_name_than_an_existing_session(
        self, hub: Hub, work: Path
    ) -> None:
        with hub.session("proj") as s:
            assert hub.workspace(work).name == "proj-2"
            s.run("echo mine > f")
            assert not (work / "f").exists()

    def test_session_machine_is_refused_if_a_workspace_took_its_name(
        self, hub: Hub, work: Path
    ) -> None:
        with hub.session("x") as s:
            hub.workspace(work, name="x")
            with pytest.raises(Conflict) as caught:
                s.run("true")
            assert caught.value.kind == "name_taken"
