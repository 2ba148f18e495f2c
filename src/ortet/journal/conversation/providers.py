"""Convert a conversation to the formats of model APIs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from ortet._util.codec import to_json
from ortet.journal.conversation.text import text_of
from ortet.journal.conversation.tool_calls import results_of
from ortet.journal.state.records import Message

_SYSTEM_ROLES = ("system", "developer")
_EXTRA_FIELDS = ("name", "tool_calls", "tool_call_id", "refusal")
"""Fields of a chat completions message, beside role and content."""
_ARGUMENT_KEYS = ("input", "args", "arguments")
"""Keys that other APIs use for the arguments of a tool call."""


def to_chat_completions(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Return messages in the format of chat completions."""
    found: list[dict[str, Any]] = []
    for message in messages:
        parts = message.content if isinstance(message.content, list) else []
        calls = [part for part in parts if _type(part) == "tool_use"]
        results = [part for part in parts if _type(part) == "tool_result"]
        found += [
            {
                "role": "tool",
                "tool_call_id": part.get("tool_use_id", ""),
                "content": text_of(part.get("content")),
            }
            for part in results
        ]
        rest = [part for part in parts if _type(part) not in ("tool_use", "tool_result")]
        if results and not rest:
            continue
        content = (rest or None) if parts else "" if message.content == [] else message.content
        one: dict[str, Any] = {"role": message.role, "content": content}
        one |= {key: message.extra[key] for key in _EXTRA_FIELDS if key in message.extra}
        if calls:
            one["tool_calls"] = [_function_call(part) for part in calls]
        elif isinstance(one.get("tool_calls"), list | tuple):
            one["tool_calls"] = [_function_call(call) for call in one["tool_calls"]]
        found.append(one)
    return found


def _function_call(call: Any) -> Any:
    """Return a call of any format in the format of chat completions.

    A value that is not a call is returned unchanged.
    """
    made = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(made, dict) or "name" not in made:
        return call
    given: Any = next((made[key] for key in _ARGUMENT_KEYS if made.get(key)), {})
    arguments = given if isinstance(given, str) else to_json(given)
    function = {"name": made["name"], "arguments": arguments}
    return {"id": call.get("id", ""), "type": "function", "function": function}


def to_content_parts(messages: Iterable[Message], stable: int = 0) -> dict[str, Any]:
    """Return {"system", "messages"}, for APIs with separate rules and content parts.

    The end of the first `stable` messages is marked for the prompt cache.
    """
    rules: list[str] = []
    found: list[dict[str, Any]] = []
    for number, message in enumerate(messages, 1):
        if message.role in _SYSTEM_ROLES:
            rules.append(text_of(message.content))
            continue
        role = "assistant" if message.role == "assistant" else "user"
        content = [part for part in _message_parts(message) if not _is_blank(part)]
        if content and found and found[-1]["role"] == role:  # roles must alternate in this format
            found[-1]["content"] += content
        elif content:
            found.append({"role": role, "content": content})
        if found and number == stable:
            found[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
    return {"system": "\n\n".join(rules), "messages": found}


def to_response_items(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Return items of the Responses API. Calls, results and reasoning are separate items."""
    found: list[dict[str, Any]] = []
    for message in messages:
        content = message.content if isinstance(message.content, list) else None
        found += [dict(part) for part in content or () if _type(part) == "reasoning"]
        rest = [part for part in content or () if _type(part) != "reasoning"]
        if content and not rest:
            continue
        said = message if content is None else replace(message, content=rest)
        for one in to_chat_completions([said]):
            found += _items(one)
    return found


def _items(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the items of one chat completions message."""
    if message["role"] == "tool":
        output = {"call_id": message.get("tool_call_id", ""), "output": text_of(message["content"])}
        return [{"type": "function_call_output", **output}]
    found: list[dict[str, Any]] = []
    content = message["content"]
    if isinstance(content, list) and message["role"] == "user":
        content = [_input(part) for part in content]
    elif content is not None:
        content = text_of(content)
    if content:
        found.append({"type": "message", "role": message["role"], "content": content})
    for call in message.get("tool_calls") or ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            said = {"name": function.get("name", ""), "arguments": function.get("arguments", "{}")}
            found.append({"type": "function_call", "call_id": call.get("id", ""), **said})
    return found


def _input(part: Any) -> dict[str, Any]:
    if _type(part) == "image_url":
        given = part.get("image_url")
        url = given.get("url") if isinstance(given, dict) else given
        return {"type": "input_image", "image_url": url, "detail": "auto"}
    return {"type": "input_text", "text": text_of([part])}


def _message_parts(message: Message) -> list[dict[str, Any]]:
    content = message.content
    if message.role == "tool":
        (id_, *_) = results_of(message) or [""]
        return [{"type": "tool_result", "tool_use_id": id_, "content": text_of(content)}]
    found: list[dict[str, Any]] = []
    if isinstance(content, str):
        found.append({"type": "text", "text": content})
    elif isinstance(content, list):
        found += [
            dict(part) if isinstance(part, dict) else {"type": "text", "text": text_of(part)}
            for part in content
        ]
    elif content is not None:
        found.append({"type": "text", "text": text_of(content)})
    there = {part.get("id") for part in found if part.get("type") == "tool_use"}
    for call in message.extra.get("tool_calls") or ():
        found += [part for part in _tool_use_parts(call) if part["id"] not in there]
    return found


def _is_blank(part: dict[str, Any]) -> bool:
    """Return True for a text part without words. APIs refuse a conversation with one."""
    return part.get("type") == "text" and not text_of(part.get("text")).strip()


def _tool_use_parts(call: Any) -> list[dict[str, Any]]:
    call = _function_call(call)
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return []
    given = function.get("arguments") or "{}"
    try:
        arguments = msgspec.json.decode(given) if isinstance(given, str) else given
    except msgspec.DecodeError:
        arguments = {"arguments": given}
    if not isinstance(arguments, dict):
        arguments = {"arguments": arguments}
    name = function.get("name", "")
    return [{"type": "tool_use", "id": call.get("id", ""), "name": name, "input": arguments}]


def _type(part: Any) -> str:
    return str(part.get("type", "")) if isinstance(part, dict) else ""
