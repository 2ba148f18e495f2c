"""The whole chain of a session checked; what cannot be hidden from it."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from ortet.config.environment import open_hub
from ortet.errors import Corrupt, NotFound
from ortet.hub.hub import Hub
from ortet.ids import from_hex
from ortet.sessions.history.compare import explain_commit


def test_audit_reports_actor_action_and_reason_of_each_event(hub: Hub) -> None:
    with hub.session("s", goal="g", budget={"usd": 1.0}) as s:
        s.say("user", "hi")
        s.say("assistant", [{"type": "text", "text": "x"}])
        s.plan(["a", "b"])
        s.note("k", 1)
        s.act(lambda: 1, why="to see", name="look", key="k1")
        s.decide("left", why="shorter")
        s.commit()
        s.think("hm")
        s.compact(keep_last=1)
        (deed,) = s.effects()
    report = hub.audit(s.id)
    assert report.events == report.lines[-1].seq == len(list(hub.get(s.id).events()))
    assert report.head == report.lines[-1].hash
    assert 0 < report.sealed < report.events
    lines = {(line.kind, line.what, line.why) for line in report.lines}
    assert {
        ("message", "user: hi", ""),
        ("message", "assistant: x", ""),
        ("begun", f"look (recorded) key k1, {deed.id[-8:]}", "to see"),
        ("ended", f"{deed.id[-8:]} done", ""),
        ("compaction", "left out 1 messages, events 4 to 4", ""),
        ("decision", "left", "shorter"),
        ("plan", "a; b", ""),
        ("lifecycle", "active -> paused", ""),
    } <= lines
    assert {line.actor for line in report.lines} == {hub.store.author}


def test_audit_and_briefing_show_a_message_that_only_calls_a_tool(hub: Hub) -> None:
    function = {"name": "look", "arguments": '{"at":1}'}
    flat = {"id": "c2", "name": "look", "args": {"at": 2}}
    with hub.session("s") as s:
        s.say("assistant", "", tool_calls=[{"id": "c1", "function": function}])
        s.say("assistant", "", tool_calls=[flat, 7])
        s.accounting.model_call("someone", "some-model")
        briefing = s.briefing().markdown
    said = [line.what for line in hub.audit(s.id).lines]
    assert 'assistant: [calls look {"at":1}]' in said and "some-model" in said
    assert any(one.startswith('assistant: [calls look {"at":2}]') for one in said)
    assert '[calls look {"at":2}]' in briefing


def test_audit_shows_the_text_of_commands_and_tool_calls(hub: Hub) -> None:
    call = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}}
    with hub.session("s") as s:
        s.say("assistant", [call])
        s.run("echo hi", why="to see")
        s.run(["echo", "there"])
        led = explain_commit(hub.internals.services, from_hex(s.commit().oid))
    told = [line.what for line in hub.audit(s.id).lines]
    assert 'assistant: [calls Bash {"command":"ls"}]' in told
    assert [what.partition(": ")[2] for what in told if what.startswith("run (")] == [
        "echo hi",
        "echo there",
    ]
    assert [one.text for one in led.reasons if one.kind == "action"] == [
        "run: echo hi",
        "run: echo there",
    ]


def test_audit_passes_for_forks_and_for_trimmed_rows(hub: Hub) -> None:
    with hub.session("s") as s:
        for number in range(5):
            s.say("user", str(number))
            s.commit()
        (kid,) = s.fork(machine=False)
        kid.say("user", "mine")
        kid.commit()
        kid.pause()
    hub.catalog.trim_events(s.internals.row.timeline, 5)
    for id_ in (s.id, kid.id):
        hub.audit(id_)
    hub.verify()


def test_audit_of_an_unknown_session_is_not_found(hub: Hub) -> None:
    with pytest.raises(NotFound):
        hub.audit("0" * 32)


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET body = (SELECT body FROM events WHERE seq = 2) WHERE seq = 3",
        "UPDATE events SET salt = NULL, body = NULL WHERE seq = 3",
        "UPDATE events SET head = (SELECT head FROM events WHERE seq = 2) WHERE seq = 3",
    ],
)
def test_audit_and_verify_detect_tampered_event_rows(
    store: Path, statement: str, committed: bool
) -> None:
    with open_hub(store) as hub, hub.session("s") as s:
        for number in range(4):
            s.say("user", str(number))
        if committed:
            s.commit()
    db = apsw.Connection(str(store / "catalog.db"))
    db.execute(statement)
    db.close()
    with open_hub(store) as hub:
        with pytest.raises(Corrupt) as caught:
            hub.audit(s.id)
        assert caught.value.details["seq"] in (2, 3)
        with pytest.raises(Corrupt):
            hub.verify()


def test_audit_detects_a_consistent_chain_that_differs_from_the_commit(store: Path) -> None:
    """Rows that are sound among themselves, but another history than the commit's."""
    with open_hub(store) as hub:
        for name in ("s", "t"):
            with hub.session(name) as s:
                s.say("user", name)
                s.commit()
        first, second = (hub.get(row.id).internals.row.timeline for row in hub.sessions())
        ids = [row.id for row in hub.sessions()]
    db = apsw.Connection(str(store / "catalog.db"))
    db.execute("DELETE FROM events WHERE timeline = ?", (bytes.fromhex(first),))
    db.execute(
        "INSERT INTO events SELECT ?, seq, head, salt, body FROM events WHERE timeline = ?",
        (bytes.fromhex(first), bytes.fromhex(second)),
    )
    db.close()
    with open_hub(store) as hub:
        with pytest.raises(Corrupt):
            hub.audit(ids[0])
        with pytest.raises(Corrupt):
            hub.verify()


def test_enterprise_profile_audits_a_session_before_it_closes(store: Path) -> None:
    with open_hub(store) as hub, hub.session("s", profile="enterprise") as s:
        for number in range(4):
            s.say("user", str(number))
        db = apsw.Connection(str(store / "catalog.db"))
        (kept,) = db.execute("SELECT body FROM events WHERE seq = 3")
        db.execute("UPDATE events SET body = (SELECT body FROM events WHERE seq = 2) WHERE seq = 3")
        with pytest.raises(Corrupt):
            s.finish("done")
        assert s.status == "active"  # as it was, and open
        s.say("user", "still here")
        db.execute("UPDATE events SET body = ? WHERE seq = 3", kept)
        db.close()
        s.finish("done")
        assert hub.get(s.id).status == "closed"
        s.finish()  # which it is already


def test_default_profile_closes_a_session_without_an_audit(store: Path) -> None:
    with open_hub(store) as hub, hub.session("s") as s:
        s.say("user", "x")
        db = apsw.Connection(str(store / "catalog.db"))
        db.execute("UPDATE events SET body = (SELECT body FROM events WHERE seq = 1) WHERE seq = 2")
        db.close()
        s.finish()
        assert s.status == "closed"
