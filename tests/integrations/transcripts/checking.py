"""What model APIs refuse a conversation for."""

from __future__ import annotations

from typing import Any

from openai.types.chat import ChatCompletionMessageParam
from openai.types.responses import ResponseInputItemParam
from pydantic import TypeAdapter

_CHAT: TypeAdapter[Any] = TypeAdapter(list[ChatCompletionMessageParam])
_ITEMS: TypeAdapter[Any] = TypeAdapter(list[ResponseInputItemParam])


def check_anthropic(told: dict[str, Any]) -> None:
    """Turns alternate, a user begins, calls are answered by the next message, thoughts signed."""
    messages = told["messages"]
    assert isinstance(told["system"], str)
    for number, one in enumerate(messages):
        assert one["role"] == ("user", "assistant")[number % 2]
        assert one["content"]
        kinds = [part["type"] for part in one["content"]]
        assert "reasoning" not in kinds
        results = [i for i, kind in enumerate(kinds) if kind == "tool_result"]
        assert results == list(range(len(results)))
        used = [part["id"] for part in one["content"] if part["type"] == "tool_use"]
        assert len(set(used)) == len(used)
        answers = messages[number + 1]["content"] if number + 1 < len(messages) else []
        answered = [part["tool_use_id"] for part in answers if part["type"] == "tool_result"]
        assert sorted(answered) == sorted(used)
        for part in one["content"]:
            if part["type"] == "thinking":
                assert isinstance(part["signature"], str) and one["role"] == "assistant"
            if part["type"] == "text":
                assert part["text"].strip()
            if part["type"] == "tool_use":
                assert isinstance(part["input"], dict)


def check_openai(messages: list[dict[str, Any]]) -> None:
    """The package's own types take them; every call is answered before anything else is said."""
    _CHAT.validate_python(messages)
    waiting: set[str] = set()
    for one in messages:
        if one["role"] == "tool":
            waiting.remove(one["tool_call_id"])
            continue
        assert not waiting
        waiting = {call["id"] for call in one.get("tool_calls", ())}
    assert not waiting


def check_responses(items: list[dict[str, Any]]) -> None:
    """The same for items."""
    _ITEMS.validate_python(items)
    called = [item["call_id"] for item in items if item["type"] == "function_call"]
    answered = [item["call_id"] for item in items if item["type"] == "function_call_output"]
    assert sorted(called) == sorted(answered)
