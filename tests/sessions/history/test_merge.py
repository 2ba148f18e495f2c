"""Sessions brought together: merge and adopt, minds and files under one hash."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fixtures import forked

from ortet.config.environment import open_hub
from ortet.errors import Conflict, Invalid, NotFound
from ortet.hub.hub import Hub
from ortet.sessions.session import Session

ENGINES = ["folder", "overlay"]
POINTS = ["merge.made:kill", "commit.before-flush:kill:3", "restore.after-thaw:kill"]


def said(session: Session) -> list[str]:
    return [message.content for message in session.messages()]


def known(session: Session) -> set[str]:
    return {fact.text for fact in session.facts()}


@pytest.fixture(params=ENGINES)
def s(request: pytest.FixtureRequest, hub: Hub, work: Path) -> Session:
    """With files that are its own directory; its forks use this engine."""
    files = "inplace" if request.param == "folder" else "private"
    session = hub.session("fix", workspace=work, engine=request.param, files=files)  # type: ignore[arg-type]
    session.say("user", "make it four")
    session.plan(["look", "do"])
    session.learn("the file is a.txt", about="place")
    return session


class TestMerge:
    def test_merge_makes_one_commit_of_state_and_files_of_both(self, hub: Hub, s: Session) -> None:
        (kid,) = s.fork()
        kid.say("assistant", "only the kid heard this")
        kid.run("echo four >> a.txt; echo new > b.txt")
        kid.learn("four is enough")
        kid.lesson("five was too many")
        kid.decide("append", why="short", instead_of=["rewrite"])
        kid.artifact("report.md", data="all well")
        kid.spend(tokens=10)
        s.say("assistant", "ours goes on")
        s.run("echo mine > c.txt")
        s.spend(tokens=5)
        report = s.merge(kid)
        assert [fact.text for fact in report.facts] == ["four is enough"]
        assert [fact.text for fact in report.lessons] == ["five was too many"]
        assert [decision.text for decision in report.decisions] == ["append"]
        assert [made.name for made in report.artifacts] == ["report.md"]
        assert report.contradictions == []
        assert report.commit.parents[1] == kid.head.oid  # type: ignore[union-attr]
        assert s.head == report.commit == s.commit()
        assert said(s) == ["make it four", "ours goes on"]
        assert (s.steps, s.step) == (["look", "do"], 0)
        assert known(s) == {"the file is a.txt", "four is enough", "five was too many"}
        assert s.artifact_store.artifact_data("report.md") == b"all well"
        assert (s.machine.path / "b.txt").read_text() == "new\n"
        assert (s.machine.path / "c.txt").read_text() == "mine\n"
        assert (s.machine.path / "a.txt").read_text() == "one\ntwo\nthree\nfour\n"
        assert s.accounting.spent()["tokens"] == 15
        assert s.internals.state.core.spent["tokens"] == 15
        (event,) = [event for event in s.events() if event.kind == "merge"]
        assert (event.data["session"], event.data["commit"]) == (kid.id, report.commit.parents[1])
        assert event.data["episode"].startswith("step 0 of 2; learned: four is enough")
        hub.verify()

    def test_merging_the_same_fork_twice_brings_only_new_facts(self, s: Session) -> None:
        (kid,) = s.fork()
        kid.learn("x")
        kid.spend(usd=1)
        first = s.merge(kid)
        again = s.merge(kid)
        assert (again.up_to_date, again.commit) == (True, first.commit)
        kid.learn("y")
        kid.spend(usd=1)
        assert [fact.text for fact in s.merge(kid).facts] == ["y"]
        assert s.accounting.spent()["usd"] == s.internals.state.core.spent["usd"] == 2

    def test_a_conflict_changes_nothing(self, s: Session) -> None:
        (kid,) = s.fork()
        kid.run("echo theirs > a.txt")
        kid.learn("x")
        s.run("echo ours > a.txt")
        with pytest.raises(Conflict) as caught:
            s.merge(kid)
        assert caught.value.kind == "merge_conflict"
        assert [one["path"] for one in caught.value.details["conflicts"]] == ["a.txt"]
        assert known(s) == {"the file is a.txt"}
        assert (s.machine.path / "a.txt").read_text() == "ours\n"
        s.say("user", "it still works")
        report = s.merge(kid, favor="theirs", message="theirs is better")
        assert (s.machine.path / "a.txt").read_text() == "theirs\n"
        assert [one.settled for one in report.conflicts] == [True]
        assert (report.commit.message, said(s)[-1]) == ("theirs is better", "it still works")

    def test_merge_can_be_undone_and_redone_by_restore(self, s: Session) -> None:
        (kid,) = s.fork()
        kid.learn("x")
        kid.run("echo new > b.txt")
        s.say("user", "mine")
        before = s.commit()
        after = s.merge(kid).commit
        s.restore(before.oid)
        assert known(s) == {"the file is a.txt"}
        assert not (s.machine.path / "b.txt").exists()
        s.restore(after.oid)
        assert known(s) == {"the file is a.txt", "x"}
        assert s.commit() == after
        s.say("user", "on we go")
        assert said(s) == ["make it four", "mine", "on we go"]


class TestMinds:
    def test_merge_reports_contradicting_facts_and_keeps_both(self, hub: Hub) -> None:
        with hub.session("s") as s:
            s.learn("the port is 1", about="port")
            (kid,) = s.fork()
            kid.learn("the port is 3", about="port")
            kid.learn("blue", about="colour")
            s.learn("the port is 2", about="port")
            s.learn("green", about="taste")
            report = s.merge(kid)
            (one,) = report.contradictions
            assert (one.about, one.ours.text) == ("port", "the port is 2")
            assert one.theirs.text == "the port is 3"
            assert known(s) >= {"the port is 1", "the port is 2", "the port is 3"}
            event = next(event for event in s.events() if event.kind == "merge")
            assert event.data["contradictions"] == [
                {"about": "port", "ours": one.ours.id, "theirs": one.theirs.id}
            ]

    def test_what_was_forgotten_here_stays_forgotten(self, hub: Hub) -> None:
        with hub.session("s") as s:
            old, other = s.learn("old"), s.learn("other")
            (kid,) = s.fork()
            s.forget(old)
            kid.forget(other)
            kid.learn("said twice")
            s.learn("said  twice")
            report = s.merge(kid)
            assert report.facts == []
            assert known(s) == {"other", "said  twice"}

    def test_merged_artifacts_become_the_next_versions(self, hub: Hub) -> None:
        with hub.session("s") as s:
            s.artifact("a", data="1")
            (kid,) = s.fork()
            s.artifact("a", data="ours")
            kid.artifact("a", data="theirs")
            kid.artifact("b", data="b")
            report = s.merge(kid)
            assert [(one.name, one.version) for one in report.artifacts] == [("a", 3), ("b", 1)]
            assert s.artifact_store.artifact_data("a", 2) == b"ours"
            assert s.artifact_store.artifact_data("a") == b"theirs"
            kid.finish()
            hub.sweep()
            assert s.artifact_store.artifact_data("a") == b"theirs"

    def test_merge_accepts_a_branch_a_commit_or_a_read_only_view(self, hub: Hub) -> None:
        with hub.session("s") as s:
            s.say("user", "hi")
            one, two, three = s.fork(3)
            one.learn("1")
            two.learn("2")
            three.learn("3")
            three.pause()  # what it has not committed is committed now
            assert [f.text for f in s.merge(two.internals.row.branch).facts] == ["2"]
            assert [f.text for f in s.merge(one.commit().oid).facts] == ["1"]
            assert [f.text for f in s.merge(hub.get(three.id)).facts] == ["3"]
            assert known(s) == {"1", "2", "3"}
            assert hub.get(three.id).status == "paused"

    def test_merge_of_an_unrelated_session_adds_its_facts_and_spending(self, hub: Hub) -> None:
        with hub.session("s") as s, hub.session("t") as t:
            s.spend(usd=1)
            t.learn("x")
            t.spend(usd=2)
            assert [f.text for f in s.merge(t).facts] == ["x"]
            assert s.accounting.spent() == {"usd": 3}
            assert [(line.name, line.amounts) for line in hub.bill(by="agent")] == [
                ("default", {"usd": 3})
            ]

    def test_merge_with_a_bad_reference_is_refused(
        self, hub: Hub, opened: Callable[..., Hub], tmp_path: Path
    ) -> None:
        elsewhere = opened(tmp_path / "other").session("s")
        with hub.session("s") as s:
            s.say("user", "hi")
            s.commit()
            for bad, kind in ((s, "bad_ref"), (3, "bad_ref"), (elsewhere, "other_store")):
                with pytest.raises(Invalid) as caught:
                    s.merge(bad)  # type: ignore[arg-type]
                assert caught.value.kind == kind
            with pytest.raises(NotFound):
                s.merge("nothing-of-this-name")
            with pytest.raises(Invalid):
                s.merge("HEAD", favor="nobody")  # type: ignore[arg-type]
            assert s.merge("HEAD").up_to_date

    def test_merged_session_continues_in_the_next_process(self, store: Path) -> None:
        with open_hub(store) as hub, hub.session("s") as s:
            s.say("user", "one")
            (kid,) = s.fork()
            kid.learn("x")
            s.merge(kid)
            s.say("user", "two")
        with open_hub(store) as hub, hub.session("s") as s:
            assert (said(s), known(s)) == (["one", "two"], {"x"})
            s.commit()
            assert hub.audit(s.id).events == len(list(s.events()))
            hub.verify()

    @pytest.mark.parametrize("point", POINTS)
    def test_merge_killed_at_any_point_can_be_retried(
        self, store: Path, work: Path, point: str
    ) -> None:
        script = (
            "import sys; from ortet.config.environment import open_hub\n"
            "hub = open_hub(sys.argv[1]); s = hub.session('s', workspace=sys.argv[2])\n"
            "s.say('user', 'one'); (kid,) = s.fork(); kid.learn('x')\n"
            "kid.run('echo new > b.txt'); s.merge(kid)\n"
        )
        run = forked.run(
            [sys.executable, "-c", script, store, work],
            capture_output=True,
            check=False,
            env={**os.environ, "ORTET_FAULT": point},
        )
        assert run.returncode == -9, run.stderr
        with open_hub(store) as hub, hub.session("s") as s:
            assert (said(s), known(s)) == (["one"], set())
            if "thaw" not in point:  # else the files are there, as an uncommitted change
                assert not (work / "b.txt").exists()
            s.merge("s/1")
            assert known(s) == {"x"}
            assert (work / "b.txt").read_text() == "new\n"
            hub.verify()


class TestAdopt:
    def test_adopt_replaces_state_and_files_and_keeps_effects_done(self, s: Session) -> None:
        (kid,) = s.fork()
        kid.say("assistant", "done")
        kid.run("echo kid > a.txt")
        s.say("assistant", "given up")
        s.run("echo ours > a.txt")
        s.act(lambda: 1, name="pay", key="k")
        report = s.adopt(kid)
        assert report.to == kid.head.oid == s.head.oid  # type: ignore[union-attr]
        assert said(s) == ["make it four", "done"]
        assert (s.machine.path / "a.txt").read_text() == "kid\n"
        assert "pay" in [deed.name for deed in report.deeds]
        assert s.act(lambda: 2, name="pay", key="k") == 1
        s.say("user", "on")
        kid.say("user", "elsewhere")
        assert said(s)[-1] == "on"
        s.restore(f"{s.internals.row.branch}@{{1}}")
        assert said(s) == ["make it four", "given up"]
        assert (s.machine.path / "a.txt").read_text() == "ours\n"

    def test_adopt_of_a_fork_without_files_keeps_our_files(self, s: Session) -> None:
        (kid,) = s.fork(machine=False)
        kid.say("assistant", "thought about it")
        s.run("echo ours > a.txt")
        s.adopt(kid)
        assert said(s) == ["make it four", "thought about it"]
        assert (s.machine.path / "a.txt").read_text() == "ours\n"

    def test_land_after_adopt_or_from_the_fork_writes_the_directory(
        self, hub: Hub, s: Session, work: Path
    ) -> None:
        (kid,) = s.fork()
        kid.run("echo kid > a.txt")
        if s.machine.row.files == "private":
            s.adopt(kid)
            s.land()
        else:
            kid.land()
        assert (work / "a.txt").read_text() == "kid\n"
        hub.verify()
