"""When a session commits by itself."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fixtures.stores import Open

from ortet.errors import Invalid, Unavailable
from ortet.hub.hub import Hub
from ortet.sessions.history.navigation import Navigation
from ortet.sessions.session import Session
from ortet.sessions.writing import auto_commit
from ortet.sessions.writing.auto_commit import CommitPolicy, UncommittedWork, add_event, is_due
from ortet.testing.clock import ManualClock

SECOND = 10**9
MINUTE = 60 * SECOND


@pytest.fixture
def hub(opened: Open, clock: ManualClock) -> Hub:
    """A hub whose clock the test moves."""
    return opened(clock=clock)


def commits(hub: Hub, s: Session) -> list[str]:
    return [c.message for c in reversed(hub.log(s.internals.row.branch))] if s.head else []


class TestDecision:
    @pytest.mark.parametrize(
        ("policy", "tally", "now", "due"),
        [
            (CommitPolicy(), UncommittedWork(1, 9, 9, 9 * MINUTE), 9 * MINUTE, False),
            (CommitPolicy("action"), UncommittedWork(1, 0, 3, 5), 9, False),
            (CommitPolicy("action"), UncommittedWork(1, 1), 9, True),
            (CommitPolicy("milestone"), UncommittedWork(1, 5), 9, False),
            (CommitPolicy("milestone"), UncommittedWork(1, 0, 1), 9, True),
            (CommitPolicy("minutes", 5), UncommittedWork(1), 5 * MINUTE, False),
            (CommitPolicy("minutes", 5), UncommittedWork(1), 5 * MINUTE + 1, True),
            (CommitPolicy("minutes", 5), UncommittedWork(), 9 * MINUTE, False),
            (CommitPolicy("cost", 3), UncommittedWork(1, work=6 * SECOND), 9, False),
            (CommitPolicy("cost", 3), UncommittedWork(1, work=6 * SECOND + 1), 9, True),
        ],
    )
    def test_commit_policy_is_due_according_to_the_table(
        self, policy: CommitPolicy, tally: UncommittedWork, now: int, due: bool
    ) -> None:
        assert is_due(policy, tally, now, 2 * SECOND) is due

    def test_time_spent_waiting_for_a_person_does_not_count_as_work(self) -> None:
        tally = add_event(UncommittedWork(), "message", {"role": "user"}, 100, 0)
        assert tally.work == 0
        tally = add_event(tally, "message", {"role": "assistant"}, 130, 100)
        tally = add_event(tally, "answer", {}, 1000, 130)
        assert (tally.work, tally.since) == (30, 100)
        assert add_event(tally, "note", {}, 900, 1000).work == 30  # the clock went back

    @pytest.mark.parametrize(
        "wrong", ["often", {"minutes": 0}, {"minutes": True}, {"hours": 1}, {}, 5, {"cost": "x"}]
    )
    def test_unknown_commit_policy_is_refused_and_makes_no_session(
        self, hub: Hub, wrong: Any
    ) -> None:
        with pytest.raises(Invalid) as caught:
            hub.session("s", commit=wrong)
        assert caught.value.kind == "bad_policy"
        assert hub.sessions() == []

    def test_cost_policy_uses_the_measured_duration_of_recent_commits(self) -> None:
        pace = auto_commit.AutoCommit(CommitPolicy("cost", 1), 0)
        pace.committed(0, 4)
        pace.committed(0, 8)
        pace.count_event("note", {}, 6)
        assert not pace.is_due(6)
        pace.count_event("note", {}, 7)
        assert pace.is_due(7)


class TestSession:
    def test_session_without_a_commit_policy_commits_only_on_request(self, hub: Hub) -> None:
        with hub.session("s") as s:
            s.act(len, "abc")
            s.decide("x")
        assert commits(hub, s) == []

    def test_action_policy_commits_after_every_action(self, hub: Hub) -> None:
        with hub.session("s", commit="action") as s:
            s.say("user", "hi")
            assert commits(hub, s) == []
            s.act(len, "abc")
            with pytest.raises(ZeroDivisionError):
                s.act(divmod, 1, 0)
            assert commits(hub, s) == ["by policy: action"] * 2
            s.say("assistant", "done")
        assert len(commits(hub, s)) == 2

    def test_policy_commit_waits_until_the_action_has_ended(self, hub: Hub) -> None:
        with hub.session("s", commit="milestone") as s:

            def work() -> None:
                s.decide("inside")
                assert commits(hub, s) == []

            s.act(work)
            assert len(commits(hub, s)) == 1

    def test_milestone_policy_commits_after_steps_and_decisions(self, hub: Hub) -> None:
        with hub.session("s", commit="milestone") as s:
            s.plan(["one", "two"])
            s.act(len, "abc")
            assert commits(hub, s) == []
            s.advance()
            s.decide("left")
            assert len(commits(hub, s)) == 2

    def test_minutes_policy_commits_after_the_given_time_and_at_the_end(
        self, hub: Hub, clock: ManualClock
    ) -> None:
        with hub.session("s", commit={"minutes": 5}) as s:
            s.think("one")
            clock.advance(4 * MINUTE)
            s.think("two")
            assert commits(hub, s) == []
            clock.advance(MINUTE)
            s.think("three")
            assert len(commits(hub, s)) == 1
            clock.advance(MINUTE)
            s.think("four")
        assert len(commits(hub, s)) == 2  # a session that is let go leaves nothing behind

    def test_cost_policy_commits_after_work_in_proportion_to_commit_time(
        self, hub: Hub, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        recorded = Navigation._record

        def slowly(self: Navigation, message: str) -> Any:
            clock.advance(2 * SECOND)
            return recorded(self, message)

        monkeypatch.setattr(Navigation, "_record", slowly)
        with hub.session("s", commit={"cost": 3.0}) as s:
            s.commit("measured")
            s.act(clock.advance, 6 * SECOND)
            assert len(commits(hub, s)) == 1
            clock.advance(MINUTE)
            s.say("user", "I was away")
            assert len(commits(hub, s)) == 1
            s.act(clock.advance, 1)
            assert len(commits(hub, s)) == 2

    def test_uncommitted_events_of_an_earlier_process_count_for_the_policy(
        self, hub: Hub, clock: ManualClock
    ) -> None:
        with hub.session("s") as s:
            s.think("one")
        clock.advance(6 * MINUTE)
        with hub.session("s", commit={"minutes": 5}) as s:
            s.think("two")
            assert len(commits(hub, s)) == 1

    def test_a_commit_that_fails_is_told_and_tried_again(
        self, hub: Hub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(self: Navigation, message: str) -> Any:
            raise Unavailable("no_space", "the disk is full: make room")

        with hub.session("s", commit="action") as s:
            with monkeypatch.context() as broken:
                broken.setattr(Navigation, "_record", full)
                assert s.act(len, "abc") == 3
            (warning,) = [e.data for e in s.events() if e.kind == "warning"]
            assert (warning["what"], warning["kind"]) == ("commit", "no_space")
            s.act(len, "abc")
            assert len(commits(hub, s)) == 1

    def test_forks_keep_the_commit_policy(self, hub: Hub) -> None:
        with hub.session("s", commit="action") as s:
            (fork,) = s.fork()
            fork.act(len, "abc")
            assert commits(hub, fork)[-1] == "by policy: action"


class TestProfiles:
    def test_a_session_keeps_its_profile(self, hub: Hub) -> None:
        with hub.session("s", profile="enterprise") as s:
            assert (s.internals.profile.durability, s.internals.profile.commit.when) == (
                "event",
                "action",
            )
        with hub.session("s") as s:
            assert s.internals.profile.name == "enterprise"
            s.act(len, "abc")
            assert len(commits(hub, s)) == 1
        with hub.session("s", profile="worker") as s:
            assert s.internals.profile.commit == CommitPolicy("cost", 3.0)
        assert hub.sessions()[0].profile == "worker"

    def test_explicit_options_override_the_profile(self, hub: Hub) -> None:
        with hub.session("s", profile="enterprise", commit="manual", durability="group") as s:
            assert (s.internals.profile.commit.when, s.internals.profile.durability) == (
                "manual",
                "group",
            )

    def test_notes_expire_after_a_day_in_the_assistant_profile(
        self, hub: Hub, clock: ManualClock
    ) -> None:
        with hub.session("s", profile="assistant") as s:
            s.note("usual", 1)
            s.note("short", 2, ttl=60)
            clock.advance(2 * MINUTE)
            assert s.conversation.notes() == {"usual": 1}
            clock.advance(24 * 60 * MINUTE)
            assert s.conversation.notes() == {}

    def test_unknown_profile_or_durability_is_refused(self, hub: Hub) -> None:
        with pytest.raises(Invalid) as caught:
            hub.session("s", profile="boss")
        assert caught.value.kind == "bad_profile"
        with pytest.raises(Invalid):
            hub.session("s", durability="never")  # type: ignore[arg-type]
        assert hub.sessions() == []
