"""Normalise a conversation for model APIs.

Parts of one answer become one message. Each call has exactly one result directly after it. Images
get the form that the API accepts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from ortet._util.codec import to_json
from ortet.journal.conversation.text import text_of
from ortet.journal.conversation.tool_calls import (
    calls_of,
    group_messages,
    lost_result,
    results_of,
    without_obsolete_results,
)
from ortet.journal.state.records import Message, ToolCall

# Convert a conversation to the formats of model APIs.

_SYSTEM_ROLES = ("system", "developer")
_EXTRA_FIELDS = ("name", "tool_calls", "tool_call_id", "refusal")
"""Fields of a chat completions message, beside role and content."""
_ARGUMENT_KEYS = ("input", "args", "arguments")
"""Keys that other APIs use for the arguments of a tool call."""


def to_chat_completions(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Return messages in the format of chat completions."""
    converted: list[dict[str, Any]] = []
    for message in messages:
        parts = message.content if isinstance(message.content, list) else []
        calls = [part for part in parts if _type(part) == "tool_use"]
        results = [part for part in parts if _type(part) == "tool_result"]
        converted += [
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
        chat_message: dict[str, Any] = {"role": message.role, "content": content}
        chat_message |= {key: message.extra[key] for key in _EXTRA_FIELDS if key in message.extra}
        if calls:
            chat_message["tool_calls"] = [_function_call(part) for part in calls]
        elif isinstance(chat_message.get("tool_calls"), list | tuple):
            chat_message["tool_calls"] = [
                _function_call(call) for call in chat_message["tool_calls"]
            ]
        converted.append(chat_message)
    return converted


def _function_call(call: Any) -> Any:
    """Return a call of any format in the format of chat completions.

    A value that is not a call is returned unchanged.
    """
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or "name" not in function:
        return call
    value: Any = next((function[key] for key in _ARGUMENT_KEYS if function.get(key)), {})
    arguments = value if isinstance(value, str) else to_json(value)
    converted = {"name": function["name"], "arguments": arguments}
    return {"id": call.get("id", ""), "type": "function", "function": converted}


def to_content_parts(messages: Iterable[Message], stable: int = 0) -> dict[str, Any]:
    """Return {"system", "messages"}, for APIs with separate rules and content parts.

    The end of the first `stable` messages is marked for the prompt cache.
    """
    rules: list[str] = []
    converted: list[dict[str, Any]] = []
    for number, message in enumerate(messages, 1):
        if message.role in _SYSTEM_ROLES:
            rules.append(text_of(message.content))
            continue
        role = "assistant" if message.role == "assistant" else "user"
        content = [part for part in _message_parts(message) if not _is_blank(part)]
        if content and converted and converted[-1]["role"] == role:  # roles must alternate
            converted[-1]["content"] += content
        elif content:
            converted.append({"role": role, "content": content})
        if converted and number == stable:
            converted[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
    return {"system": "\n\n".join(rules), "messages": converted}


def to_response_items(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Return items of the Responses API. Calls, results and reasoning are separate items."""
    items: list[dict[str, Any]] = []
    for message in messages:
        content = message.content if isinstance(message.content, list) else None
        items += [dict(part) for part in content or () if _type(part) == "reasoning"]
        rest = [part for part in content or () if _type(part) != "reasoning"]
        if content and not rest:
            continue
        without_reasoning = message if content is None else replace(message, content=rest)
        for chat_message in to_chat_completions([without_reasoning]):
            items += _items(chat_message)
    return items


def _items(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the items of one chat completions message."""
    if message["role"] == "tool":
        output = {"call_id": message.get("tool_call_id", ""), "output": text_of(message["content"])}
        return [{"type": "function_call_output", **output}]
    items: list[dict[str, Any]] = []
    content = message["content"]
    if isinstance(content, list) and message["role"] == "user":
        content = [_input(part) for part in content]
    elif content is not None:
        content = text_of(content)
    if content:
        items.append({"type": "message", "role": message["role"], "content": content})
    for call in message.get("tool_calls") or ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            fields = {
                "name": function.get("name", ""),
                "arguments": function.get("arguments", "{}"),
            }
            items.append({"type": "function_call", "call_id": call.get("id", ""), **fields})
    return items


def _input(part: Any) -> dict[str, Any]:
    if _type(part) == "image_url":
        value = part.get("image_url")
        url = value.get("url") if isinstance(value, dict) else value
        return {"type": "input_image", "image_url": url, "detail": "auto"}
    return {"type": "input_text", "text": text_of([part])}


def _message_parts(message: Message) -> list[dict[str, Any]]:
    content = message.content
    if message.role == "tool":
        (id_, *_) = results_of(message) or [""]
        return [{"type": "tool_result", "tool_use_id": id_, "content": text_of(content)}]
    parts: list[dict[str, Any]] = []
    if isinstance(content, str):
        parts.append({"type": "text", "text": content})
    elif isinstance(content, list):
        parts += [
            dict(part) if isinstance(part, dict) else {"type": "text", "text": text_of(part)}
            for part in content
        ]
    elif content is not None:
        parts.append({"type": "text", "text": text_of(content)})
    present_ids = {part.get("id") for part in parts if part.get("type") == "tool_use"}
    for call in message.extra.get("tool_calls") or ():
        parts += [part for part in _tool_use_parts(call) if part["id"] not in present_ids]
    return parts


def _is_blank(part: dict[str, Any]) -> bool:
    """Return True for a text part without words. APIs refuse a conversation with one."""
    return part.get("type") == "text" and not text_of(part.get("text")).strip()


def _tool_use_parts(call: Any) -> list[dict[str, Any]]:
    call = _function_call(call)
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return []
    value = function.get("arguments") or "{}"
    try:
        arguments = msgspec.json.decode(value) if isinstance(value, str) else value
    except msgspec.DecodeError:
        arguments = {"arguments": value}
    if not isinstance(arguments, dict):
        arguments = {"arguments": arguments}
    name = function.get("name", "")
    return [{"type": "tool_use", "id": call.get("id", ""), "name": name, "input": arguments}]


def _type(part: Any) -> str:
    return str(part.get("type", "")) if isinstance(part, dict) else ""


_DATA = "data:"
_BASE64 = ";base64,"
_NEEDS = {"text": "text", "tool_use": "id", "tool_result": "tool_use_id", "thinking": "thinking"}
"""Field that a part of each type must have as text."""
_TOOL_USE_KEYS = ("type", "id", "name", "cache_control")
_TOOL_RESULT_KEYS = ("type", "tool_use_id", "is_error", "cache_control")
"""Fields that the API accepts in calls and results, beside their content."""
_API_ROLES = ("system", "developer", "user", "assistant", "tool")

ConvertPart = Callable[[dict[str, Any]], dict[str, Any]]


def normalise_messages(messages: Iterable[Message], convert: ConvertPart) -> list[Message]:
    """Return the messages in a form that a model API accepts.

    Args:
        messages: The conversation.
        convert: Function that converts one content part to the form of the API.
    """
    whole = group_messages(
        without_obsolete_results(list(_join_answers(map(_misplaced_parts_as_text, messages))))
    )
    closed = _pair_calls_with_results([message for group in whole for message in group])
    return [
        _normalise_role(replace(one, content=_convert_content(one.content, convert)))
        for one in closed
    ]


def _misplaced_parts_as_text(message: Message) -> Message:
    """Turn calls that no assistant made, and results in assistant messages, into text."""
    other = "tool_result" if message.role == "assistant" else "tool_use"
    content = message.content
    if not isinstance(content, list) or not any(_is_part_of_type(part, other) for part in content):
        return message
    converted = [
        {"type": "text", "text": text_of([p])} if _is_part_of_type(p, other) else p for p in content
    ]
    return replace(message, content=converted)


def _is_part_of_type(part: Any, kind: str) -> bool:
    return isinstance(part, dict) and part.get("type") == kind


def _join_answers(messages: Iterable[Message]) -> Iterator[Message]:
    """Join parts of one answer, which share `extra.id`, into one message.

    They were recorded as they arrived, with results between them.
    """
    waiting: Message | None = None
    between: list[Message] = []
    for message in messages:
        if message.role != "assistant":
            if results_of(message):
                between.append(message)
                continue
        elif waiting is not None and _is_same_answer(waiting, message):
            waiting = replace(waiting, content=[*_content_parts(waiting), *_content_parts(message)])
            continue
        if waiting is not None:
            yield waiting
        yield from between
        waiting, between = None, []
        if message.role == "assistant":
            waiting = message
        else:
            yield message
    if waiting is not None:
        yield waiting
    yield from between


def _is_same_answer(first: Message, second: Message) -> bool:
    id_ = first.extra.get("id")
    apart = "tool_calls" in first.extra or "tool_calls" in second.extra
    return isinstance(id_, str) and id_ == second.extra.get("id") and not apart


def _content_parts(message: Message) -> list[Any]:
    content = message.content
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": text_of(content)}] if content else []


def _pair_calls_with_results(messages: Sequence[Message]) -> Iterator[Message]:
    """Yield each call once, with exactly one result directly after it."""
    at = 0
    while at < len(messages):
        message = messages[at]
        at += 1
        calls = {call.id: call for call in calls_of(message)}
        yield _without_duplicate_parts(message, "id", set()) if calls else message
        if not calls:
            continue
        while at < len(messages) and results_of(messages[at]):
            yield from _matching_results(messages[at], calls)
            at += 1
        for call in calls.values():
            yield _synthetic_result(call)


def _matching_results(message: Message, calls: dict[str, ToolCall]) -> Iterator[Message]:
    """Yield the results in a message that answer open calls, and close those calls."""
    news = [id_ for id_ in results_of(message) if id_ in calls]
    if message.role == "tool" and not news:
        return
    others = {id_ for id_ in results_of(message) if id_ not in calls}
    for id_ in news:
        calls.pop(id_, None)
    yield _without_duplicate_parts(message, "tool_use_id", others)


def _without_duplicate_parts(message: Message, id_key: str, excluded: set[str]) -> Message:
    """Return the message without parts whose id is a duplicate or in `excluded`."""
    if not isinstance(message.content, list):
        return message
    seen_ids, parts = set(excluded), list[Any]()
    for part in message.content:
        id_ = part.get(id_key) if isinstance(part, dict) else None
        is_pair_part = isinstance(part, dict) and part.get("type") in ("tool_use", "tool_result")
        if is_pair_part and isinstance(id_, str):
            if id_ in seen_ids:
                continue
            seen_ids.add(id_)
        parts.append(part)
    return replace(message, content=parts)


def _synthetic_result(call: ToolCall) -> Message:
    data = lost_result(call, "").data
    return Message(0, data["role"], data["content"], 0, data["extra"])


def _normalise_role(message: Message) -> Message:
    """Return the message with a role that APIs know. Other roles become "user"."""
    return message if message.role in _API_ROLES else replace(message, role="user")


def _convert_content(content: Any, convert: ConvertPart) -> Any:
    """Return content as text or as parts that the API knows."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        return text_of(content)
    return [convert(_normalise_part(part)) for part in content]


def _normalise_part(part: Any) -> dict[str, Any]:
    """Return a valid part. A value that is not a part becomes text."""
    kind = part.get("type") if isinstance(part, dict) else None
    needs = _NEEDS.get(kind) if isinstance(kind, str) else None
    if not isinstance(kind, str) or (needs is not None and not isinstance(part.get(needs), str)):
        return {"type": "text", "text": text_of(part)}
    if kind == "tool_use":
        return {**part, "name": str(part.get("name") or "tool")}
    return dict(part)


def to_chat_part(part: dict[str, Any]) -> dict[str, Any]:
    """Convert a part for chat completions. An image becomes a URL, if needed a data URL."""
    source = part.get("source")
    if part.get("type") == "image" and isinstance(source, dict):
        url = source.get("url")
        if source.get("type") == "base64":
            url = f"{_DATA}{source.get('media_type', '')}{_BASE64}{source.get('data', '')}"
        return {"type": "image_url", "image_url": {"url": str(url)}}
    if part.get("type") in ("text", "image_url", "tool_use", "tool_result", "input_audio", "file"):
        return part
    return {"type": "text", "text": text_of([part])}


def _result(content: Any) -> dict[str, Any]:
    """Return the content of a result. Content that is neither text nor parts becomes text."""
    are_parts = isinstance(content, list) and all(
        isinstance(part, dict) and isinstance(part.get("type"), str) for part in content
    )
    return {"content": content if are_parts else text_of(content)}


def to_content_part(part: dict[str, Any]) -> dict[str, Any]:
    """Convert a part for APIs with content parts. An image has a URL or base64 data."""
    kind = part["type"]
    if kind == "tool_use":
        value = part.get("input")
        arguments = value if isinstance(value, dict) else {"input": value}
        return {key: part[key] for key in _TOOL_USE_KEYS if key in part} | {"input": arguments}
    if kind == "tool_result":
        return {key: part[key] for key in _TOOL_RESULT_KEYS if key in part} | _result(
            part.get("content")
        )
    if kind != "image_url":
        return part
    value = part.get("image_url")
    url = str(value.get("url", "")) if isinstance(value, dict) else str(value)
    head, separator, data = url.partition(_BASE64)
    source = {"type": "url", "url": url}
    if separator and head.startswith(_DATA):
        source = {"type": "base64", "media_type": head.removeprefix(_DATA), "data": data}
    return {"type": "image", "source": source}
