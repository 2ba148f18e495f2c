"""Replay: what was recorded is told again and nothing is done; the first difference is shown."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures import forked

from ortet.config.environment import open_hub
from ortet.errors import (
    Conflict,
    Diverged,
    Invalid,
    NotFound,
    RecordedFailure,
    Refused,
    Unsettled,
    Unsupported,
)
from ortet.hub.hub import Hub
from ortet.journal.event_chain import EventChain
from ortet.journal.events import Tip
from ortet.sessions.session import Session


class World:
    """Counts what is done to it."""

    def __init__(self) -> None:
        self.done: list[Any] = []

    def search(self, what: str) -> dict[str, Any]:
        self.done.append(what)
        return {"hits": [what, len(self.done)]}

    def fail(self, error: BaseException) -> None:
        self.done.append("fail")
        raise error


def program(s: Session, world: World, *words: str) -> list[Any]:
    s.say("user", "find them")
    s.plan(["search", "tell"])
    found = []
    for word in words:
        found.append(s.act(world.search, word, name="search", why="told to"))
        s.spend(tokens=len(world.done))
    fact = s.learn(f"{len(words)} found")
    s.advance()
    s.note("fact", fact, ttl=60)
    s.say("assistant", str(found))
    return found


def everything(hub: Hub, session: str) -> list[tuple[int, str, bytes]]:
    return [(event.seq, event.kind, event.hash) for event in hub.get(session).events()]


def count_deeds(hub: Hub, session: str) -> int:
    return len(hub.get(session).effects())


class TestStrict:
    def test_strict_replay_returns_recorded_results_and_runs_nothing(self, hub: Hub) -> None:
        world = World()
        with hub.session("s", goal="g") as s:
            first = program(s, world, "a", "b", "a")
            s.commit("done")
        before, deeds = everything(hub, s.id), count_deeds(hub, s.id)
        with hub.session("s", replay=True) as s:
            assert (s.goal, s.messages(), s.facts(), s.step) == ("g", [], [], 0)
            assert program(s, world, "a", "b", "a") == first
            assert s.step == 1
            assert [m.content for m in s.messages()] == ["find them", str(first)]
            assert s.conversation.notes()["fact"] == s.facts()[0].id
            assert s.commit("again") == s.head
        assert len(world.done) == 3
        assert everything(hub, s.id) == before
        assert count_deeds(hub, s.id) == deeds
        with hub.session("s") as s:  # it can be gone on with
            s.say("user", "next")

    def test_the_first_difference_is_shown(self, hub: Hub) -> None:
        world = World()
        with hub.session("s") as s:
            program(s, world, "a", "b")
        with hub.session("s", replay=True) as s, pytest.raises(Diverged) as caught:
            program(s, world, "a", "c")
        details = caught.value.details
        assert details["expected"]["data"]["args"] == ["b"]
        assert details["got"]["data"]["args"] == ["c"]
        wanted = [e.seq for e in hub.get(s.id).events() if e.kind == "begun"][1]
        assert details["seq"] == wanted
        assert "search('b')" in str(caught.value)
        assert "search('c')" in str(caught.value)
        assert len(world.done) == 2

    @pytest.mark.parametrize(
        "step",
        [
            lambda s: s.say("user", "something else"),
            lambda s: s.act(len, "x"),
            lambda s: s.learn("new"),
        ],
    )
    def test_strict_replay_of_an_unrecorded_step_diverges(
        self, hub: Hub, step: Callable[[Session], Any]
    ) -> None:
        with hub.session("s") as s:
            s.say("user", "one")
        before = everything(hub, s.id)
        with hub.session("s", replay=True) as s:
            s.say("user", "one")
            with pytest.raises(Diverged) as caught:
                step(s)
            assert caught.value.details["expected"] is None
        assert everything(hub, s.id) == before

    @pytest.mark.parametrize(
        ("error", "again"),
        [
            (ZeroDivisionError("by zero"), ZeroDivisionError),
            (NotFound("no_page", "nothing there"), NotFound),
            (subprocess.TimeoutExpired("x", 3), RecordedFailure),
            (UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"), RecordedFailure),
        ],
    )
    def test_replay_raises_recorded_failures_again(
        self, hub: Hub, error: Exception, again: type[Exception]
    ) -> None:
        world = World()
        with hub.session("s") as s, pytest.raises(type(error)):
            s.act(world.fail, error, name="fail")
        with hub.session("s", replay=True) as s, pytest.raises(again) as caught:
            s.act(world.fail, error, name="fail")
        assert str(error) in str(caught.value)
        if isinstance(caught.value, NotFound):
            assert caught.value.kind == "no_page"
        assert world.done == ["fail"]

    def test_pure_actions_may_run(self, hub: Hub) -> None:
        with hub.session("s") as s:
            s.act(len, "abc", replay="pure")
        with hub.session("s", replay=True) as s:
            assert s.act(len, "abc", replay="pure") == 3
            assert s.act(len, "abcd", replay="pure") == 4

    def test_a_key_that_was_used_before_is_known(self, hub: Hub) -> None:
        world = World()
        with hub.session("s") as s:
            first = s.act(world.search, "a", key="k")
            assert s.act(world.search, "a", key="k") == first
        with hub.session("s", replay=True) as s:
            assert s.act(world.search, "a", key="k") == first
            assert s.act(world.search, "a", key="k") == first
        assert world.done == ["a"]

    def test_replay_of_a_result_recorded_as_text_only_is_unsupported(self, hub: Hub) -> None:
        with hub.session("s") as s:
            s.act(object)
        with hub.session("s", replay=True) as s, pytest.raises(Unsupported):
            s.act(object)

    def test_closed_sessions_can_be_replayed(self, hub: Hub) -> None:
        s = hub.session("s")
        s.act(len, "x")
        s.finish()
        with hub.session("s", replay=True) as s:
            assert s.act(len, "x") == 1
        assert hub.get(s.id).status == "closed"
        with pytest.raises(Conflict):
            hub.session("s", replay="live")

    def test_strict_replay_refuses_every_change(self, hub: Hub) -> None:
        with hub.session("s") as s:
            s.say("user", "x")
            head = s.commit()
        with hub.session("s", replay=True) as s:
            for verb in (
                s.fork,
                s.rewind,
                lambda: s.restore(head.oid),
                lambda: s.actions.settle("x"),
                lambda: s.machine,
            ):
                with pytest.raises((Refused, NotFound)):
                    verb()
            hub.comment(s.id, "waits")
        assert [event.waiting for event in hub.get(s.id).conversation.comments()] == [True]

    def test_replay_of_an_unknown_session_or_mode_is_refused(self, hub: Hub) -> None:
        with pytest.raises(NotFound):
            hub.session("nope", replay=True)
        with pytest.raises(Invalid):
            hub.session("s", replay="dead")  # type: ignore[arg-type]

    def test_commands_are_not_run(self, hub: Hub, tmp_path: Path) -> None:
        work = tmp_path / "work"
        work.mkdir()
        with hub.session("s", workspace=work) as s:
            s.run("echo hi; echo x >> log")
        with hub.session("s", replay=True) as s:
            result = s.run("echo hi; echo x >> log")
            assert (result.exit_code, result.stdout) == (0, "hi\n")
        assert (work / "log").read_text() == "x\n"


class TestLive:
    def test_live_replay_continues_on_a_new_timeline_from_the_first_difference(
        self, hub: Hub
    ) -> None:
        world = World()
        with hub.session("s") as s:
            program(s, world, "a", "b")
            old = s.commit("first run")
        before, line = everything(hub, s.id), hub.get(s.id).internals.row.timeline
        with hub.session("s", replay="live") as s:
            assert s.internals.row.timeline == line
            program(s, world, "a", "c")
            assert s.internals.row.timeline != line
            assert [f.text for f in s.facts()] == ["2 found"]
            assert len(s.messages()) == 2
            now = [e.data["args"] for e in s.events() if e.kind == "begun"]
            assert now == [["a"], ["c"]]
            EventChain(hub.objects.hasher, os.urandom).check(Tip(), s.internals.event_log.rows())
            s.commit("second run")
            s.restore(old.oid)
            assert everything(hub, s.id)[: len(before) - 1] == before[:-1]
        assert world.done == ["a", "b", "c"]
        hub.verify()

    def test_live_replay_commits_uncommitted_events_before_it_diverges(self, hub: Hub) -> None:
        with hub.session("s") as s:
            s.act(len, "a")
            s.say("user", "never committed")
        with hub.session("s", replay="live") as s:
            s.act(len, "b")
            assert s.messages() == []
            kept = [
                c
                for c in hub.log(f"{s.internals.row.branch}@{{1}}")
                if c.message == "before replay"
            ]
            s.restore(kept[0].oid)
            assert [m.content for m in s.messages()] == ["never committed"]

    def test_live_replay_after_the_last_recorded_step_continues_the_same_timeline(
        self, hub: Hub
    ) -> None:
        world = World()
        with hub.session("s") as s:
            s.act(world.search, "a")
        line = hub.get(s.id).internals.row.timeline
        with hub.session("s", replay="live") as s:
            s.act(world.search, "a")
            hub.comment(s.id, "go on")
            s.act(world.search, "b")
            assert s.internals.row.timeline == line
            assert [event.waiting for event in s.conversation.comments()] == [False]
            assert s.status == "active"
        assert world.done == ["a", "b"]

    def test_live_replay_of_a_new_session_name_starts_a_session(self, hub: Hub) -> None:
        with hub.session("new", replay="live") as s:
            s.act(len, "a")
        assert count_deeds(hub, s.id) == 1

    def test_live_replay_of_a_killed_effect_is_unsettled(self, store: Path) -> None:
        code = f"""
import ortet, os
s = ortet.open({str(store)!r}).session("s")
s.act(len, "a")
s.act(lambda _, b: os.kill(os.getpid(), b), 7, 9, name="pay")
"""
        assert forked.run([sys.executable, "-c", code], check=False).returncode == -9
        with open_hub(store) as hub, hub.session("s", replay="live") as s:
            assert s.act(len, "a") == 1
            with pytest.raises(Unsettled) as caught:
                s.act(lambda _a, _b: 1, 7, 9, name="pay")
            s.actions.settle(caught.value.details["id"], "paid")
            assert [e.state for e in s.effects()] == ["done", "done"]
            s.act(len, "bc")
            assert len([e for e in s.events() if e.kind == "begun"]) == 3

    def test_live_replay_restores_files_to_the_point_of_difference(
        self, hub: Hub, tmp_path: Path
    ) -> None:
        work = tmp_path / "work"
        work.mkdir()
        with hub.session("s", workspace=work) as s:
            s.run("echo 1 > a")
            s.commit()
            s.run("echo 2 > a")
            s.commit()
        with hub.session("s", replay="live") as s:
            s.run("echo 1 > a")
            s.run("echo 3 >> a")
            assert (work / "a").read_text() == "1\n3\n"

    @pytest.mark.parametrize("point", ["commit.before-flush", "journal.before-append"])
    def test_live_replay_killed_at_the_difference_can_be_retried(
        self, store: Path, point: str
    ) -> None:
        world = World()
        with open_hub(store) as hub, hub.session("s") as s:
            program(s, world, "a", "b")
        code = f"import ortet\ns = ortet.open({str(store)!r}).session('s', replay='live')\n"
        code += "s.say('user', 'find them'); s.say('user', 'other')"
        env = {**os.environ, "ORTET_FAULT": f"{point}:kill"}
        assert forked.run([sys.executable, "-c", code], env=env, check=False).returncode == -9
        with open_hub(store) as hub:
            with hub.session("s", replay="live") as s:
                s.say("user", "find them")
                s.say("user", "other")
                assert [m.content for m in s.messages()] == ["find them", "other"]
            hub.verify()


class TestAround:
    """What other parts of a session do while it is replayed."""

    def test_replay_does_not_spend_recorded_amounts_again(self, hub: Hub) -> None:
        def work(s: Session) -> None:
            s.spend(usd=3.0)
            s.accounting.model_call("p", "m", usage={"input_tokens": 5}, request="q", response="r")
            s.artifact("report", data="text")
            s.act(len, "x")

        with hub.session("s", budget={"usd": 5.0, "seconds": 1000}) as s:
            work(s)
            left = s.accounting.budget_left()["usd"]
        before = everything(hub, s.id)
        with hub.session("s", replay=True) as s:
            work(s)
            assert s.accounting.spent()["usd"] == 3.0
        assert everything(hub, s.id) == before
        with hub.session("s", replay="live") as s:
            work(s)
            s.spend(usd=1.0)
            assert s.accounting.budget_left()["usd"] == left - 1.0
            assert s.accounting.spent()["usd"] == 4.0

    def test_a_spent_budget_stops_it_when_it_goes_live(self, hub: Hub) -> None:
        with hub.session("s", budget={"usd": 1.0}) as s:
            s.act(len, "x")
            s.spend(usd=1.0)
        with hub.session("s", replay="live") as s:
            assert s.act(len, "x") == 1
            s.spend(usd=1.0)
            with pytest.raises(Refused) as caught:
                s.act(len, "y")
            assert caught.value.kind == "budget_spent"

    def test_replay_skips_events_recorded_inside_an_action(self, hub: Hub) -> None:
        def body(s: Session) -> int:
            s.say("user", "inside")
            return 1

        def work(s: Session) -> None:
            s.act(lambda: body(s), name="body")
            s.say("user", "inside")

        with hub.session("s") as s:
            work(s)
        line = s.internals.row.timeline
        with hub.session("s", replay="live") as s:
            work(s)
            s.say("user", "after")
            assert s.internals.row.timeline == line
            assert [m.content for m in s.messages()] == ["inside", "inside", "after"]

    def test_an_approval_is_not_asked_for_again(self, hub: Hub) -> None:
        with hub.session("s") as s:
            with pytest.raises(Refused) as caught:
                s.act(len, "x", approve="look")
            hub.approve(s.id, caught.value.details["id"])
            s.act(len, "x", approve="look")
        with hub.session("s", replay=True) as s:
            assert s.act(len, "x", approve="look") == 1
            assert [a.state for a in s.actions.approvals()] == ["given"]

    def test_replay_of_a_pending_approval_is_still_pending(self, hub: Hub) -> None:
        """Failed before: it diverged where nothing was different."""
        with hub.session("s") as s:
            s.say("user", "go")
            with pytest.raises(Refused) as caught:
                s.act(len, "x", approve="look")
        asked = caught.value.details["id"]
        for answer in (None, True):
            if answer is not None:
                hub.approve(s.id, asked)
            with hub.session("s", replay=True) as s:
                s.say("user", "go")
                with pytest.raises(Refused) as caught:
                    s.act(len, "x", approve="look")
                assert caught.value.kind == "approval_pending"
                assert caught.value.details["id"] == asked
                with pytest.raises(Diverged):
                    s.act(len, "xy", approve="look")
        with hub.session("s", replay="live") as s:
            s.say("user", "go")
            assert s.act(len, "x", approve="look") == 1
        assert len(hub.get("s").actions.approvals()) == 1

    def test_what_was_denied_is_denied_again(self, hub: Hub) -> None:
        with hub.session("s") as s:
            with pytest.raises(Refused) as caught:
                s.act(len, "x", approve="look")
            hub.approve(s.id, caught.value.details["id"], ok=False)
            with pytest.raises(Refused):
                s.act(len, "x", approve="look")
            s.say("user", "then not")
        with hub.session("s", replay=True) as s:
            with pytest.raises(Refused) as caught:
                s.act(len, "x", approve="look")
            assert caught.value.kind in ("approval_pending", "approval_denied")
            s.say("user", "then not")
            with pytest.raises(Diverged):
                s.act(len, "x", approve="another reason")

    def test_commits_by_policy_wait_until_it_is_live(self, hub: Hub) -> None:
        with hub.session("s") as s:
            s.act(len, "x")
        with hub.session("s", replay="live", commit="action") as s:
            s.act(len, "x")
            assert s.head is None
            s.act(len, "y")
            assert s.head is not None


def test_a_replay_needs_no_lease(opened: Callable[..., Hub]) -> None:
    """Failed before: Refused, while another works on it."""
    worker, reader = opened(), opened()
    s = worker.session("s")
    s.say("user", "one")
    assert s.act(lambda: 1, name="f") == 1
    before = list(s.events())
    with reader.session("s", replay=True) as again:
        again.say("user", "one")
        s.say("user", "meanwhile")
        assert again.act(lambda: 2, name="f") == 1
        with pytest.raises(Refused):
            again.fork()
        other = again.whatif(before[1].seq, message="another")
        assert [m.content for m in other.messages()] == ["another"]
    with pytest.raises(Refused):
        reader.session("s", replay="live")
    s.say("user", "two")
    assert list(s.events())[: len(before)] == before
    assert [m.content for m in s.messages()] == ["one", "meanwhile", "two"]


class TestShared:
    def test_replay_accepts_superseding_facts_that_were_later_forgotten(self, hub: Hub) -> None:
        def work(s: Session) -> None:
            old = s.learn("port 3000", scope="agent")
            s.commit()
            new = s.learn("port 8080", scope="agent", supersedes=old)
            s.commit()
            s.forget(new)
            s.commit()

        with hub.session("s") as s:
            work(s)
        with hub.session("s", replay=True) as s:
            work(s)

    def test_live_replay_includes_the_differing_step_in_the_next_commit(self, hub: Hub) -> None:
        with hub.session("s") as s:
            s.learn("one", scope="agent")
            head = s.commit()
        with hub.session("s", replay="live") as s, hub.session("t") as t:
            s.learn("another", scope="agent")
            assert s.commit().oid != head.oid
            assert {fact.text for fact in t.facts()} == {"one", "another"}
