"""Conversations made fit for model APIs, and converted to their formats."""

from __future__ import annotations

from typing import Any

from ortet.journal.conversation.provider_formats import (
    normalise_messages,
    to_chat_completions,
    to_chat_part,
    to_content_part,
    to_content_parts,
    to_response_items,
)
from ortet.journal.state.records import Message

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
USE = {"type": "tool_use", "id": "c2", "name": "add", "input": {"a": 2}}
RESULT = {"type": "tool_result", "tool_use_id": "c2", "content": [{"type": "text", "text": "2"}]}


def use(id_: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": id_, "name": "f", "input": {}}


def result(id_: str, content: str = "ok") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id_, "content": content}


def said(*messages: tuple[str, Any] | tuple[str, Any, dict[str, Any]]) -> list[Message]:
    return [
        Message(number, one[0], one[1], 0, one[2] if len(one) > 2 else {})
        for number, one in enumerate(messages, 1)
    ]


TALK = said(
    ("system", "be kind"),
    ("user", "add", {"user": "ann"}),
    ("assistant", None, {"tool_calls": [CALL]}),
    ("tool", "1", {"tool_call_id": "c1", "name": "add"}),
    ("assistant", [{"type": "text", "text": "again"}, USE]),
    ("user", [RESULT]),
    ("assistant", "3"),
)


def test_parts_of_one_answer_are_one_message() -> None:
    found = normalise_messages(
        said(
            ("user", "go"),
            ("assistant", [{"type": "text", "text": "a"}], {"id": "m1"}),
            ("assistant", [use("1")], {"id": "m1"}),
            ("user", [result("1")]),
            ("assistant", [use("2")], {"id": "m1"}),
            ("user", [result("2")]),
            ("assistant", "done", {"id": "m2"}),
        ),
        to_content_part,
    )
    assert [one.role for one in found] == ["user", "assistant", "user", "user", "assistant"]
    assert found[1].content == [{"type": "text", "text": "a"}, use("1"), use("2")]


def test_each_call_has_one_result() -> None:
    found = normalise_messages(
        said(
            ("user", [result("nobody asked")]),
            ("assistant", [use("1"), use("1"), use("2")]),
            ("user", [result("1"), {"type": "text", "text": "and"}]),
            ("user", [result("1", "again")]),
            ("user", "next"),
        ),
        to_content_part,
    )
    assert found[0].content == [use("1"), use("2")]
    given = [part for one in found[1:] if isinstance(one.content, list) for part in one.content]
    ids = [part["tool_use_id"] for part in given if part["type"] == "tool_result"]
    assert sorted(ids) == ["1", "2"]
    assert found[-1].content == "next"


def test_pictures_are_converted_for_either_api() -> None:
    ours = {"type": "base64", "media_type": "image/png", "data": "AA=="}
    url = "data:image/png;base64,AA=="
    picture = {"type": "image", "source": ours}
    theirs = {"type": "image_url", "image_url": {"url": url}}
    assert to_chat_part(picture) == theirs
    assert to_content_part(theirs) == picture
    far = {"type": "image_url", "image_url": {"url": "https://host/a.png"}}
    assert to_content_part(far)["source"] == {"type": "url", "url": "https://host/a.png"}
    assert to_chat_part(to_content_part(far)) == far
    (item,) = to_response_items(said(("user", [theirs])))
    assert item["content"] == [{"type": "input_image", "image_url": url, "detail": "auto"}]


def test_results_of_frameworks_are_text_and_have_nothing_that_is_refused() -> None:
    answer = {**result("1"), "content": {"ok": True}, "name": "f"}
    (_, called, told) = normalise_messages(
        said(("user", "go"), ("assistant", [{**use("1"), "index": 0}]), ("user", [answer])),
        to_content_part,
    )
    assert called.content == [use("1")]
    assert told.content == [result("1", '{"ok":true}')]


def test_a_conversation_is_converted_to_chat_messages() -> None:
    assert to_chat_completions(TALK) == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "add"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "1", "tool_call_id": "c1", "name": "add"},
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "again"}],
            "tool_calls": [
                {
                    "id": "c2",
                    "type": "function",
                    "function": {"name": "add", "arguments": '{"a":2}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "c2", "content": "2"},
        {"role": "assistant", "content": "3"},
    ]


def test_a_conversation_is_converted_to_content_parts() -> None:
    assert to_content_parts(TALK, stable=2) == {
        "system": "be kind",
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "add", "cache_control": {"type": "ephemeral"}}
                ],
            },
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}}],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "1"}],
            },
            {"role": "assistant", "content": [{"type": "text", "text": "again"}, USE]},
            {"role": "user", "content": [RESULT]},
            {"role": "assistant", "content": [{"type": "text", "text": "3"}]},
        ],
    }


def test_consecutive_turns_of_one_role_are_joined() -> None:
    told = to_content_parts(
        said(("user", "one"), ("user", "two"), ("assistant", ""), ("user", "three"))
    )
    assert [one["role"] for one in told["messages"]] == ["user"]
    assert [part["text"] for part in told["messages"][0]["content"]] == ["one", "two", "three"]


def test_call_arguments_that_are_not_json_are_kept() -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": "{oops"}}
    (told,) = to_content_parts(said(("assistant", None, {"tool_calls": [call]})))["messages"]
    assert told["content"][0]["input"] == {"arguments": "{oops"}


def test_converting_does_not_change_the_recorded_messages() -> None:
    before = [dict(part) for part in TALK[5].content]
    to_content_parts(TALK, stable=6)
    assert TALK[5].content == before


def test_empty_messages_and_parts_are_left_out() -> None:
    said = [
        Message(1, "user", "hello"),
        Message(2, "assistant", [{"type": "text", "text": ""}, {"type": "text", "text": "yes"}]),
        Message(3, "user", " \n"),
        Message(4, "assistant", []),
    ]
    told = to_content_parts(said, stable=4)["messages"]
    assert [[part["text"] for part in one["content"]] for one in told] == [["hello"], ["yes"]]
    assert "cache_control" in told[-1]["content"][-1]
    assert to_chat_completions(said)[-1] == {"role": "assistant", "content": ""}


def test_calls_in_the_shape_of_frameworks_are_calls() -> None:
    flat = {"id": "c1", "name": "add", "args": {"a": 1}, "type": "tool_call"}
    talk = said(
        ("user", "add"),
        ("assistant", "", {"tool_calls": [flat]}),
        ("tool", "1", {"tool_call_id": "c1"}),
        ("assistant", [USE], {"tool_calls": [{"id": "c2", "name": "add", "args": {"a": 2}}]}),
        ("tool", "2", {"tool_call_id": "c2"}),
    )
    calls = [one["tool_calls"] for one in to_chat_completions(talk) if one["role"] == "assistant"]
    function = {"name": "add", "arguments": '{"a":1}'}
    assert calls[0] == [{"id": "c1", "type": "function", "function": function}]
    assert [call["id"] for call in calls[1]] == ["c2"]
    used = [
        one["content"] for one in to_content_parts(talk)["messages"] if one["role"] == "assistant"
    ]
    assert used == [[{"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}}], [USE]]
    assert to_response_items(talk)[1] == {"type": "function_call", "call_id": "c1", **function}
    loose = {"id": "c1", "function": {"name": "add", "arguments": {"a": 1}}}
    (told,) = to_chat_completions(said(("assistant", "", {"tool_calls": [loose]})))
    assert told["tool_calls"] == calls[0]
