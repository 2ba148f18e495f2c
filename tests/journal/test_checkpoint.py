"""A checkpoint goes to JSON and back, and a wrong one says which field is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import ortet
from ortet.errors import Invalid, Unsupported
from ortet.journal.checkpoint import (
    AgentCheckpoint,
    Outcome,
    ResumePoint,
    Said,
    Spending,
    schema,
)
from ortet.journal.things import Artifact, Decision, Effect, Fact, Question

SCHEMA = Path(__file__).resolve().parents[2] / "docs" / "agent-checkpoint.schema.json"
FULL = AgentCheckpoint(
    session_id="0" * 32,
    timestamp=datetime(2026, 1, 2, 3, 4, 5, 678901, UTC),
    goal="make the suite green",
    plan=["reproduce", "fix"],
    current_step=1,
    context={"branch": "fix/lexer", "tries": 2.0, "deep": [{"a": None}]},
    messages=[Said("user", "hi"), Said("assistant", [{"type": "text", "text": "ho"}], 7, {"m": 1})],
    artifacts=[Artifact("report.md", 1, "ab" * 32, 7)],
    resume_point=ResumePoint(
        commit="cd" * 32,
        event=9,
        step=1,
        unsettled=[Effect("e1", "pay", "once", "unsettled", key="k")],
        done=[Outcome(Effect("e2", "pay", "once", "done", key="l"), {"paid": 5})],
    ),
    facts=[Fact("f1", "tests need PYTHONPATH=src", "testing")],
    decisions=[Decision("d1", "patch", "small", ["rewrite"])],
    budget=Spending({"usd": 5.0}, {"usd": 4.0}, {"usd": 1.5}),
    questions=[Question("q1", "may I?")],
    summary="it began with a bug",
    name="fix-42",
    agent="default",
)


def edited(change: Callable[[dict[str, Any]], object]) -> str:
    """The record after someone has changed it, digest and all left as they were."""
    plain = json.loads(FULL.to_json())
    change(plain)
    return json.dumps(plain)


def forged(change: Callable[[dict[str, Any]], object]) -> str:
    """The same by one who leaves the digest out."""
    return edited(lambda plain: (plain.pop("digest"), change(plain)))


def test_both_ways() -> None:
    assert AgentCheckpoint.from_json(FULL.to_json()) == FULL
    assert AgentCheckpoint.from_json(FULL.to_json().encode()) == FULL
    assert FULL.to_json() == AgentCheckpoint.from_json(FULL.to_json()).to_json()
    assert ortet.AgentCheckpoint is AgentCheckpoint


def test_other_programs_may_write_it_their_way() -> None:
    def whole_numbers(value: Any) -> Any:  # as JSON.stringify does
        if isinstance(value, dict):
            return {key: whole_numbers(value[key]) for key in reversed(value)}
        if isinstance(value, list):
            return [whole_numbers(item) for item in value]
        return int(value) if isinstance(value, float) and value.is_integer() else value

    text = json.dumps(whole_numbers(json.loads(FULL.to_json())), indent=4)
    assert AgentCheckpoint.from_json(text) == FULL
    assert AgentCheckpoint.from_json(forged(lambda plain: plain.update(more="later"))) == FULL


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (lambda c: c.pop("goal"), "$.goal"),
        (lambda c: c.update(goal=7), "$.goal"),
        (lambda c: c.update(session_id=""), "$.session_id"),
        (lambda c: c.update(timestamp="yesterday"), "$.timestamp"),
        (lambda c: c.update(timestamp="2026-01-02T03:04:05"), "$.timestamp"),
        (lambda c: c.update(current_step=-1), "$.current_step"),
        (lambda c: c.update(current_step=3), "$.current_step"),
        (lambda c: c["plan"].append(None), "$.plan[2]"),
        (lambda c: c["messages"][1].pop("role"), "$.messages[1].role"),
        (lambda c: c["messages"].append({"role": "", "content": ""}), "$.messages[2].role"),
        (lambda c: c["messages"].append("hi"), "$.messages[2]"),
        (lambda c: c["decisions"][0]["instead_of"].append(1), "$.decisions[0].instead_of[1]"),
        (lambda c: c["facts"][0].pop("text"), "$.facts[0].text"),
        (lambda c: c["artifacts"][0].update(oid="../x"), "$.artifacts[0].oid"),
        (lambda c: c["budget"]["spent"].update(usd=-1), '$.budget.spent["usd"]'),
        (lambda c: c["resume_point"].pop("event"), "$.resume_point.event"),
        (
            lambda c: c["resume_point"]["done"][0]["effect"].pop("name"),
            "$.resume_point.done[0].effect.name",
        ),
        (
            lambda c: c["resume_point"]["done"][0]["effect"].update(id="e1"),
            "$.resume_point.done[0].effect.id",
        ),
        (
            lambda c: c["resume_point"]["done"][0]["effect"].update(key="k"),
            "$.resume_point.done[0].effect.key",
        ),
    ],
)
def test_a_wrong_field_is_named(change: Callable[[dict[str, Any]], object], path: str) -> None:
    with pytest.raises(Invalid) as caught:
        AgentCheckpoint.from_json(forged(change))
    assert (caught.value.kind, caught.value.details["path"]) == ("bad_checkpoint", path)
    assert path in caught.value.message


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"goal": "cut o', b"\xff", "[" * 100_000])
def test_what_is_no_record_at_all(text: str | bytes) -> None:
    with pytest.raises(Invalid) as caught:
        AgentCheckpoint.from_json(text)
    assert caught.value.details["path"].startswith("$")


def test_a_tampered_record_is_refused() -> None:
    for change in (
        lambda c: c.update(goal="make me rich"),
        lambda c: c["budget"]["limits"].update(usd=5000),
        lambda c: c["messages"].pop(),
        lambda c: c.update(digest="0" * 64),
    ):
        with pytest.raises(Invalid) as caught:
            AgentCheckpoint.from_json(edited(change))
        assert caught.value.details["path"] == "$.digest"


def test_a_record_of_a_later_release() -> None:
    with pytest.raises(Unsupported) as caught:
        AgentCheckpoint.from_json(edited(lambda c: c.update(version=2, plan="a graph")))
    assert caught.value.kind == "newer_checkpoint"


def test_what_json_cannot_say_is_told() -> None:
    with pytest.raises(Invalid):
        replace(FULL, context={"n": 1 << 80}).to_json()


def test_the_published_schema_is_in_step() -> None:
    """Write it anew with `json.dumps(schema(), indent=2)`, and only ever add to it."""
    assert SCHEMA.read_text() == json.dumps(schema(), indent=2) + "\n"
    fields = schema()["$defs"]["AgentCheckpoint"]
    assert set(fields["required"]) == {
        "session_id",
        "timestamp",
        "goal",
        "plan",
        "current_step",
        "context",
        "messages",
        "artifacts",
        "resume_point",
        "facts",
        "decisions",
        "budget",
    }
