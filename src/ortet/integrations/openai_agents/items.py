"""Converts items of the Responses API to messages and back, lossless and without duplication.

The reasoning, text and tool calls of one model response form one assistant message. The session
pairs calls with results by that message. `extra.openai` holds, for each item, what the message
itself does not: under "message", "call" or "result", or the whole item under "raw".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ortet.errors import Invalid
from ortet.journal.conversation.text import text_of
from ortet.journal.state.records import Message, ToolCall

Item = dict[str, Any]

EXTRA_KEY = "openai"
_OUTPUTS = {"tool_search_output", "program_output"}
_OUTPUT_TYPE_BY_CALL = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
}
"""Types of calls that can get a synthetic result, with the type of that result."""
_ROLES = ("user", "system", "developer")
_USER_ITEM_TYPES = {"mcp_approval_response"}
OPEN_CALL_TEXT = (
    "No result: this call waits for an approval, or its process ended before the call did. "
    "It may or may not have been done."
)
"""The SDK stores a call without its result only while it waits for an approval."""
_EMPTY_EXTRA: list[dict[str, Any]] = [{"message": {}}]
"""The extra data of a plain text, which needs none."""


def messages_of(items: Sequence[Any]) -> list[dict[str, Any]]:
    """Convert items to messages in the form that `say_all` takes."""
    messages: list[dict[str, Any]] = []
    group: _AssistantMessage | None = None
    for number, item in enumerate(items):
        if type(item) is not dict and not isinstance(item, Mapping):
            raise Invalid(
                "bad_item",
                f"item {number} is {type(item).__name__}: give dicts, as result.to_input_list() "
                "has them",
            )
        own = dict(item)
        if len(own) == 2 and own.get("role") in _ROLES and type(own.get("content")) is str:
            group = None
            messages.append(own)
            continue
        alone = _non_assistant_message(own)
        if alone is not None:
            group = None
            messages.append(alone)
            continue
        if group is None or not group.accepts(item):
            group = _AssistantMessage()
            messages.append(group.message)
        group.add(own)
    for message in messages:
        if message.get(EXTRA_KEY) == _EMPTY_EXTRA and isinstance(message["content"], str):
            del message[EXTRA_KEY]
    return messages


def _non_assistant_message(item: Item) -> dict[str, Any] | None:
    """Return the message of an item that is not from a model; None for other items."""
    role, type_, call = item.get("role"), item.get("type"), item.get("call_id")
    if isinstance(role, str) and role and role != "assistant":
        if "content" not in item:
            return {"role": role, "content": None, EXTRA_KEY: [{"raw": item}]}
        content, rest = item["content"], _without(item, "role", "content")
        own = {} if not rest and isinstance(content, str) else {EXTRA_KEY: [{"message": rest}]}
        return {"role": role, "content": content, **own}
    if isinstance(call, str) and _is_output(type_):
        result = {"role": "tool", "content": item.get("output"), "tool_call_id": call}
        if "output" not in item:
            return {**result, EXTRA_KEY: [{"raw": item}]}
        rest = _without(item, "call_id", "output")
        if rest == {"type": "function_call_output"} and isinstance(item["output"], str):
            return result
        return {**result, EXTRA_KEY: [{"result": rest}]}
    if type_ in _USER_ITEM_TYPES:
        return {"role": "user", "content": "", EXTRA_KEY: [{"raw": item}]}
    return None


class _AssistantMessage:
    """An assistant message under construction from items."""

    def __init__(self) -> None:
        self.item_extras: list[dict[str, Any]] = []
        self.calls: list[dict[str, Any]] = []
        self.message: dict[str, Any] = {
            "role": "assistant",
            "content": "",
            EXTRA_KEY: self.item_extras,
        }

    def accepts(self, item: Mapping[str, Any]) -> bool:
        """Return True if the item can be added: a second text starts another message."""
        return item.get("role") != "assistant" or not any(
            "raw" not in one for one in self.item_extras
        )

    def add(self, item: Item) -> None:
        if item.get("role") == "assistant" and "content" in item:
            self.item_extras.append(self._text(item))
        elif isinstance(item.get("call_id"), str):
            self.item_extras.append(self._call(item))
            self.message["tool_calls"] = self.calls
        else:
            self.item_extras.append({"raw": item})

    def _text(self, item: Item) -> dict[str, Any]:
        content, rest = item["content"], _without(item, "role", "content")
        self.message["content"] = content
        if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
            part = content[0]
            if part.get("type") == "output_text" and isinstance(part.get("text"), str):
                self.message["content"] = part["text"]
                return {"message": rest, "part": _without(part, "text")}
        return {"message": rest}

    def _call(self, item: Item) -> dict[str, Any]:
        name, arguments = item.get("name"), item.get("arguments")
        has_text_fields = isinstance(name, str) and isinstance(arguments, str)
        if item.get("type") == "function_call" and has_text_fields:
            function = {"name": name, "arguments": arguments}
            call = {"id": item["call_id"], "type": "function", "function": function}
            self.calls.append(call)
            return {"call": _without(item, "type", "call_id", "name", "arguments")}
        shown = name if isinstance(name, str) else str(item.get("type", ""))
        self.calls.append({"id": item["call_id"], "name": shown})
        return {"call": _without(item, "call_id")}


def items_of(messages: Iterable[Message]) -> Iterator[tuple[Message, list[Item]]]:
    """Yield each message with its items. Messages of other programs are converted to API items."""
    types: dict[str, str] = {}
    for message in messages:
        items = _items(message, types)
        for item in items:
            if isinstance(item.get("call_id"), str) and not _is_output(item.get("type")):
                types[item["call_id"]] = str(item.get("type"))
        yield message, items


def result_of(call: ToolCall, items: Sequence[Item]) -> list[Item]:
    """Return a substitute result for an open call, if its type has one."""
    types = {item.get("call_id"): item.get("type") for item in items}
    return _synthetic_result(call.id, str(types.get(call.id)))


def _synthetic_result(call: str, type_: str, content: Any = OPEN_CALL_TEXT) -> list[Item]:
    output = _OUTPUT_TYPE_BY_CALL.get(type_)
    return [{"type": output, "call_id": call, "output": content}] if output else []


def _items(message: Message, types: dict[str, str]) -> list[Item]:
    extra = message.extra if isinstance(message.extra, dict) else {}
    own = extra.get(EXTRA_KEY)
    if message.role == "assistant":
        return _assistant_items(message, extra, own if isinstance(own, list) else None)
    first = own[0] if isinstance(own, list) and own else None
    if first is not None and "raw" in first:
        return [dict(first["raw"])]
    call = extra.get("tool_call_id")
    if message.role == "tool" and isinstance(call, str):
        if extra.get("synthetic"):
            return _synthetic_result(call, types.get(call, "function_call"), message.content)
        rest = first["result"] if first is not None else {"type": "function_call_output"}
        output = message.content if first is not None else _text(message.content)
        return [{**rest, "call_id": call, "output": output}]
    if first is not None:
        return [{**first["message"], "role": message.role, "content": message.content}]
    role = message.role if message.role in _ROLES else "user"
    return [{"role": role, "content": _text(message.content)}]


def _assistant_items(
    message: Message, extra: Mapping[str, Any], item_extras: list[Any] | None
) -> list[Item]:
    calls = [call for call in extra.get("tool_calls") or () if isinstance(call, dict)]
    content = message.content
    if item_extras is None:
        content = _text(content)
        item_extras = [{"message": {}}] if content or not calls else []
        item_extras += [{"call": {}} for _ in calls]
    items: list[Item] = []
    left = iter(calls)
    for one in item_extras:
        if "raw" in one:
            items.append(dict(one["raw"]))
        elif "call" in one:
            items.append(_called(next(left), one["call"]))
        else:
            text = [{**one["part"], "text": content}] if "part" in one else content
            items.append({**one["message"], "role": "assistant", "content": text})
    return items


def _called(call: Mapping[str, Any], rest: Mapping[str, Any]) -> Item:
    function = call.get("function")
    if isinstance(function, dict):
        known = {"name": function.get("name", ""), "arguments": function.get("arguments", "")}
        return {"type": "function_call", "call_id": call.get("id", ""), **known, **rest}
    if rest:
        return {**rest, "call_id": call.get("id", "")}
    name = str(call.get("name", ""))
    return {"type": "function_call", "call_id": call.get("id", ""), "name": name, "arguments": "{}"}


def _text(content: Any) -> str:
    return content if isinstance(content, str) else text_of(content)


def _is_output(type_: Any) -> bool:
    return isinstance(type_, str) and (type_.endswith("_call_output") or type_ in _OUTPUTS)


def _without(item: Mapping[str, Any], *keys: str) -> Item:
    return {key: value for key, value in item.items() if key not in keys}


def is_user(item: Mapping[str, Any]) -> bool:
    return item.get("role") == "user"
