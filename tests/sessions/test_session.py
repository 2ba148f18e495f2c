"""A session: its events survive, deeds are done once, one process writes, forks go their way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures import forked

import ortet
from ortet.config.environment import open_hub
from ortet.errors import Conflict, Invalid, NotFound, Refused, Unsettled
from ortet.hub.hub import Hub
from ortet.journal.event_chain import EventChain
from ortet.journal.events import Tip
from ortet.sessions.conversation import SessionPlan
from ortet.testing.clock import ManualClock


def check_chain(hub: Hub, session: str) -> int:
    view = hub.get(session)
    chain = EventChain(hub.objects.hasher, os.urandom)
    return chain.check(Tip(), view.internals.event_log.rows()).seq


class TestMind:
    def test_session_state_is_complete_at_the_next_open(self, store: Path) -> None:
        with open_hub(store) as hub, hub.session("fix-42", goal="make the suite green") as s:
            s.say("user", "the login test fails")
            s.plan(["reproduce", "fix", "verify"])
            s.advance()
            s.think("the lexer drops the last token")
            s.note("branch", "fix/lexer")
            question = s.ask("may I touch the grammar?")
            s.learn("tests need PYTHONPATH=src", about="testing")
            s.lesson("mocking the clock hid the bug")
            s.decide("patch the lexer", why="smallest change", instead_of=["rewrite parser"])
            s.spend(tokens=1200, usd=0.01)
            s.spend(tokens=300)
        with open_hub(store) as hub, hub.session("fix-42") as s:
            assert (s.goal, s.status) == ("make the suite green", "active")
            assert [(m.role, m.content) for m in s.messages()] == [("user", "the login test fails")]
            assert (s.steps, s.step) == (["reproduce", "fix", "verify"], 1)
            assert s.conversation.notes() == {"branch": "fix/lexer"}
            assert [q.id for q in s.conversation.questions()] == [question]
            assert {(f.text, f.lesson) for f in s.facts()} == {
                ("tests need PYTHONPATH=src", False),
                ("mocking the clock hid the bug", True),
            }
            (decision,) = s.conversation.decisions()
            assert (decision.why, decision.instead_of) == ("smallest change", ["rewrite parser"])
            assert s.accounting.spent() == {"tokens": 1500, "usd": 0.01}
            s.answer(question, "yes")
            assert s.conversation.questions() == []

    def test_message_content_parts_and_extra_are_returned_unchanged(self, hub: Hub) -> None:
        parts = [{"type": "text", "text": "hi"}, {"type": "tool_use", "id": "1", "input": {"a": 1}}]
        with hub.session("s") as s:
            s.say("assistant", parts, model="m")
            (message,) = s.messages()
            assert message.content == parts
            assert message.extra == {"model": "m"}

    def test_say_all_records_all_messages_or_none(self, store: Path) -> None:
        with open_hub(store) as hub, hub.session("a") as s:
            before = len(list(s.events()))
            turn = s.say_all([("user", "hi"), {"role": "assistant", "content": "ho", "id": "m1"}])
            assert [event.seq for event in turn] == [before + 1, before + 2]
            assert s.say_all([]) == []
            wrong: list[Any] = [("user",), {"content": "x"}, ("", "x")]
            for bad in wrong:
                with pytest.raises(Invalid, match="say who speaks"):
                    s.say_all([("user", "before it"), bad])
        with open_hub(store) as hub, hub.session("a") as s:
            assert [(m.role, m.content) for m in s.messages()] == [
                ("user", "hi"),
                ("assistant", "ho"),
            ]
            assert turn[1].data["extra"] == {"id": "m1"}

    def test_note_expires_after_its_ttl_or_when_set_to_none(self, store: Path) -> None:
        clock = ManualClock()
        with open_hub(store, clock=clock) as hub, hub.session("s") as s:
            s.note("soon", 1, ttl=10)
            s.note("always", 2)
            s.note("gone", 3)
            s.note("gone", None)
            assert s.conversation.notes() == {"soon": 1, "always": 2}
            clock.advance(10 * 10**9)
            assert s.conversation.notes() == {"always": 2}

    def test_forgetting_a_fact_leaves_its_trace(self, hub: Hub) -> None:
        with hub.session("s") as s:
            fact = s.learn("the moon is cheese")
            s.forget(fact)
            assert s.facts() == []
            assert "the moon is cheese" in [e.data.get("text") for e in s.events()]

    @pytest.mark.parametrize("name", ["", "a b", "../x", "-x", "x" * 300, "a//b"])
    def test_session_name_with_illegal_characters_is_refused(self, hub: Hub, name: str) -> None:
        with pytest.raises(Invalid):
            hub.session(name)

    def test_wrong_values_change_nothing(self, hub: Hub) -> None:
        with hub.session("s") as s:
            before = len(list(s.events()))
            for wrong in (
                lambda: s.say("", "x"),
                lambda: s.say("user", object()),
                lambda: s.spend(tokens=-1),
                s.advance,
                lambda: s.note("n", float("nan")),
                lambda: s.fork(0),
            ):
                with pytest.raises(Invalid):
                    wrong()
            assert len(list(s.events())) == before


class TestLife:
    def test_status_changes_with_open_pause_and_close(self, hub: Hub) -> None:
        s = hub.session("s")
        assert [(x.id, x.name, x.status) for x in hub.sessions()] == [(s.id, "s", "active")]
        s.pause()
        assert hub.get(s.id).status == "paused"
        hub.session("s").finish("done")
        assert hub.get(s.id).status == "closed"
        moves = [e.data for e in hub.get(s.id).events() if e.kind == "lifecycle"]
        assert [move["to"] for move in moves] == ["active", "paused", "active", "closed"]
        assert moves[-1]["why"] == "done"
        with pytest.raises(Conflict) as caught:
            hub.session("s")
        assert caught.value.kind == "session_closed"

    def test_close_only_closes_the_handle(self, hub: Hub) -> None:
        s = hub.session("s")
        s.say("user", "one")
        s.close()
        s.close()
        assert hub.get(s.id).status == "paused"
        with hub.session("s") as s:
            s.finish("done")
            s.close()
        assert hub.get(s.id).status == "closed"

    def test_finished_session_is_reopened_where_it_was(self, hub: Hub) -> None:
        with hub.session("s", budget={"usd": 5}) as s:
            s.say("user", "one")
            s.spend(usd=2)
            s.commit("one")
            s.finish("done")
        with pytest.raises(Conflict, match="reopen=True"):
            hub.session("s")
        with hub.session("s", reopen=True) as s:
            assert s.status == "active"
            assert [m.content for m in s.messages()] == ["one"]
            assert s.accounting.budget_left() == {"usd": 3}
            s.say("user", "two")
            s.commit("two")
        assert hub.get(s.id).status == "paused"
        assert [c.message for c in hub.log("s")] == ["two", "one"]
        hub.audit("s")

    def test_archived_session_is_not_reopened(self, hub: Hub) -> None:
        s = hub.session("s")
        s.finish()
        hub.archive("s")
        with pytest.raises(Conflict, match="unarchive"):
            hub.session("s", reopen=True)
        hub.unarchive("s")
        with hub.session("s", reopen=True) as s:
            assert s.status == "active"

    def test_paused_session_handle_refuses_writes(self, hub: Hub) -> None:
        s = hub.session("s")
        s.pause()
        with pytest.raises(Invalid):
            s.say("user", "x")
        s.pause()

    def test_closing_the_hub_pauses_its_sessions(self, store: Path) -> None:
        with open_hub(store) as hub:
            id_ = hub.session("s").id
        with open_hub(store) as hub:
            assert hub.get(id_).status == "paused"

    def test_get_of_an_unknown_session_is_not_found(self, hub: Hub) -> None:
        with pytest.raises(NotFound) as caught:
            hub.get("0" * 32)
        assert caught.value.kind == "no_session"

    def test_agents_have_names_of_their_own(self, hub: Hub) -> None:
        a, b = hub.session("s", agent="one"), hub.session("s", agent="two")
        assert a.id != b.id
        assert a.internals.row.branch != b.internals.row.branch


class TestWriters:
    def test_second_hub_is_refused_while_a_session_is_open(self, store: Path, hub: Hub) -> None:
        s = hub.session("s")
        with open_hub(store) as other, pytest.raises(Refused) as caught:
            other.session("s")
        assert caught.value.kind == "lease_held"
        s.pause()
        with open_hub(store) as other:
            other.session("s").say("user", "mine")

    def test_writer_whose_expired_lease_was_taken_over_is_refused(self, store: Path) -> None:
        clock = ManualClock()
        with open_hub(store, clock=clock) as one, open_hub(store, clock=clock) as two:
            s = one.session("s")
            s.say("user", "before")
            clock.advance(31 * 10**9)
            t = two.session("s")
            t.say("user", "taken over")
            with pytest.raises(Refused) as caught:
                s.say("user", "late")
            assert caught.value.kind == "lease_lost"
            assert [m.content for m in t.messages()] == ["before", "taken over"]
            check_chain(two, t.id)

    def test_writer_whose_expired_lease_nobody_took_continues(self, store: Path) -> None:
        clock = ManualClock()
        with open_hub(store, clock=clock) as hub, hub.session("s") as s:
            clock.advance(31 * 10**9)
            s.say("user", "still here")
            assert len(s.messages()) == 1

    def test_a_dead_process_is_replaced_at_once(self, store: Path) -> None:
        code = "import ortet, sys, time\ns = ortet.open(sys.argv[1]).session('s')\n"
        code += "s.say('user', 'last words'); print('ready', flush=True); time.sleep(600)"
        with forked.Popen(
            [sys.executable, "-c", code, str(store)], stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            with open_hub(store) as hub, pytest.raises(Refused):
                hub.session("s")
            child.send_signal(signal.SIGKILL)
            child.wait()
        with open_hub(store) as hub, hub.session("s") as s:
            assert [m.content for m in s.messages()] == ["last words"]


class TestDeeds:
    def test_an_action_is_recorded_with_its_reason(self, hub: Hub) -> None:
        with hub.session("s") as s:
            assert s.act(sorted, [3, 1, 2], why="in order", reverse=True) == [3, 2, 1]
            begun, ended = list(s.events())[-2:]
            assert (begun.kind, begun.data["name"], begun.data["why"]) == (
                "begun",
                "sorted",
                "in order",
            )
            assert begun.data["args"] == [[3, 1, 2]]
            assert begun.data["kwargs"] == {"reverse": True}
            assert (ended.data["state"], ended.data["outcome"]) == ("done", [3, 2, 1])
            (effect,) = s.effects()
            assert (effect.name, effect.state) == ("sorted", "done")

    def test_a_failure_is_recorded_and_raised(self, hub: Hub) -> None:
        with hub.session("s") as s:
            with pytest.raises(ZeroDivisionError):
                s.act(lambda: 1 / 0, name="divide")
            (effect,) = s.effects()
            assert (effect.name, effect.state) == ("divide", "failed")
            assert "ZeroDivisionError" in list(s.events())[-1].data["error"]

    def test_a_key_is_used_once_by_a_family(self, hub: Hub) -> None:
        paid: list[int] = []

        @ortet.action(replay="once", key="invoice-7")
        def pay(amount: int) -> dict[str, int]:
            paid.append(amount)
            return {"paid": amount}

        with hub.session("s") as s:
            assert s.act(pay, 5) == {"paid": 5}
            assert s.act(pay, 5) == {"paid": 5}
            (kid,) = s.fork(1)
            assert kid.act(pay, 5) == {"paid": 5}
            assert kid.act(pay, 9, key="invoice-8") == {"paid": 9}
            assert [e.key for e in s.effects()] == ["invoice-7", "invoice-8"]
        assert paid == [5, 9]

    def test_effect_killed_midway_is_unsettled_until_settled_and_logged(
        self, store: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        mark = tmp_path / "paid"
        code = f"""
import ortet, os, signal
def pay():
    open({str(mark)!r}, "a").write("x")
    os.kill(os.getpid(), signal.SIGKILL)
s = ortet.open({str(store)!r}).session("s")
s.act(pay, key="k", replay="once", why="the invoice is due")
"""
        assert forked.run([sys.executable, "-c", code], check=False).returncode == -9
        with open_hub(store) as hub, hub.session("s") as s:
            (effect,) = s.effects()
            assert (effect.state, effect.why) == ("unsettled", "the invoice is due")
            assert f"effect {effect.id} of session {s.id} is unsettled" in caplog.text
            assert list(s.events())[-1].data["synthetic"] is True
            with pytest.raises(Unsettled) as caught:
                s.act(lambda: mark.write_text("twice"), key="k", replay="once", name="pay")
            assert caught.value.details["id"] == effect.id
            s.actions.settle(effect.id, {"paid": True})
            assert s.act(lambda: {"paid": False}, key="k", replay="once", name="pay") == {
                "paid": True
            }
            with pytest.raises(Conflict):
                s.actions.settle(effect.id, None)
            with pytest.raises(NotFound):
                s.actions.settle("nope", None)
        assert mark.read_text() == "x"

    def test_idempotent_runs_again_after_a_crash(self, store: Path) -> None:
        code = f"""
import ortet, os, signal
s = ortet.open({str(store)!r}).session("s")
s.act(lambda: os.kill(os.getpid(), signal.SIGKILL), key="k", replay="idempotent", name="put")
"""
        assert forked.run([sys.executable, "-c", code], check=False).returncode == -9
        with open_hub(store) as hub, hub.session("s") as s:
            assert s.act(lambda: 7, key="k", replay="idempotent", name="put") == 7
            assert [e.state for e in s.effects()] == ["done"]


class TestCommits:
    def test_nothing_new_returns_the_head(self, store: Path) -> None:
        with open_hub(store) as hub, hub.session("s") as s:
            s.say("user", "x")
            first = s.commit("one")
            assert s.commit("two") == first
        with open_hub(store) as hub, hub.session("s") as s:
            assert s.commit("three") == first
            s.say("user", "y")
            second = s.commit("four")
            assert second.parents == [first.oid]
            assert second.state != first.state
            hub.verify()

    def test_fork_starts_with_the_same_state_and_then_diverges(self, hub: Hub) -> None:
        with hub.session("s", goal="g") as s:
            s.say("user", "before")
            s.learn("shared")
            kids = s.fork(3)
            assert [kid.name for kid in kids] == ["s/1", "s/2", "s/3"]
            assert {kid.commit().state for kid in kids} == {s.commit().state}
            kids[0].say("user", "mine")
            s.say("user", "ours")
            assert [m.content for m in kids[0].messages()] == ["before", "mine"]
            assert [m.content for m in kids[1].messages()] == ["before"]
            assert [m.content for m in s.messages()] == ["before", "ours"]
            kids[0].commit("theirs")
            for session in (s, *kids):
                check_chain(hub, session.id)
            (grandchild,) = kids[0].fork()
            assert grandchild.name == "s/1/1"
            assert [m.content for m in grandchild.messages()] == ["before", "mine"]
        hub.verify()
        hub.sweep(expire_ns=0, min_garbage=0.0)
        hub.verify()

    def test_forks_of_two_hubs_take_other_names(self, store: Path) -> None:
        with open_hub(store) as one, open_hub(store) as two:
            s = one.session("s")
            s.say("user", "x")
            assert s.fork(1)[0].name == "s/1"
            s.pause()
            s = two.session("s")
            assert [kid.name for kid in s.fork(2)] == ["s/2", "s/3"]
            s.pause()
            s = one.session("s")
            assert [kid.name for kid in s.fork(2)] == ["s/4", "s/5"]

    def test_a_fork_of_a_clean_session_moves_nothing_else(self, hub: Hub) -> None:
        with hub.session("s") as s:
            s.say("user", "x")
            head = s.commit()
            (kid,) = s.fork()
            assert s.head == kid.head == head
            kid.say("user", "y")
            assert [m.content for m in s.fork()[0].messages()] == ["x"]
            s.say("user", "z")
            (late,) = s.fork()
            assert [m.content for m in late.messages()] == ["x", "z"]
            assert s.head is not None
            assert s.head.parents == [head.oid]

    def test_a_fork_knows_nothing_that_was_erased(self, hub: Hub) -> None:
        with hub.session("s") as s:
            s.decide("secret", why="secret")
            s.commit()
            with s.fork()[0] as kid:
                assert kid.conversation.decisions()[0].text == "secret"
        for row in hub.sessions():
            hub.erase(row.id)
        with hub.session("s") as s:
            assert "secret" not in str(s.fork()[0].conversation.decisions())

    def test_trimmed_rows_are_read_from_the_commit(self, store: Path) -> None:
        with open_hub(store) as hub, hub.session("s") as s:
            for number in range(10):
                s.say("user", f"m{number}")
                s.commit()
            line = s.internals.row.timeline
        with open_hub(store) as hub:
            hub.catalog.trim_events(line, 8)
            with hub.session("s") as s:
                assert [m.content for m in s.messages()] == [f"m{n}" for n in range(10)]
                check_chain(hub, s.id)


@pytest.mark.parametrize("durability", ["event", "group", "commit"])
def test_every_policy_keeps_what_was_committed(store: Path, durability: str) -> None:
    with open_hub(store) as hub:
        s = hub.session("s", durability=durability)  # type: ignore[arg-type]
        for number in range(500):
            s.say("user", f"m{number}")
        s.commit()
        s.pause()
    with open_hub(store) as hub, hub.session("s") as s:
        assert len(s.messages()) == 500
        check_chain(hub, s.id)


def test_plan_without_arguments_returns_the_plan(hub: Hub) -> None:
    with hub.session("s") as s:
        assert s.plan() == SessionPlan([], 0)
        s.plan(["reproduce", "fix"])
        s.advance()
        assert (s.plan().steps, s.plan().step, s.plan().current) == (["reproduce", "fix"], 1, "fix")
        s.advance()
        assert s.plan().current == ""


def test_log_lists_the_commits_of_the_session_newest_first(hub: Hub) -> None:
    with hub.session("s") as s:
        assert s.log() == []
        s.say("user", "one")
        first = s.commit("one")
        s.say("user", "two")
        second = s.commit("two")
        assert [one.oid for one in s.log()] == [second.oid, first.oid]
        assert [one.oid for one in s.log(limit=1)] == [second.oid]
        s.restore(first)  # a commit record
        assert [one.content for one in s.messages()] == ["one"]
        assert [one.oid for one in hub.get(s.id).log()] == [first.oid]


def test_drop_removes_the_session(hub: Hub) -> None:
    with hub.session("s") as s:
        s.say("user", "one")
        s.drop()
        with pytest.raises(NotFound):
            hub.get(s.id)


def test_a_session_opened_for_reading_refuses_to_write(hub: Hub) -> None:
    with hub.session("s") as s:
        s.say("user", "one")
    with pytest.raises(Refused) as caught:
        hub.get(s.id).conversation.say("user", "two")
    assert caught.value.kind == "read_only"
