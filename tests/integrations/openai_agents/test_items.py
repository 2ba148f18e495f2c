from __future__ import annotations

from typing import Any

import pytest
from tests.fixtures.agent_items import ITEMS

from ortet.errors import Invalid
from ortet.integrations.openai_agents.items import items_of, messages_of
from ortet.journal.conversation.tool_calls import calls_of, results_of
from ortet.journal.state.records import Message


def said(messages: list[dict[str, Any]]) -> list[Message]:
    found = []
    for seq, message in enumerate(messages):
        extra = {key: message[key] for key in message if key not in ("role", "content")}
        found.append(Message(seq, message["role"], message["content"], extra=extra))
    return found


@pytest.mark.parametrize("items", ITEMS)
def test_items_come_back_as_they_were(items: list[dict[str, Any]]) -> None:
    messages = said(messages_of(items))
    assert [item for _, several in items_of(messages) for item in several] == items


@pytest.mark.parametrize("items", ITEMS)
def test_every_prefix_of_the_items_comes_back_unchanged(items: list[dict[str, Any]]) -> None:
    for end in range(len(items)):
        messages = said(messages_of(items[:end]))
        assert [item for _, several in items_of(messages) for item in several] == items[:end]


def test_calls_and_results_are_found_as_in_any_session() -> None:
    first, *results = said(messages_of(ITEMS[12]))
    assert (first.content, [call.id for call in calls_of(first)]) == ("then", ["a", "b"])
    assert [results_of(one) for one in results] == [["b"], ["a"]]


def test_text_is_text_and_is_kept_once() -> None:
    item = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "hello there", "annotations": []}],
    }
    (message,) = messages_of([item])
    assert message["content"] == "hello there"
    assert str(message).count("hello there") == 1


def test_messages_of_other_programs_are_converted_to_items() -> None:
    messages = [
        Message(1, "user", [{"type": "text", "text": "see"}]),
        Message(2, "assistant", "", extra={"tool_calls": [{"id": "1", "name": "f"}]}),
        Message(3, "tool", {"n": 1}, extra={"tool_call_id": "1"}),
        Message(4, "narrator", "so it was"),
    ]
    assert [item for _, several in items_of(messages) for item in several] == [
        {"role": "user", "content": "see"},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": '{"n":1}'},
        {"role": "user", "content": "so it was"},
    ]


def test_an_item_that_is_not_a_dict_is_refused_by_number() -> None:
    with pytest.raises(Invalid, match="item 1 is str"):
        messages_of([{"role": "user", "content": "a"}, "b"])
