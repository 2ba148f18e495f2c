from __future__ import annotations

from typing import Any

import pytest

from ortet.errors import Invalid
from ortet.journal.pairs import calls_of, results_of
from ortet.journal.things import Message
from ortet.surface.openai_agents.items import items_of, messages_of

ITEMS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "hi"}],
    [{"role": "user", "content": "hi", "type": "message"}],
    [{"role": "system", "content": ""}, {"role": "developer", "content": [{"type": "x"}]}],
    [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
    [{"role": "user", "content": [{"type": "input_image", "image_url": "u", "detail": "low"}]}],
    [{"role": "user"}, {"role": "odd", "content": {"a": 1}}],
    [{"role": "assistant", "content": "plain"}],
    [{"role": "assistant", "content": "plain"}, {"role": "assistant", "content": "again"}],
    [{"role": "assistant", "content": []}, {"role": "assistant", "content": None}],
    [{"role": "assistant", "content": [{"type": "output_text", "text": "a"}]}],
    [
        {
            "id": "m",
            "role": "assistant",
            "type": "message",
            "status": "completed",
            "content": [
                {"type": "output_text", "text": "a", "annotations": [], "logprobs": []},
                {"type": "refusal", "refusal": "no"},
            ],
        }
    ],
    [{"role": "assistant", "content": [{"type": "output_text", "text": 5}]}],
    [
        {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "x"},
        {"role": "assistant", "content": "then", "id": "m", "type": "message", "phase": "p"},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}", "id": "fc"},
        {"type": "function_call", "call_id": "b", "name": "g", "arguments": "{}", "namespace": "n"},
        {"type": "function_call_output", "call_id": "b", "output": "2"},
        {"type": "function_call_output", "call_id": "a", "output": "1", "status": "completed"},
    ],
    [
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": {"x": 1}},
        {"type": "function_call", "call_id": "b"},
        {"type": "function_call_output", "call_id": "a"},
        {"type": "function_call_output", "call_id": "b", "output": [{"type": "input_text"}]},
    ],
    [
        {"type": "computer_call", "call_id": "k", "id": "1", "action": {"type": "click"}},
        {"type": "computer_call_output", "call_id": "k", "output": {"type": "computer_screenshot"}},
        {"type": "custom_tool_call", "call_id": "t", "name": "n", "input": "raw"},
        {"type": "custom_tool_call_output", "call_id": "t", "output": "r"},
        {"type": "tool_search_output", "call_id": None, "tools": []},
        {"type": "tool_search_call", "call_id": "s", "arguments": {}},
        {"type": "tool_search_output", "call_id": "s", "tools": []},
    ],
    [
        {"type": "web_search_call", "id": "ws", "status": "completed", "action": {}},
        {"type": "mcp_approval_request", "id": "r", "name": "n", "arguments": "{}"},
        {"type": "mcp_approval_response", "approval_request_id": "r", "approve": True},
        {"type": "compaction", "id": "cmp", "encrypted_content": "zzz"},
        {"type": "item_reference", "id": "x"},
        {"type": "of a later release", "deep": {"er": [1, {"a": None}]}},
        {},
    ],
]


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
