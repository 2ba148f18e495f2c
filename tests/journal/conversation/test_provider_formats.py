"""Conversations made fit for a model API."""

from __future__ import annotations

from typing import Any

from ortet.journal.conversation.provider_formats import (
    normalise_messages,
    to_chat_part,
    to_content_part,
    to_response_items,
)
from ortet.journal.state.records import Message


def use(id_: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": id_, "name": "f", "input": {}}


def result(id_: str, content: str = "ok") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id_, "content": content}


def said(*messages: tuple[str, Any] | tuple[str, Any, dict[str, Any]]) -> list[Message]:
    return [
        Message(number, one[0], one[1], 0, one[2] if len(one) > 2 else {})
        for number, one in enumerate(messages, 1)
    ]


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
