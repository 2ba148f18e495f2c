"""Calls find their results, in both shapes, and what a crash cut off is closed."""

from __future__ import annotations

from typing import Any

import pytest

from ortet.journal.conversation.tool_calls import (
    calls_of,
    group_messages,
    lost_result,
    results_of,
    unanswered_calls,
    without_obsolete_results,
)
from ortet.journal.state.records import Message, ToolCall


def said(seq: int, role: str, content: Any = "x", **extra: Any) -> Message:
    return Message(seq, role, content, extra=extra)


def call(seq: int, *ids: str) -> Message:
    calls = [{"id": id_, "type": "function", "function": {"name": f"f{id_}"}} for id_ in ids]
    return said(seq, "assistant", None, tool_calls=calls)


def result(seq: int, id_: str, **extra: Any) -> Message:
    return said(seq, "tool", "42", tool_call_id=id_, **extra)


def use(seq: int, *ids: str) -> Message:
    parts = [{"type": "tool_use", "id": id_, "name": f"f{id_}", "input": {}} for id_ in ids]
    return said(seq, "assistant", [{"type": "text", "text": "let me see"}, *parts])


def used(seq: int, *ids: str) -> Message:
    return said(seq, "user", [{"type": "tool_result", "tool_use_id": id_} for id_ in ids])


def test_calls_and_results_are_found_in_both_api_shapes() -> None:
    assert calls_of(call(1, "a", "b")) == [ToolCall("a", "fa"), ToolCall("b", "fb")]
    assert calls_of(use(1, "a")) == [ToolCall("a", "fa", part=True)]
    assert calls_of(said(1, "assistant", "", tool_calls=[{"id": "a", "name": "f"}])) == [
        ToolCall("a", "f")
    ]
    assert results_of(result(1, "a")) == ["a"]
    assert results_of(used(1, "a", "b")) == ["a", "b"]


@pytest.mark.parametrize(
    "message",
    [
        said(1, "user", "hi", tool_calls=[{"id": "a"}]),
        said(1, "assistant", 7, tool_calls=7),
        said(1, "assistant", [1, {"type": "tool_use"}], tool_calls=[{"id": 7}, "x", None]),
        said(1, "tool", None, tool_call_id=7),
        said(1, "tool", [{"type": "tool_result", "tool_use_id": None}]),
    ],
)
def test_malformed_messages_contain_no_calls_or_results(message: Message) -> None:
    assert not calls_of(message)
    assert not results_of(message)


def test_unanswered_lists_the_calls_without_a_result() -> None:
    waiting: list[ToolCall] = []
    for message in (call(1, "a", "b"), result(2, "a"), said(3, "user", "and?")):
        waiting = unanswered_calls(waiting, message)
    assert [c.id for c in waiting] == ["b"]
    assert unanswered_calls(waiting, said(4, "assistant", "never mind")) == []


@pytest.mark.parametrize("made", [call(1, "a"), use(1, "a")])
def test_a_lost_result_answers_its_call(made: Message) -> None:
    (waiting,) = calls_of(made)
    draft = lost_result(waiting, "me")
    message = Message(2, draft.data["role"], draft.data["content"], extra=draft.data["extra"])
    assert results_of(message) == ["a"]
    assert message.extra["synthetic"] is True
    assert unanswered_calls([waiting], message) == []


def test_a_real_result_replaces_the_made_up_one() -> None:
    made_up = result(2, "a", synthetic=True)
    assert without_obsolete_results([call(1, "a"), made_up]) == [call(1, "a"), made_up]
    assert without_obsolete_results([call(1, "a"), made_up, result(3, "a")]) == [
        call(1, "a"),
        result(3, "a"),
    ]
    again = [call(1, "a"), made_up, call(3, "a"), result(4, "a")]  # an id that is used again
    assert without_obsolete_results(again) == again


def test_groups_stay_together_and_in_the_order_apis_want() -> None:
    messages = [
        said(1, "user"),
        call(2, "a", "b"),
        result(3, "b"),
        said(4, "user", "by the way"),
        result(5, "a"),
        use(6, "c"),
        used(7, "c"),
        result(8, "nobody's"),
        said(9, "assistant"),
    ]
    assert [[m.seq for m in group] for group in group_messages(messages)] == [
        [1],
        [2, 3, 5, 4],
        [6, 7],
        [9],
    ]
    assert group_messages([]) == []
