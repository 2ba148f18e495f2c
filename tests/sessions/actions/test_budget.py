"""Budgets: limits that hold in every fork, spend that no restore refunds, bills."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from msgspec.structs import replace
from tests.fixtures import forked
from tests.fixtures.stores import Open

from ortet._util.codec import encode
from ortet.backends.base import RowChange
from ortet.config.environment import open_hub
from ortet.errors import Conflict, Invalid, NotFound, Refused
from ortet.hub.hub import Hub
from ortet.sessions.actions.bill import Bill, MinuteSpend, Second, SpendRecord, bill, spends
from ortet.sessions.actions.budget import (
    _retry_row_conflict,
    initial_budget_rows,
    kind_of,
    levels,
    remaining_for,
    reservation_rows,
    reserve_share,
)
from ortet.sessions.actions.budget_math import BudgetLimits, FamilyBudget, Reservation
from ortet.sessions.session import Session
from ortet.testing.clock import ManualClock

HOUR = 3600 * 10**9


@pytest.fixture
def hub(opened: Open, clock: ManualClock) -> Hub:
    """A hub whose clock the test moves."""
    return opened(clock=clock)


def refused(verb: Any, *args: Any, **amounts: float) -> Refused:
    with pytest.raises(Refused) as caught:
        verb(*args, **amounts)
    assert caught.value.kind == "budget_spent"
    return caught.value


def kinds(s: Any, kind: str) -> list[dict[str, Any]]:
    return [event.data for event in s.events() if event.kind == kind]


class TestLimits:
    def test_a_hard_limit_pauses_and_says_how_to_go_on(self, hub: Hub) -> None:
        s = hub.session("s", budget={"usd": 5, "pages": 100})
        s.spend(usd=4, pages=1)
        assert s.accounting.budget_left() == {"usd": 1, "pages": 99}
        error = refused(s.spend, usd=2)
        assert error.details["left"] == {"usd": 0, "pages": 99}
        assert "usd 6 of 5" in str(error)
        assert "s.budget(usd=" in str(error)
        assert hub.get(s.id).status == "paused"
        assert hub.get(s.id).accounting.spent() == {
            "usd": 6,
            "pages": 1,
        }  # it was spent all the same
        assert kinds(hub.get(s.id), "lifecycle")[-1]["why"] == "the budget is spent"
        with pytest.raises(Invalid):
            s.say("user", "x")

    def test_raising_the_budget_lets_a_paused_session_continue(self, hub: Hub) -> None:
        refused(hub.session("s", budget={"usd": 1}).spend, usd=2)
        s = hub.session("s")
        refused(s.act, len, "abc")
        s = hub.session("s")
        s.budget(usd=10)
        assert s.act(len, "abc") == 3
        s.spend(usd=7)
        assert s.accounting.budget_left() == {"usd": 1}
        assert kinds(s, "budget")[-1] == {"limits": {"usd": 10}, "soft": {}}

    def test_spending_exactly_the_limit_is_allowed_and_the_next_action_refused(
        self, hub: Hub
    ) -> None:
        s = hub.session("s", budget={"usd": 1})
        for _ in range(10):
            s.spend(usd=0.1)
        assert s.status == "active"
        refused(s.act, len, "abc")
        assert s.status == "paused"

    def test_a_limit_can_be_lowered_and_taken_away(self, hub: Hub) -> None:
        s = hub.session("s")
        s.spend(usd=3)
        s.budget(usd=2)
        refused(s.act, len, "abc")
        s = hub.session("s")
        s.budget(usd=None)
        assert s.accounting.budget_left() == {}
        s.act(len, "abc")

    def test_a_soft_limit_of_nothing_is_reached_by_any_spend(self, hub: Hub) -> None:
        with hub.session("s", budget={"soft": {"calls": 0}}) as s:
            s.spend(usd=1)
            (told,) = kinds(s, "warning")
            assert (told["name"], told["limit"], told["spent"]) == ("calls", 0, 0)

    def test_a_soft_limit_warns_once(self, hub: Hub) -> None:
        with hub.session("s", budget={"usd": 5, "soft": {"usd": 2}}) as s:
            s.spend(usd=1)
            assert kinds(s, "warning") == []
            s.spend(usd=1.5)
            s.spend(usd=1)
            assert kinds(s, "warning") == [
                {"what": "budget", "name": "usd", "limit": 2, "spent": 2.5}
            ]
            s.budget(soft={"usd": 4})
            s.spend(usd=1)
            assert len(kinds(s, "warning")) == 2

    def test_seconds_budget_counts_only_the_time_a_session_is_open(
        self, hub: Hub, clock: ManualClock
    ) -> None:
        with hub.session("s", budget={"seconds": 100}) as s:
            clock.advance(30 * 10**9)
            assert s.accounting.budget_left() == {"seconds": 70}
            s.act(len, "abc")
        clock.advance(HOUR)  # paused: this is nobody's time
        s = hub.session("s")
        assert s.accounting.spent() == {"seconds": 30}
        s.spend(usd=1)
        clock.advance(70 * 10**9)
        refused(s.act, len, "abc")
        assert hub.get(s.id).accounting.spent() == {"usd": 1, "seconds": 100}

    def test_time_without_a_limit_leaves_no_trace(self, hub: Hub, clock: ManualClock) -> None:
        with hub.session("s") as s:
            clock.advance(HOUR)
        assert hub.get(s.id).accounting.spent() == {}
        assert kinds(hub.get(s.id), "spend") == []

    def test_exceeding_the_budget_inside_an_action_pauses_after_the_action(self, hub: Hub) -> None:
        s = hub.session("s", budget={"usd": 1})

        def work() -> str:
            with pytest.raises(Refused):
                s.spend(usd=2)
            s.say("assistant", "still here")
            return "done"

        assert s.act(work) == "done"
        assert s.status == "paused"
        assert [e.state for e in hub.get(s.id).effects()] == ["done"]

    def test_wrong_values_change_nothing(self, hub: Hub) -> None:
        with hub.session("s", budget={"usd": 1}) as s:
            before = len(list(s.events()))
            for wrong in (
                s.budget,
                lambda: s.budget(usd=-1),
                lambda: s.budget(usd="much"),
                lambda: s.budget(soft={"usd": float("inf")}),
                lambda: s.spend(usd=float("nan")),
                lambda: s.spend(usd=True),
            ):
                with pytest.raises(Invalid):
                    wrong()  # type: ignore[no-untyped-call]
            assert len(list(s.events())) == before
        for budget in ({"usd": -1}, {"usd": "x"}, {"soft": 1}):
            with pytest.raises(Invalid):
                hub.session("t", budget=budget)
        assert [row.name for row in hub.sessions()] == ["s"]


class TestRows:
    """What is reserved, where it is written, and when it is returned."""

    def purse(self, hub: Hub, s: Session) -> Reservation:
        return levels(hub.catalog, s.internals.row)[0].purse

    def test_levels_cannot_be_changed_in_place(self, hub: Hub) -> None:
        with hub.session("s") as s, pytest.raises(AttributeError):
            levels(hub.catalog, s.internals.row)[0].key = "x"  # type: ignore[misc]

    def test_session_that_brings_spend_from_another_store_begins_with_new_rows(
        self, hub: Hub
    ) -> None:
        with hub.session("s") as s:
            row, kind = s.internals.row, kind_of(s.internals.row.family)
            assert initial_budget_rows(row, BudgetLimits(), "", {}) == []
            account = FamilyBudget(limits={"usd": 5.0}, granted={"usd": 2.0}, outer="f")
            assert initial_budget_rows(row, BudgetLimits({"usd": 5.0}), "f", {"usd": 2.0}) == [
                RowChange(kind, "account", encode(account), expect=0),
                RowChange(kind, row.id, encode(Reservation({"usd": 2.0}, {"usd": 2.0})), expect=0),
            ]

    def test_spend_event_names_the_model_only_if_there_is_one(self, hub: Hub) -> None:
        with hub.session("s") as s:
            s.spend(usd=1)
            s.spend(usd=2, model="m")
            assert kinds(s, "spend") == [
                {"amounts": {"usd": 1}},
                {"amounts": {"usd": 2}, "model": "m"},
            ]

    def test_pause_and_fork_return_what_is_reserved_and_not_spent(self, hub: Hub) -> None:
        s = hub.session("s", budget={"usd": 8})
        s.spend(usd=0.5)
        assert self.purse(hub, s).granted == {"usd": 1.0}
        s.fork(1)
        assert self.purse(hub, s).granted == {"usd": 0.5}
        s.spend(usd=0.1)
        assert self.purse(hub, s).granted["usd"] > 1
        s.pause()
        assert self.purse(hub, s).granted == {"usd": pytest.approx(0.6)}

    def test_first_fork_of_a_reopened_session_returns_what_a_killed_process_reserved(
        self, store: Path, clock: ManualClock
    ) -> None:
        killed = open_hub(store, clock=clock)
        killed.session("s", budget={"usd": 8}).spend(usd=0.5)
        clock.advance(31 * 10**9)
        with open_hub(store, clock=clock) as hub, hub.session("s") as s:
            assert self.purse(hub, s).granted == {"usd": 1.0}
            s.fork(1)
            assert self.purse(hub, s).granted == {"usd": 0.5}
        killed.close()

    def test_new_limit_returns_what_every_session_has_reserved(self, hub: Hub) -> None:
        s = hub.session("s", budget={"usd": 8})
        one, two = s.fork(2)
        one.spend(usd=0.1)
        assert self.purse(hub, one).granted == {"usd": 1.0}
        two.budget(usd=16)
        assert self.purse(hub, one).granted == {"usd": 0.1}
        assert levels(hub.catalog, s.internals.row)[0].account.granted == {"usd": 0.1}

    def test_spend_beyond_what_is_free_returns_what_closed_sessions_have_reserved(
        self, store: Path, clock: ManualClock
    ) -> None:
        killed = open_hub(store, clock=clock)
        one, two = killed.session("s", budget={"usd": 8}).fork(2)
        one.spend(usd=0.1)
        two.pause()
        clock.advance(31 * 10**9)
        with open_hub(store, clock=clock) as hub, hub.session("s/2") as two:
            two.spend(usd=7.5)
            assert self.purse(hub, one).granted == {"usd": 0.1}
            account = levels(hub.catalog, two.internals.row)[0].account
            assert account.granted == {"usd": pytest.approx(7.6)}
        killed.close()

    def test_limit_of_a_child_leaves_the_limit_of_its_parent(self, hub: Hub) -> None:
        with hub.session("p", budget={"usd": 8}) as p, hub.session("c", parent=p.id) as c:
            c.budget(usd=2)
            own, outer = levels(hub.catalog, c.internals.row)
            assert (own.account.limits, outer.account.limits) == ({"usd": 2.0}, {"usd": 8.0})

    def test_share_of_a_new_session_is_reserved_and_limits_what_is_left(self, hub: Hub) -> None:
        with hub.session("s", budget={"usd": 10}) as s:
            s.spend(usd=1)
            s.budget(usd=10)  # returns what is reserved
            row = replace(s.internals.row, id="0" * 32, name="kid")
            hub.catalog.move(
                [], verb="x", rows=reserve_share(hub.catalog, row, {"usd": 4, "pages": 2})
            )
            assert remaining_for(hub.catalog, row) == {"usd": 4.0, "pages": 2.0}
            (level,) = levels(hub.catalog, row)
            assert level.purse == Reservation({"usd": 4.0}, {}, {"usd": 4.0, "pages": 2.0})
            assert level.account.granted == {"usd": 5.0}
            paid = replace(level.purse, spent={"usd": 3.0, "pages": 5.0})
            change = RowChange(kind_of(row.family), row.id, encode(paid))
            hub.catalog.move([], verb="x", rows=[change])
            assert remaining_for(hub.catalog, row) == {"usd": 1.0, "pages": 0.0}

    def test_share_above_what_is_free_is_refused_with_what_is_left(self, hub: Hub) -> None:
        with hub.session("s", budget={"usd": 10, "pages": 9}) as s:
            s.spend(usd=1)
            s.budget(usd=10)
            row = replace(s.internals.row, id="0" * 32, name="kid")
            error = refused(reserve_share, hub.catalog, row, {"usd": 9.5, "pages": 9})
            assert error.details["left"] == {"usd": 9.0}
            assert "usd 9.5 of 9 left" in str(error)

    def test_change_is_tried_a_hundred_times_while_siblings_are_faster(self) -> None:
        tries: list[str] = []

        def attempt(kind: str) -> None:
            tries.append(kind)
            raise Conflict(kind, "no")

        for kind in ("row_moved", "head_moved"):
            with pytest.raises(Conflict):
                _retry_row_conflict(lambda kind=kind: attempt(kind))  # type: ignore[misc]
        assert tries == ["row_moved"] * 100 + ["head_moved"]


class TestShares:
    """A session that was given a share of its family's budget."""

    def share(self, hub: Hub, s: Session, usd: float) -> Session:
        (kid,) = s.fork(1)
        rows = [
            RowChange(
                kind_of(kid.internals.row.family), kid.id, encode(Reservation(share={"usd": usd}))
            )
        ]
        hub.catalog.move([], verb="x", rows=rows)
        return kid

    def test_spent_share_is_told_as_the_share(self, hub: Hub) -> None:
        with hub.session("s", budget={"usd": 10}) as s:
            error = refused(self.share(hub, s, 1).spend, usd=2)
            assert "has spent its share (usd 2 of 1)" in str(error)
            assert (error.details["limits"], error.details["left"]) == ({"usd": 1}, {"usd": 0})

    def test_spent_budget_is_told_as_the_budget_while_the_share_lasts(self, hub: Hub) -> None:
        with hub.session("s", budget={"usd": 1}) as s:
            error = refused(self.share(hub, s, 5).spend, usd=2)
            assert "the budget is spent (usd 2 of 1)" in str(error)
            assert error.details["limits"] == {"usd": 1}

    def test_limit_of_nothing_is_told_as_nothing_spent(self, hub: Hub) -> None:
        s = hub.session("s", budget={"usd": 0})
        assert "(usd 0 of 0)" in str(refused(s.act, len, "abc"))


class TestTime:
    """The counter `seconds`, when clocks or processes do not do as they should."""

    def test_clock_that_was_set_back_gives_no_time_back(self, hub: Hub, clock: ManualClock) -> None:
        with hub.session("s", budget={"seconds": 100}) as s:
            clock.advance(-(10**9))
            assert s.accounting.budget_left() == {"seconds": 100}
            s.spend(usd=1)
            assert s.accounting.spent() == {"usd": 1}

    def test_time_left_has_fractions_and_is_zero_when_it_is_overrun(
        self, hub: Hub, clock: ManualClock
    ) -> None:
        with hub.session("s", budget={"seconds": 100}) as s:
            clock.advance(10**9 + 5 * 10**8)
            assert s.accounting.budget_left() == {"seconds": 98.5}
            clock.advance(99 * 10**9)
            assert s.accounting.budget_left() == {"seconds": 0}
            s.budget(seconds=None)

    @pytest.mark.parametrize("soft", [False, True])
    def test_time_of_a_killed_process_is_counted_to_its_last_event(
        self, store: Path, clock: ManualClock, soft: bool
    ) -> None:
        budget = {"soft": {"seconds": 100}} if soft else {"seconds": 100}
        killed = open_hub(store, clock=clock)
        with killed.session("s", budget=budget) as s:
            clock.advance(3 * 10**9)
        clock.advance(HOUR)
        s = killed.session("s")
        clock.advance(4 * 10**9)
        s.spend(usd=1)  # counts these four
        clock.advance(2 * 10**9)
        s.say("user", "the last sign of life")
        clock.advance(31 * 10**9)
        with open_hub(store, clock=clock) as hub, hub.session("s") as t:
            assert t.accounting.spent() == {"usd": 1, "seconds": 9}
            amounts = [data["amounts"] for data in kinds(t, "spend")]
            assert amounts == [{"seconds": 3}, {"usd": 1, "seconds": 4}, {"seconds": 2}]
        killed.close()

    def test_time_of_a_process_killed_after_a_restore_is_counted_from_the_restore(
        self, store: Path, clock: ManualClock
    ) -> None:
        killed = open_hub(store, clock=clock)
        s = killed.session("s", budget={"seconds": 100})
        point = s.commit("here").oid
        s.say("user", "a way that is left")
        clock.advance(3 * 10**9)
        s.restore(point)
        clock.advance(4 * 10**9)
        s.say("user", "the last sign of life")
        clock.advance(31 * 10**9)
        with open_hub(store, clock=clock) as hub, hub.session("s") as t:
            assert t.accounting.spent() == {"seconds": pytest.approx(7, abs=0.002)}
        killed.close()

    def test_process_killed_right_after_a_count_adds_nothing(
        self, store: Path, clock: ManualClock
    ) -> None:
        killed = open_hub(store, clock=clock)
        s = killed.session("s", budget={"seconds": 100})
        clock.advance(4 * 10**9)
        s.spend(usd=1)
        clock.advance(31 * 10**9)
        with open_hub(store, clock=clock) as hub, hub.session("s") as t:
            assert [data["amounts"] for data in kinds(t, "spend")] == [{"usd": 1, "seconds": 4}]
        killed.close()


class TestFamily:
    def test_a_restore_refunds_nothing(self, hub: Hub) -> None:
        s = hub.session("s", budget={"usd": 5})
        s.think("before")
        point = s.commit("before")
        s.spend(usd=4)
        s.restore(point.oid)
        assert s.accounting.spent() == {"usd": 4}
        assert s.accounting.budget_left() == {"usd": 1}
        refused(s.spend, usd=2)

    def test_forks_share_one_budget_with_their_parent(self, hub: Hub) -> None:
        s = hub.session("s", budget={"usd": 8})
        s.spend(usd=1)
        one, two = s.fork(2)
        one.spend(usd=3)
        assert s.accounting.budget_left() == two.accounting.budget_left() == {"usd": 4}
        assert s.accounting.spent() == {"usd": 4}
        refused(two.spend, usd=5)
        assert s.accounting.spent() == {"usd": 9}
        refused(s.act, len, "abc")

    def test_budget_reserved_by_another_fork_is_reported_and_freed_by_pause(self, hub: Hub) -> None:
        s = hub.session("s", budget={"usd": 8})
        one, two = s.fork(2)
        one.spend(usd=0.1)  # and holds 1
        error = refused(two.spend, usd=7.5)
        assert "other sessions hold 0.4 until they pause" in str(error)
        two = hub.session("s/2")
        refused(two.act, len, "abc")
        one.pause()
        two = hub.session("s/2")
        assert two.act(len, "abc") == 3
        two.spend(usd=0.3)
        assert s.accounting.spent() == {"usd": pytest.approx(7.9)}

    def test_a_dead_process_holds_nothing(self, store: Path) -> None:
        code = (
            "import ortet, sys, os, signal\n"
            "s = ortet.open(sys.argv[1]).session('s', budget={'usd': 8})\n"
            "a, b = s.fork(2)\n"
            "a.spend(usd=0.1)\n"
            "b.pause()\n"
            "os.kill(os.getpid(), signal.SIGKILL)"
        )
        done = forked.run([sys.executable, "-c", code, str(store)], check=False)
        assert done.returncode == -signal.SIGKILL
        with open_hub(store) as hub, hub.session("s/2") as s:
            s.spend(usd=7.8)
            assert s.accounting.budget_left() == {"usd": pytest.approx(0.1)}

    def test_concurrent_threads_never_exceed_the_budget_without_an_error(self, hub: Hub) -> None:
        s = hub.session("s", budget={"n": 60})
        forks = s.fork(4)
        told: list[Exception] = []

        def work(fork: Session) -> None:
            try:
                for _ in range(80):  # more than all of it, though the others begin late
                    fork.spend(n=1)
            except Refused as error:
                told.append(error)

        threads = [Thread(target=work, args=(fork,)) for fork in forks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(told) == 4
        spent = s.accounting.spent()["n"]
        assert 60 - 4 <= spent <= 60 + 4
        recorded = [
            event.data["amounts"]["n"]
            for fork in forks
            for event in hub.get(fork.id).events()
            if event.kind == "spend"
        ]
        assert sum(recorded) == spent
        (level,) = levels(hub.catalog, s.internals.row)
        assert level.account.granted["n"] == pytest.approx(spent)
        assert all(
            purse.unspent("n") == 0
            for _, purse in reservation_rows(hub.catalog, s.internals.row.family)
        )

    def test_concurrent_processes_never_exceed_the_budget_without_an_error(
        self, store: Path, together: Callable[..., list[Any]]
    ) -> None:
        with open_hub(store) as hub, hub.session("s", budget={"n": 60}) as s:
            names = [fork.name for fork in s.fork(4)]
        found = together(*(("spend", store, name, 80) for name in names))  # more than all of it
        assert [kind for _, kind in found] == ["budget_spent"] * 4
        with open_hub(store) as hub:
            view = hub.get(next(row.id for row in hub.sessions() if row.name == "s"))
            spent = view.accounting.spent()["n"]
            assert spent == sum(done for done, _ in found)
            assert 60 - 4 <= spent <= 60 + 4
            assert sum(line.amounts["n"] for line in hub.bill()) == spent
            assert sum(line.spends for line in hub.bill()) == spent
            (level,) = levels(hub.catalog, view.internals.row)
            assert level.account.granted["n"] == pytest.approx(spent)
            hub.verify()

    @pytest.mark.parametrize("point", ["budget.before-spend", "journal.before-append"])
    def test_kill_before_the_spend_event_counts_nothing(self, store: Path, point: str) -> None:
        assert self.killed(store, f"{point}:kill:2") == (1, 1)

    def test_kill_after_the_spend_event_counts_it(self, store: Path) -> None:
        assert self.killed(store, "journal.after-append:kill:2") == (2, 2)

    def killed(self, store: Path, fault: str) -> tuple[float, float]:
        """Spends 1 again and again: what the rows and what the events say then."""
        code = (
            "import ortet, sys\n"
            "s = ortet.open(sys.argv[1]).session('s', budget={'n': 100})\n"
            "for _ in range(9): s.spend(n=1)"
        )
        done = forked.run(
            [sys.executable, "-c", code, str(store)],
            env={**os.environ, "ORTET_FAULT": fault},
            check=False,
        )
        assert done.returncode == -signal.SIGKILL
        with open_hub(store) as hub, hub.session("s") as s:
            events = sum(data["amounts"]["n"] for data in kinds(s, "spend"))
            (line,) = hub.bill()
            assert line.amounts == {"n": events}
            return s.accounting.spent()["n"], events


class TestWorkers:
    def test_a_child_spends_inside_its_parent(self, hub: Hub) -> None:
        boss = hub.session("boss", budget={"usd": 5, "tokens": 1000})
        child = hub.session("child", parent=boss, budget={"usd": 2})
        child.spend(usd=1, tokens=400)
        assert child.accounting.budget_left() == {"usd": 1, "tokens": 600}
        assert boss.accounting.budget_left() == {"usd": 4, "tokens": 600}
        assert boss.accounting.spent() == {"usd": 1, "tokens": 400}
        refused(child.spend, usd=1.5)
        assert boss.status == "active"
        assert hub.get(child.id).internals.row.parent == boss.id

    def test_child_session_cannot_spend_more_than_its_parent_has_left(self, hub: Hub) -> None:
        boss = hub.session("boss", budget={"usd": 5})
        child = hub.session("child", parent=boss.id, budget={"usd": 100})
        grandchild = hub.session("grandchild", parent=child)
        boss.spend(usd=1)
        grandchild.spend(usd=3)
        assert child.accounting.budget_left() == {"usd": 1}
        error = refused(grandchild.spend, usd=2)
        assert boss.id in str(error)
        assert boss.accounting.spent() == {"usd": 6}
        boss.budget(usd=10)
        assert child.accounting.budget_left() == {"usd": 4}

    def test_parent_session_must_exist_be_open_and_stay_the_same(self, hub: Hub) -> None:
        with pytest.raises(NotFound):
            hub.session("child", parent="0" * 32)
        boss = hub.session("boss")
        other = hub.session("other")
        hub.session("child", parent=boss).pause()
        hub.session("child", parent=boss).pause()
        with pytest.raises(Conflict) as caught:
            hub.session("child", parent=other)
        assert caught.value.kind == "parent_differs"
        other.finish()
        with pytest.raises(Conflict) as caught:
            hub.session("late", parent=other)
        assert caught.value.kind == "session_closed"


class TestBill:
    def test_bill_groups_by_session_agent_model_and_day(self, hub: Hub, clock: ManualClock) -> None:
        a = hub.session("a", agent="one")
        a.spend(usd=1, model="large")
        clock.advance(24 * HOUR)
        a.spend(usd=2)
        (fork,) = a.fork()
        fork.spend(usd=3, tokens=10, model="large")
        b = hub.session("b", agent="two", parent=a)
        b.spend(usd=4, model="small")

        def rows(**options: Any) -> dict[str, float]:
            return {line.name: line.amounts["usd"] for line in hub.bill(**options)}

        assert rows() == {"a": 3, "a/1": 3, "b": 4}
        assert rows(by="agent") == {"one": 6, "two": 4}
        assert rows(by="model") == {"": 2, "large": 4, "small": 4}
        assert rows(by="day") == {"2023-11-14": 1, "2023-11-15": 9}
        assert hub.bill(by="agent")[0].spends == 3
        for since in (
            "2023-11-15",
            date(2023, 11, 15),
            datetime(2023, 11, 15, tzinfo=UTC),
            clock.now_ns(),
        ):
            assert rows(by="agent", since=since) == {"one": 5, "two": 4}
        assert hub.bill(since="2024-01-01") == []

    def test_since_is_exact_to_the_second(self, hub: Hub, clock: ManualClock) -> None:
        """Failed before: the whole hour was counted."""
        s = hub.session("a")
        start = clock.now_ns() // 10**9 * 10**9
        for _ in range(3):
            s.spend(usd=1)
            s.spend(usd=1, model="m")
            clock.advance(10**9)
        clock.advance(90 * 10**9)
        s.spend(usd=1)

        def total(since: Any) -> float:
            return sum(line.amounts["usd"] for line in hub.bill(since=since))

        assert [total(start + n * 10**9) for n in range(5)] == [7, 5, 3, 1, 1]
        at = datetime.fromtimestamp(start // 10**9 + 2, UTC)
        east = at.astimezone(timezone(timedelta(hours=5, minutes=30)))
        for since in (at, at.isoformat(), at.replace(tzinfo=None), east, east.isoformat()):
            assert total(since) == 3
        assert sum(line.spends for line in hub.bill(since=at)) == 3

    def test_days_end_at_midnight(self, hub: Hub, clock: ManualClock) -> None:
        s = hub.session("a")
        midnight = datetime(2023, 11, 16, tzinfo=UTC)
        clock.advance(int(midnight.timestamp()) * 10**9 - 1 - clock.now_ns())
        s.spend(usd=1)
        clock.advance(1)
        s.spend(usd=2)
        days = {line.key: line.amounts["usd"] for line in hub.bill(by="day")}
        assert days == {"2023-11-15": 1, "2023-11-16": 2}
        for since in ("2023-11-16", date(2023, 11, 16), midnight):
            assert [line.amounts["usd"] for line in hub.bill(since=since)] == [2]
        last = midnight - timedelta(seconds=1)
        assert [line.amounts["usd"] for line in hub.bill(since=last)] == [3]

    def test_bill_reads_hourly_rows_of_the_previous_release(
        self, hub: Hub, clock: ManualClock
    ) -> None:
        """As the release before wrote them."""
        hour = {"agent": "default", "session": "0" * 32, "name": "old", "amounts": {"usd": 5.0}}
        row = encode({**hour, "spends": 2})
        hub.catalog.put_row("bill", f"2023-11-14T22/{'0' * 32}/", row)
        hub.session("a").spend(usd=1)
        assert {line.name: line.amounts["usd"] for line in hub.bill()} == {"old": 5, "a": 1}
        assert [line.key for line in hub.bill(by="day")] == ["2023-11-14"]

    def test_spends_are_listed_with_the_second_session_and_model(
        self, hub: Hub, clock: ManualClock
    ) -> None:
        clock.advance(HOUR - clock.now_ns() % HOUR + 61 * 10**9)
        at = clock.now_ns()
        with hub.session("s") as s:
            s.spend(usd=1)
            s.spend(usd=2)
            clock.advance(5 * 10**9 + 7)
            s.spend(usd=4, model="m")
        hour = datetime.fromtimestamp(at // 10**9, UTC).strftime("%Y-%m-%dT%H")
        span = MinuteSpend("a", "old", "old", "", {"usd": 8.0}, 3)
        hub.catalog.move([], verb="x", rows=[RowChange("bill", f"{hour}/old/", encode(span))])
        assert sorted(spends(hub.catalog, None), key=lambda one: one.time) == [
            SpendRecord(at - 61 * 10**9, "old", "", {"usd": 8.0}),
            SpendRecord(at, s.id, "", {"usd": 3}),
            SpendRecord(at + 5 * 10**9, s.id, "m", {"usd": 4}),
        ]
        assert [one.model for one in spends(hub.catalog, at + 2 * 10**9)] == ["m"]

    def test_several_spends_in_one_second_are_all_counted(
        self, hub: Hub, clock: ManualClock
    ) -> None:
        with hub.session("s") as s:
            for _ in range(3):
                s.spend(usd=1)
        for since in (None, clock.now_ns()):
            assert [(one.amounts, one.spends) for one in hub.bill(since=since)] == [({"usd": 3}, 3)]

    def test_bill_leaves_out_agents_that_its_reader_may_not_see(self, hub: Hub) -> None:
        for agent in ("one", "two", "three"):
            with hub.session("s", agent=agent) as s:
                s.spend(usd=1)
        for hidden in ("one", "two", "three"):
            lines = bill(hub.catalog, None, "agent", sees=hidden.__ne__)
            assert {line.key for line in lines} == {"one", "two", "three"} - {hidden}

    def test_lines_and_rows_of_a_bill_cannot_be_changed_in_place(self) -> None:
        rows = (
            Bill("k", "n", {}, 0),
            Second(0, {}, 0),
            SpendRecord(0, "", "", {}),
            MinuteSpend("", "", ""),
        )
        for row in rows:
            with pytest.raises(AttributeError):
                row.amounts = {}  # type: ignore[misc]

    def test_bill_with_a_bad_grouping_or_date_is_refused(self, hub: Hub) -> None:
        for wrong in ({"by": "mood"}, {"since": "yesterday"}, {"since": 1.5}):
            with pytest.raises(Invalid):
                hub.bill(**wrong)
