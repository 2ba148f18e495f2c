"""The log of effects: what its rows and events hold, and which key finds which effect."""

from __future__ import annotations

from threading import get_ident
from typing import Any

import pytest
from msgspec.structs import replace

from ortet.errors import Conflict, OrtetError, Refused, Unsettled
from ortet.hub.hub import Hub
from ortet.ids import from_hex
from ortet.journal.events import Event
from ortet.sessions.actions.actions import CallOptions, format_call
from ortet.sessions.actions.approvals import USED
from ortet.sessions.actions.effects import carried_effect_rows, error_text
from ortet.sessions.actions.ledger import EffectRow, effect_change, key_change
from ortet.sessions.conversation_state import known_effects
from ortet.sessions.history.restore_report import effects_since_commit
from ortet.sessions.session import Session


def fails() -> None:
    raise ValueError("no")


def ends(s: Any) -> list[dict[str, Any]]:
    return [event.data for event in s.events() if event.kind == "ended"]


def begins(s: Any) -> list[Event]:
    return [event for event in s.events() if event.kind == "begun"]


def deed_of(hub: Hub, s: Session) -> EffectRow:
    (deed,) = known_effects(s.internals.context)
    return deed


class TestRows:
    def test_row_says_where_in_the_journal_an_effect_began_and_ended(self, hub: Hub) -> None:
        with hub.session("s") as s:
            s.say("user", "go")
            s.act(lambda: {"n": 1}, name="one")
            begun, ended = list(s.events())[-2:]
            deed = deed_of(hub, s)
            assert (deed.effect.begun, deed.effect.ended) == (begun.seq, ended.seq)
            assert (deed.session, deed.outcome, deed.error) == (s.id, {"n": 1}, "")
            with pytest.raises(AttributeError):
                deed.session = "x"  # type: ignore[misc]

    def test_only_effects_that_a_commit_does_not_know_and_that_did_not_fail_are_listed(
        self, hub: Hub
    ) -> None:
        with hub.session("s") as s:
            points = [s.commit("nothing").oid]
            s.act(int, name="first")
            points.append(s.commit("one").oid)
            s.act(int, name="second")
            with pytest.raises(ValueError, match="no"):
                s.act(fails, name="third")
            points.append(s.commit("two").oid)
            s.actions.intend("fourth")
            s.act(int, name="here", where="workspace")
            points.append(s.commit("all").oid)
            assert [self.since(s, point) for point in points] == [
                ["first", "second", "fourth"],
                ["second", "fourth"],
                ["fourth"],
                [],
            ]

    def since(self, s: Session, point: str) -> list[str]:
        context = s.internals.context
        found = effects_since_commit(context.services, context.row, from_hex(point))
        return [effect.name for effect in found]

    def test_effects_of_forks_are_not_listed_as_done_by_their_parent(self, hub: Hub) -> None:
        with hub.session("s") as s:
            point = s.commit("before").oid
            (fork,) = s.fork(1)
            s.act(int, name="mine")
            fork.act(int, name="theirs")
            assert self.since(s, point) == ["mine"]
            assert self.since(fork, point) == ["theirs"]

    def test_effects_carried_to_another_store_are_new_rows_of_the_new_family(
        self, hub: Hub
    ) -> None:
        with hub.session("s") as s, hub.session("t") as t:
            s.act(int, name="plain")
            s.act(int, name="keyed", key="k")
            s.act(int, name="local", key="k2", scope="timeline")
            found = known_effects(s.internals.context)
            row = t.internals.row
            plain, keyed, local = (replace(one, session=t.id, ledger="L") for one in found)
            assert carried_effect_rows(row, "L", found) == [
                effect_change(plain, expect=0),
                effect_change(keyed, expect=0),
                key_change("L", "k", keyed),
                effect_change(local, expect=0),
                key_change(row.timeline, "k2", local),
            ]


class TestEnds:
    def test_ended_event_holds_only_what_is_known(self, hub: Hub) -> None:
        with hub.session("s") as s:
            s.act(lambda: None, name="nothing")
            s.act(lambda: 0, name="zero")
            with pytest.raises(ValueError, match="no"):
                s.act(fails)
            with pytest.raises(Refused):
                s.act(_refuse)
            s.actions.settle(s.actions.intend("elsewhere").effect.id, "sent")
            ids = [event.data["id"] for event in begins(s)]
            assert ends(s) == [
                {"id": ids[0], "state": "done"},
                {"id": ids[1], "state": "done", "outcome": 0},
                {"id": ids[2], "state": "failed", "error": "ValueError: no"},
                {"id": ids[3], "state": "failed", "error": "Refused: not today", "code": "closed"},
                {"id": ids[4], "state": "done", "outcome": "sent", "settled": True},
            ]

    def test_failed_settles_without_an_error_text(self, hub: Hub) -> None:
        with hub.session("s") as s:
            event = s.actions.settle(s.actions.intend("x").effect.id, failed=True)
            assert event.data["state"] == "failed"
            assert deed_of(hub, s).effect.state == "failed"

    def test_opening_a_session_again_tells_no_end_twice(self, hub: Hub) -> None:
        with hub.session("s") as s:
            s.act(int)
            with pytest.raises(ValueError, match="no"):
                s.act(fails)
        with hub.session("s") as s:
            assert [end["state"] for end in ends(s)] == ["done", "failed"]

    @pytest.mark.parametrize(
        ("outcome", "told"),
        [
            ({"n": 1}, {"state": "done", "outcome": {"n": 1}}),
            (None, {"state": "done"}),
            (ValueError("no"), {"state": "failed", "error": "ValueError: no"}),
        ],
    )
    def test_fork_made_inside_an_action_is_told_its_end_when_it_is_opened(
        self, hub: Hub, outcome: Any, told: dict[str, Any]
    ) -> None:
        def work() -> Any:
            s.fork(1)[0].pause()
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        with hub.session("s") as s:
            if isinstance(outcome, Exception):
                with pytest.raises(ValueError, match="no"):
                    s.act(work)
            else:
                s.act(work)
            deed = deed_of(hub, s)
            with hub.session("s/1") as fork:
                assert ends(fork) == [{"id": deed.effect.id, "synthetic": True, **told}]
            assert deed_of(hub, s) == deed

    def test_fork_opened_while_the_action_runs_sees_it_unsettled_and_changes_no_row(
        self, hub: Hub
    ) -> None:
        seen: list[dict[str, Any]] = []

        def work() -> None:
            s.fork(1)[0].pause()
            with hub.session("s/1") as fork:
                seen.extend(ends(fork))
            assert deed_of(hub, s).effect.state == "begun"

        with hub.session("s") as s:
            s.act(work)
            deed = deed_of(hub, s)
            assert deed.effect.state == "done"
            assert seen == [{"id": deed.effect.id, "state": "unsettled", "synthetic": True}]


def _refuse() -> None:
    raise Refused("closed", "not today")


class TestKeys:
    """Which effect a key of scope "timeline" finds, over restores and forks."""

    @pytest.fixture
    def s(self, hub: Hub) -> Session:
        return hub.session("s")

    def act(self, s: Session, value: int = 1, **options: Any) -> Any:
        return s.act(lambda: value, name="pay", **{"key": "k", "scope": "timeline", **options})

    def again(self, s: Session) -> None:
        """Continue on a new timeline that goes on from here."""
        before = s.internals.row.timeline
        point = s.commit("here").oid
        s.say("user", "a way that is left")
        s.restore(point)
        assert s.internals.row.timeline != before

    def test_effect_is_done_once_on_its_own_timeline(self, s: Session) -> None:
        assert self.act(s, 1) == 1
        assert self.act(s, 2) == 1

    @pytest.mark.parametrize("before", [0, 1, 2])
    @pytest.mark.parametrize("behind", [1, 2])
    def test_effect_done_on_any_earlier_timeline_of_this_one_is_done(
        self, s: Session, before: int, behind: int
    ) -> None:
        for _ in range(before):
            self.again(s)
        assert self.act(s, 1) == 1
        for _ in range(behind):
            self.again(s)
        assert self.act(s, 2) == 1

    def test_key_of_the_family_does_not_find_an_effect_of_an_earlier_timeline(
        self, s: Session
    ) -> None:
        assert self.act(s, 1) == 1
        self.again(s)
        assert self.act(s, 2, scope="family") == 2

    def test_effect_without_a_key_is_done_each_time(self, s: Session) -> None:
        for value in (1, 2):
            assert self.act(s, value, key="") == value

    def test_effect_of_an_earlier_timeline_with_unknown_outcome_is_unsettled(
        self, s: Session
    ) -> None:
        first = s.actions.intend("pay", key="k", scope="timeline", replay="once").effect.id
        self.again(s)
        with pytest.raises(Unsettled) as caught:
            s.actions.intend("pay", key="k", scope="timeline", replay="once")
        assert caught.value.details["id"] == first

    def test_effect_that_failed_on_an_earlier_timeline_is_a_new_effect(self, s: Session) -> None:
        first = s.actions.intend("pay", key="k", scope="timeline").effect.id
        s.actions.settle(first, failed=True)
        self.again(s)
        assert s.actions.intend("pay", key="k", scope="timeline").effect.id != first

    def test_fork_made_inside_an_action_does_its_own_effect(self, s: Session) -> None:
        def work() -> Any:
            (fork,) = s.fork(1)
            return self.act(fork, 7)

        assert s.act(work, name="pay", key="k", scope="timeline") == 7
        assert [effect.state for effect in s.effects()] == ["done", "done"]

    @pytest.mark.parametrize("by_fork", [False, True])
    def test_effect_begun_by_another_session_of_the_family_is_in_flight(
        self, s: Session, by_fork: bool
    ) -> None:
        """Also one that may be repeated with its key: the other session does it now."""
        (fork,) = s.fork(1)
        one, other = (fork, s) if by_fork else (s, fork)
        one.actions.intend("put", key="k", replay="idempotent")
        with pytest.raises(Conflict) as caught:
            other.actions.intend("put", key="k", replay="idempotent")
        assert caught.value.kind == "in_flight"
        assert caught.value.details["session"] == one.id

    def test_effect_that_another_thread_declares_is_in_flight(self, hub: Hub, s: Session) -> None:
        begun = s.actions.intend("pay", key="k").effect
        deeds = s.internals.pipeline.effects
        for other in (get_ident() - 1, get_ident() + 1):
            deeds.in_progress[begun.id] = other
            with pytest.raises(Conflict) as caught:
                deeds._declare(deed_of(hub, s), {}, [])
            assert caught.value.kind == "in_flight"
            assert deeds.in_progress == {begun.id: other}
        deeds.in_progress.clear()

    @pytest.mark.parametrize(
        ("error", "kind"),
        [
            (Conflict("row_moved", "no", name=f"{USED}/x"), "approval_used"),
            (Conflict("row_moved", "no", name="deed-key/x"), "in_flight"),
            (Conflict("head_moved", "no", name=f"{USED}/x"), "head_moved"),
            (Refused("row_moved", "no", name=f"{USED}/x"), "row_moved"),
        ],
    )
    def test_effect_whose_begin_was_not_stored_is_not_done(
        self, s: Session, monkeypatch: pytest.MonkeyPatch, error: OrtetError, kind: str
    ) -> None:
        def add(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(s.internals.pipeline.writer, "add", add)
        with pytest.raises(type(error)) as caught:
            s.internals.pipeline.effects.act(
                pytest.fail, ("it was done",), {}, CallOptions(key="k")
            )
        assert caught.value.kind == kind
        assert s.internals.pipeline.effects.in_progress == {}
        monkeypatch.undo()

    def test_current_action_is_the_innermost_of_this_thread(self, s: Session) -> None:
        found: list[str] = []

        def inner() -> None:
            found.append(s.internals.pipeline.effects.current())

        def outer() -> None:
            found.append(s.internals.pipeline.effects.current())
            s.act(inner)
            found.append(s.internals.pipeline.effects.current())

        s.act(outer)
        found.append(s.internals.pipeline.effects.current())
        one, two = (event.data["id"] for event in begins(s))
        assert found == [one, two, one, ""]


class TestShown:
    def test_call_is_shown_as_it_is_written_up_to_a_thousand_characters(self) -> None:
        said = {"args": [1, "a"], "kwargs": {"to": "ann", "n": None}}
        assert format_call("mail", said) == "mail(1, 'a', to='ann', n=None)"
        assert len(format_call("mail", {"args": ["x" * 2000], "kwargs": {}})) == 1000

    def test_failure_is_recorded_with_at_most_two_thousand_characters(self) -> None:
        assert error_text(ValueError("no")) == "ValueError: no"
        assert len(error_text(ValueError("x" * 3000))) == 2000
        assert error_text(ValueError("\udc80")) == "ValueError: ?"

    def test_failure_that_cannot_be_printed_is_recorded_by_its_class(self) -> None:
        class Odd(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no")

        assert error_text(Odd()) == "Odd"

    def test_command_of_an_effect_is_clipped_to_five_hundred_characters(self, hub: Hub) -> None:
        with hub.session("s") as s:
            effect = s.actions.intend("tool", [], {"command": "x" * 3000}).effect
            assert len(effect.command) == 500
