"""A session becomes a checkpoint, and a checkpoint a session, in this store and in another."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.fixtures import forked

from ortet.config.environment import open_hub
from ortet.errors import Conflict, Invalid, OrtetError, Refused, Unsettled
from ortet.hub.hub import Hub
from ortet.journal.reports.checkpoint import AgentCheckpoint
from ortet.sessions.session import Session


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Hub]:
    with open_hub(tmp_path / "other") as hub:
        yield hub


def work(s: Session) -> None:
    s.say("system", "be kind")
    s.say("user", "the login test fails")
    s.plan(["reproduce", "fix", "verify"])
    s.advance()
    s.note("branch", "fix/lexer")
    s.ask("may I?")
    s.learn("tests need PYTHONPATH=src", about="testing")
    s.lesson("mocking the clock hid the bug")
    s.decide("patch the lexer", why="smallest change", instead_of=["rewrite parser"])
    s.spend(usd=1.5)
    s.act(lambda: {"paid": 5}, name="pay", key="invoice-7", replay="once")
    s.say("assistant", [{"type": "text", "text": "on it"}], model="m")


def told(record: AgentCheckpoint) -> Any:
    """What must be the same in a session made of it: all but when and where it was said."""
    plain = msgspec.to_builtins(record)
    for key in ("session_id", "timestamp", "name"):
        del plain[key]
    for key in ("commit", "event"):
        del plain["resume_point"][key]

    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            skipped = ("seq", "time", "begun", "ended")
            return {k: strip(v) for k, v in value.items() if k not in skipped}
        return [strip(item) for item in value] if isinstance(value, list) else value

    return strip(plain)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_session_made_from_a_checkpoint_has_the_same_state(
    hub: Hub, other: Hub, elsewhere: bool
) -> None:
    with hub.session("fix-42", goal="make the suite green", budget={"usd": 5}) as s:
        work(s)
        s.commit("one")
        record = s.checkpoint()
        assert s.head is not None
        assert record.resume_point.commit == s.head.oid
        assert record.resume_point.step == record.current_step == 1
        assert hub.get(s.id).checkpoint().session_id == s.id
    target = other if elsewhere else hub
    with target.transfer.from_checkpoint(record.to_json(), name="again") as t:
        assert (t.name, t.agent, t.goal, t.status) == ("again", "default", s.goal, "active")
        assert told(t.checkpoint()) == told(record)
        assert [m.content for m in t.messages()] == [m.content for m in s.messages()]
        assert t.conversation.notes() == {"branch": "fix/lexer"}
        assert (t.steps, t.step) == (s.steps, 1)
        assert t.accounting.spent() == {"usd": 1.5}
        t.commit("two")
        assert t.act(lambda: {"paid": 0}, name="pay", key="invoice-7", replay="once") == {"paid": 5}
        (kid,) = t.fork(1)
        assert kid.act(lambda: {"paid": 0}, name="pay", key="invoice-7") == {"paid": 5}
    with target.session("again") as t:
        assert told(t.checkpoint()) == told(record)
    target.verify()


def test_checkpoint_carries_the_compaction_summary(hub: Hub, other: Hub) -> None:
    with hub.session("s") as s:
        s.say("system", "be kind")
        for number in range(9):
            s.say("user", f"m{number}")
        s.compact(2, lambda _: "they counted")
        record = s.checkpoint()
        context = [(m.role, m.content) for m in s.context()]
    with other.transfer.from_checkpoint(record) as t:
        assert t.name == "s"
        found = [(m.role, m.content) for m in t.context()]
        assert sorted(found) == sorted(context)
        assert t.conversation.dropped() == []
        assert t.compact(1) is not None
        assert [m.content for m in t.conversation.dropped()] == ["be kind", "m7"]


@pytest.mark.parametrize("elsewhere", [False, True])
def test_checkpoint_keeps_an_unsettled_effect_unsettled(
    store: Path, other: Hub, elsewhere: bool
) -> None:
    code = f"""
import ortet, os, signal
s = ortet.open({str(store)!r}).session("s")
s.act(lambda: os.kill(os.getpid(), signal.SIGKILL), name="pay", key="k", replay="once", why="due")
"""
    assert forked.run([sys.executable, "-c", code], check=False).returncode == -9
    with open_hub(store) as hub:
        with hub.session("s") as s:
            record = s.checkpoint()
        (effect,) = record.resume_point.unsettled
        assert (effect.name, effect.why) == ("pay", "due")
        with (other if elsewhere else hub).transfer.from_checkpoint(record, name="t") as t:
            done: list[int] = []
            with pytest.raises(Unsettled if elsewhere else Conflict):
                t.act(lambda: done.append(1), name="pay", key="k", replay="once")
            t.actions.settle(effect.id, {"paid": True})
            assert t.act(lambda: done.append(1), name="pay", key="k", replay="once") == {
                "paid": True
            }
            assert done == []


def test_from_checkpoint_refuses_a_taken_or_invalid_name(hub: Hub) -> None:
    with hub.session("s") as s:
        record = s.checkpoint()
    with pytest.raises(Conflict) as caught:
        hub.transfer.from_checkpoint(record)
    assert caught.value.kind == "name_taken"
    with hub.transfer.from_checkpoint(record, agent="helper") as t:
        assert (t.name, t.agent) == ("s", "helper")
    with pytest.raises(Invalid):
        hub.transfer.from_checkpoint(record, name="../x")


def test_bad_checkpoint_is_refused_and_makes_no_session(hub: Hub) -> None:
    with hub.session("s") as s:
        work(s)
        record = s.checkpoint()
    before = [row.id for row in hub.sessions()]
    for wrong in (
        7,
        record.to_json()[:-9],
        record.to_json().replace("login", "logout"),
        msgspec.structs.replace(record, name="t", current_step=9),
        msgspec.structs.replace(record, name="t", context={"n": float("nan")}),
        msgspec.structs.replace(record, name=""),
    ):
        with pytest.raises(Invalid):
            hub.transfer.from_checkpoint(wrong)  # type: ignore[arg-type]
    assert [row.id for row in hub.sessions()] == before


def test_a_call_in_flight_is_closed_at_the_next_open(hub: Hub, other: Hub) -> None:
    calls = [{"id": "c1", "function": {"name": "f"}}]
    with hub.session("s") as s:
        s.say("assistant", None, tool_calls=calls)
        record = s.checkpoint()
    with other.transfer.from_checkpoint(record) as t:
        assert len(t.messages()) == 1
    with other.session("s") as t:
        assert t.messages()[-1].extra["synthetic"] is True


def test_checkpoint_keeps_spent_amounts_and_limits(hub: Hub, other: Hub) -> None:
    with hub.session("s", budget={"usd": 5, "soft": {"usd": 4}}) as s:
        s.spend(usd=3)
        record = s.checkpoint()
    with hub.transfer.from_checkpoint(record, name="t") as t:
        assert (t.accounting.spent(), t.accounting.budget_left()) == ({"usd": 3}, {"usd": 2})
        t.spend(usd=1)
    assert hub.get(s.id).accounting.budget_left() == {"usd": 1}  # one family, one budget
    with other.transfer.from_checkpoint(record) as t:
        assert (t.accounting.limits(), t.accounting.spent(), t.accounting.budget_left()) == (
            {"usd": 5},
            {"usd": 3},
            {"usd": 2},
        )
        assert other.bill() == []  # it was paid where it was spent
        with pytest.raises(Refused):
            t.spend(usd=2.5)


def test_artifacts_keep_their_content_where_it_is(hub: Hub, other: Hub) -> None:
    with hub.session("s") as s:
        s.artifact("report.md", data=b"all is well", kind="report")
        record = s.checkpoint()
    with hub.transfer.from_checkpoint(record, name="t") as t:
        assert t.artifact_store.artifact_data("report.md") == b"all is well"
        t.commit()
    hub.verify()
    with other.transfer.from_checkpoint(record) as t:
        assert [artifact.name for artifact in t.artifacts()] == ["report.md"]
        with pytest.raises(OrtetError):
            t.artifact_store.artifact_data("report.md")
        t.commit()
    other.verify()


def test_checkpoint_carries_note_expiry_and_pending_approvals(hub: Hub, other: Hub) -> None:
    """Failed before: a note lived for ever elsewhere, and nobody knew what was asked."""

    def pay(session: Session) -> Any:
        return session.act(lambda: "paid", name="pay", replay="once", key="p", approve="it is much")

    with hub.session("s") as s:
        s.note("short", 1, ttl=3600)
        s.note("long", 2)
        with pytest.raises(Refused) as caught:
            pay(s)
        record = s.checkpoint()
        assert list(record.expires) == ["short"]
        assert [asked.id for asked in record.approvals] == [caught.value.details["id"]]
    with other.transfer.from_checkpoint(record.to_json()) as t:
        assert t.conversation.notes() == {"short": 1, "long": 2}
        assert {note.key: note.expires for note in t.internals.state.notes} == {
            **record.expires,
            "long": 0,
        }
        (asked,) = t.actions.approvals()
        with pytest.raises(Refused):
            pay(t)
        other.approve(t.id, asked.id, by="boss")
        assert pay(t) == "paid"
