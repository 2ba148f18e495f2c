"""A briefing tells what matters within its limit, and leaves out what matters least first."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.dict_objects import DictObjects

from ortet._util.codec import to_json
from ortet.errors import Invalid
from ortet.history.tree.tree import Maps
from ortet.journal.conversation.text import estimate_tokens
from ortet.journal.events import Event
from ortet.journal.kinds.event_kind import BriefingItems, FailedAction, PendingApproval
from ortet.journal.kinds.registry import fold
from ortet.journal.reports.briefing import make_briefing
from ortet.journal.state.records import Artifact, Effect, Fact, Message, Question
from ortet.journal.state.state import SessionState


def state_of(**events: dict[str, Any]) -> SessionState:
    """Return the state after one event of each kind, in order."""
    chain = [
        Event(seq, kind, seq, "me", data, b"") for seq, (kind, data) in enumerate(events.items(), 1)
    ]
    return fold(SessionState(Maps(DictObjects())), chain)


DEED = Effect("e1", "pay", "once", "unsettled", why="the invoice is due")
FULL = BriefingItems(
    name="fix-42",
    status="active",
    state=state_of(
        goal={"text": "make the suite green"},
        plan={"steps": ["reproduce", "fix", "verify"]},
        step={"step": 1},
        decision={
            "id": "d1",
            "text": "patch the lexer",
            "why": "smallest change",
            "instead_of": ["rewrite the parser"],
        },
    ),
    done=[Effect("e0", "search", "pure", "done", why="who calls parse()?")],
    failed=[FailedAction(Effect("e2", "build", "recorded", "failed"), "OSError: no space")],
    lessons=[Fact("f1", "mocking the clock hid the bug", lesson=True)],
    facts=[Fact("f2", "tests need PYTHONPATH=src", "testing")],
    questions=[Question("q1", "may I touch the grammar?")],
    artifacts=[Artifact("report.md", 2, "ab", 7, kind="report", link="https://example.org/r")],
    unsettled=[DEED],
    approvals=[PendingApproval("a1", "deploy", "it is friday")],
    limits={"usd": 5.0},
    left={"usd": 3.5},
    spent={"usd": 1.5, "tokens": 100},
    notes={"branch": "fix/lexer"},
    summary="it began with a bug",
    messages=[Message(9, "user", [{"type": "text", "text": "go on"}])],
)


def many(count: int) -> BriefingItems:
    return BriefingItems(
        name="s",
        status="active",
        state=state_of(
            goal={"text": "g" * 500},
            plan={"steps": [f"step {n} " + "p" * 200 for n in range(count)]},
            step={"step": count // 2},
        ),
        unsettled=[DEED],
        facts=[Fact(f"f{n}", f"fact {n} " + "f" * 200) for n in range(count)],
        messages=[Message(n, "user", f"message {n} " + "m" * 900) for n in range(count)],
    )


def test_a_briefing_within_its_limit_shows_every_section() -> None:
    shown = str(make_briefing(FULL, 2000))
    for text in (
        "make the suite green",
        "step 2 of 3",
        "- [x] 1. reproduce",
        "- [>] 2. fix",
        "- [ ] 3. verify",
        "`search`: who calls parse()?",
        "`build` failed with OSError: no space",
        "mocking the clock hid the bug",
        "testing: tests need PYTHONPATH=src",
        "patch the lexer, because smallest change; not taken: rewrite the parser",
        "may I touch the grammar?",
        "report.md (version 2, report, https://example.org/r)",
        "`pay`: the invoice is due (e1)",
        "deploy: it is friday (a1)",
        "usd: 3.5 left, 1.5 spent of 5",
        "tokens: no limit, 100 spent",
        "branch = fix/lexer",
        "it began with a bug",
        "user: go on",
    ):
        assert text in shown


def test_briefing_data_matches_its_markdown() -> None:
    found = make_briefing(FULL, 2000)
    to_json(found.data)
    assert found.left_out == {}
    assert (found.data["goal"], found.data["step"]) == ("make the suite green", 1)
    assert found.data["current_step"] == "fix"
    assert [step["state"] for step in found.data["plan"]] == ["done", "now", "to do"]
    assert found.data["unsettled"][0]["id"] == "e1"
    assert found.data["failed"][0]["error"] == "OSError: no space"
    assert found.data["decisions"][0]["instead_of"] == ["rewrite the parser"]
    assert {part["name"]: part["left"] for part in found.data["budget"]} == {
        "usd": 3.5,
        "tokens": None,
    }


@given(st.integers(1, 4000), st.integers(0, 100))
def test_a_briefing_never_exceeds_its_token_limit(tokens: int, count: int) -> None:
    known = many(count)
    found = make_briefing(known, tokens)
    assert estimate_tokens(found.markdown) == found.tokens <= tokens
    for key, things in (
        ("facts", known.facts),
        ("messages", known.messages),
        ("plan", known.state.core.plan),
    ):
        assert len(found.data[key]) + found.left_out.get(key, 0) == len(things)


def test_a_briefing_drops_the_least_important_items_first() -> None:
    found = make_briefing(many(80), 600)
    assert found.data["unsettled"]
    assert found.data["plan"]
    assert "step 40 " in found.data["current_step"]
    assert [m["seq"] for m in found.data["messages"]][-1:] in ([], [79])
    assert found.left_out["facts"] > 70
    kept = [fact["id"] for fact in found.data["facts"]]
    assert kept == [f"f{n}" for n in range(80 - len(kept), 80)]
    assert any(step["state"] == "now" for step in found.data["plan"])


def test_a_briefing_of_an_empty_session_says_that_no_goal_was_set() -> None:
    found = make_briefing(BriefingItems(name="s", status="open", state=state_of()), 100)
    assert "none was set" in found.markdown
    assert found.data["facts"] == []


def test_a_briefing_uses_the_token_counter_of_the_caller() -> None:
    found = make_briefing(many(50), 100, lambda text: len(text.split()))
    assert len(found.markdown.split()) <= 100


@pytest.mark.parametrize("tokens", [0, -1, True, 2.5, "9"])
def test_a_briefing_with_an_invalid_limit_is_refused(tokens: int) -> None:
    with pytest.raises(Invalid):
        make_briefing(FULL, tokens)
