"""A checkpoint goes to JSON and back, and a wrong one says which field is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from msgspec.structs import replace

import ortet
from ortet.errors import Invalid, OrtetError, Unsupported
from ortet.journal.reports.checkpoint import (
    AgentCheckpoint,
    CheckpointBudget,
    CheckpointMessage,
    CompletedEffect,
    ResumePoint,
    schema,
)
from ortet.journal.state.records import Approval, Artifact, Decision, Effect, Fact, Question

SCHEMA = Path(__file__).resolve().parents[3] / "docs" / "agent-checkpoint.schema.json"
FULL = AgentCheckpoint(
    session_id="0" * 32,
    timestamp=datetime(2026, 1, 2, 3, 4, 5, 678901, UTC),
    goal="make the suite green",
    plan=["reproduce", "fix"],
    current_step=1,
    context={"branch": "fix/lexer", "tries": 2.0, "deep": [{"a": None}]},
    messages=[
        CheckpointMessage("user", "hi"),
        CheckpointMessage("assistant", [{"type": "text", "text": "ho"}], 7, {"m": 1}),
    ],
    artifacts=[Artifact("report.md", 1, "ab" * 32, 7)],
    resume_point=ResumePoint(
        commit="cd" * 32,
        event=9,
        step=1,
        unsettled=[Effect("e1", "pay", "once", "unsettled", key="k")],
        done=[CompletedEffect(Effect("e2", "pay", "once", "done", key="l"), {"paid": 5})],
    ),
    facts=[Fact("f1", "tests need PYTHONPATH=src", "testing")],
    decisions=[Decision("d1", "patch", "small", ["rewrite"])],
    budget=CheckpointBudget({"usd": 5.0}, {"usd": 4.0}, {"usd": 1.5}),
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


def test_a_checkpoint_survives_to_json_and_from_json() -> None:
    assert AgentCheckpoint.from_json(FULL.to_json()) == FULL
    assert AgentCheckpoint.from_json(FULL.to_json().encode()) == FULL
    assert FULL.to_json() == AgentCheckpoint.from_json(FULL.to_json()).to_json()
    assert ortet.AgentCheckpoint is AgentCheckpoint


def test_a_checkpoint_written_by_another_json_library_is_read() -> None:
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
def test_text_that_is_not_a_checkpoint_is_refused_with_a_path(text: str | bytes) -> None:
    with pytest.raises(Invalid) as caught:
        AgentCheckpoint.from_json(text)
    assert caught.value.details["path"].startswith("$")


@cache
def validator() -> Draft202012Validator:
    published = json.loads(SCHEMA.read_text())
    Draft202012Validator.check_schema(published)
    return Draft202012Validator(published, format_checker=Draft202012Validator.FORMAT_CHECKER)


WAITING = replace(FULL, expires={"branch": 7}, approvals=[Approval("a1", "pay 5", "why")])


@pytest.mark.parametrize("record", [FULL, WAITING])
def test_a_json_schema_validator_accepts_a_checkpoint(record: AgentCheckpoint) -> None:
    validator().validate(json.loads(record.to_json()))
    assert AgentCheckpoint.from_json(record.to_json()) == record


def test_a_checkpoint_of_an_earlier_release_is_read() -> None:
    """What was written before notes had times and approvals were told."""
    old = json.loads(FULL.to_json())
    del old["expires"], old["approvals"]
    assert old["digest"] == "8d3e8ad3bc9527a6204eaf53711c744d9f1c5feb8ec22bd69826fa930d2e7fed"
    validator().validate(old)
    assert AgentCheckpoint.from_json(json.dumps(old)) == FULL


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (lambda c: c["expires"].update(branch=-1), '$.expires["branch"]'),
        (lambda c: c["approvals"][0].pop("what"), "$.approvals[0].what"),
        (lambda c: c["approvals"][0].update(state="given"), "$.approvals[0].state"),
        (lambda c: c["approvals"].append({"id": "a1", "what": "x"}), "$.approvals[1].id"),
    ],
)
def test_wrong_times_and_approvals_are_refused(
    change: Callable[[dict[str, Any]], object], path: str
) -> None:
    plain = json.loads(WAITING.to_json())
    del plain["digest"]
    change(plain)
    with pytest.raises(Invalid) as caught:
        AgentCheckpoint.from_json(json.dumps(plain))
    assert caught.value.details["path"] == path


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
COUNT = st.integers(0, 2**40)
WORDS = st.text(max_size=8)
AMOUNTS = st.dictionaries(WORDS, st.floats(0, 1e9, allow_nan=False), max_size=2)


@st.composite
def records(draw: st.DrawFn) -> AgentCheckpoint:
    plan = draw(st.lists(WORDS, max_size=3))
    ids = iter(range(100))
    effects = draw(st.lists(st.sampled_from(["pay", "mail"]), max_size=2))
    context = draw(st.dictionaries(WORDS, PLAIN, max_size=2))
    return AgentCheckpoint(
        session_id=draw(st.text(min_size=1, max_size=5)),
        timestamp=draw(st.datetimes(timezones=st.just(UTC))),
        goal=draw(WORDS),
        plan=plan,
        current_step=draw(st.integers(0, len(plan))),
        context=context,
        messages=draw(
            st.lists(st.builds(CheckpointMessage, st.text(min_size=1), PLAIN, COUNT), max_size=2)
        ),
        artifacts=draw(
            st.lists(st.builds(Artifact, WORDS, COUNT, st.just("ab" * 32), COUNT), max_size=2)
        ),
        resume_point=ResumePoint(
            commit=draw(WORDS),
            event=draw(COUNT),
            step=draw(COUNT),
            unsettled=[Effect(f"e{next(ids)}", name, "once", "unsettled") for name in effects],
            done=[CompletedEffect(Effect(f"e{next(ids)}", "pay", "once", "done"), draw(PLAIN))],
        ),
        facts=draw(st.lists(st.builds(Fact, WORDS, WORDS, WORDS, st.booleans()), max_size=2)),
        decisions=draw(st.lists(st.builds(Decision, WORDS, WORDS, WORDS), max_size=2)),
        budget=draw(st.builds(CheckpointBudget, AMOUNTS, AMOUNTS, AMOUNTS)),
        questions=draw(st.lists(st.builds(Question, WORDS, WORDS), max_size=2)),
        expires=dict.fromkeys(context, draw(COUNT)),
        approvals=[Approval(f"a{next(ids)}", what) for what in draw(st.lists(WORDS, max_size=2))],
    )


@settings(max_examples=100, deadline=None)
@given(records())
def test_any_checkpoint_is_schema_valid_and_survives_json(record: AgentCheckpoint) -> None:
    validator().validate(json.loads(record.to_json()))
    assert AgentCheckpoint.from_json(record.to_json()) == record


JSON = PLAIN | st.floats(-(2.0**50), 2.0**50)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_from_json_accepts_nothing_that_the_schema_refuses(data: st.DataObject) -> None:
    """Any part of a record replaced by anything: we never take what the schema does not."""
    plain = json.loads(WAITING.to_json())
    del plain["digest"]
    at: Any = plain
    while True:
        keys = sorted(at) if isinstance(at, dict) else list(range(len(at)))
        key = data.draw(st.sampled_from(keys))
        if isinstance(at[key], dict | list) and at[key] and data.draw(st.booleans()):
            at = at[key]
            continue
        at[key] = data.draw(JSON)
        break
    try:
        AgentCheckpoint.from_json(json.dumps(plain))
    except (Invalid, Unsupported) as error:
        if not _beyond_types(error):
            assert list(validator().iter_errors(plain))
    else:
        assert list(validator().iter_errors(plain)) == []


def _beyond_types(error: OrtetError) -> bool:
    """What no schema says: of a later format, steps behind the plan, ids that are no ids."""
    words = ("the plan has", "hexadecimal", "of its own", "was asked", "format", "datetime")
    return any(word in error.message for word in words)


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


def test_a_checkpoint_of_a_later_version_is_unsupported() -> None:
    with pytest.raises(Unsupported) as caught:
        AgentCheckpoint.from_json(edited(lambda c: c.update(version=2, plan="a graph")))
    assert caught.value.kind == "newer_checkpoint"


def test_a_value_that_json_cannot_hold_is_refused() -> None:
    with pytest.raises(Invalid):
        replace(FULL, context={"n": 1 << 80}).to_json()


def test_the_published_schema_matches_the_code() -> None:
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
