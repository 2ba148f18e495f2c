"""Converts Pydantic AI messages to session messages and back, through its type adapter.

One message becomes one message. `extra.pydantic_ai` is the adapter's dump without the text, calls
and results that the session message has itself. Messages that this release cannot read stay stored
unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_core import PydanticSerializationError

from ortet.errors import Invalid
from ortet.journal.conversation.text import text_of
from ortet.journal.conversation.tool_calls import LOST_RESULT_TEXT
from ortet.journal.state.records import Message, ToolCall

EXTRA_KEY = "pydantic_ai"
_RESULTS = ("tool-return", "retry-prompt")

MessageDump = dict[str, Any]


def dump_messages(messages: Sequence[ModelMessage]) -> list[MessageDump]:
    """Dump messages with the adapter; raise Invalid("not_json") naming the one that fails."""
    try:
        dumps: list[MessageDump] = ModelMessagesTypeAdapter.dump_python(list(messages), mode="json")
        return dumps
    except (PydanticSerializationError, ValueError) as error:
        for number, message in enumerate(messages):
            _check(number, message)
        raise Invalid("not_json", f"these messages cannot be recorded: {error}") from error


def _check(number: int, message: ModelMessage) -> None:
    for place, part in enumerate(message.parts):
        alone: Any = (
            ModelRequest(parts=[part]) if message.kind == "request" else ModelResponse(parts=[part])  # type: ignore[list-item]
        )
        try:
            ModelMessagesTypeAdapter.dump_python([alone], mode="json")
        except (PydanticSerializationError, ValueError) as error:
            key = f"parts[{place}]"
            name = getattr(part, "tool_name", "")
            raise Invalid(
                "not_json",
                f"message {number}, at {key}{f' (tool {name})' if name else ''}: this cannot be "
                f"recorded ({error}): return what JSON has, or a pydantic model",
                key=key,
            ) from error


def message_of(dump: MessageDump) -> dict[str, Any]:
    """Convert a dump to a message in the form that `say_all` takes."""
    parts = [dict(part) for part in dump["parts"]]
    own = {**dump, "parts": parts}
    if dump["kind"] == "response":
        return _response(own, parts)
    return _request(own, parts)


def _response(dump: MessageDump, parts: list[MessageDump]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": "", EXTRA_KEY: dump}
    texts = [part for part in parts if _is_text_part(part, "text")]
    if len(texts) == 1:
        message["content"] = texts[0].pop("content")
    elif texts:
        message["content"] = [{"type": "text", "text": part.pop("content")} for part in texts]
    calls = [part for part in parts if part.get("part_kind") == "tool-call"]
    if calls := [part for part in calls if isinstance(part.get("tool_call_id"), str)]:
        message["tool_calls"] = [_pop_tool_call(part) for part in calls]
    return message


def _request(dump: MessageDump, parts: list[MessageDump]) -> dict[str, Any]:
    prompts = [part for part in parts if _is_text_part(part, "user-prompt")]
    results = [part for part in parts if _is_result(part)]
    rules = [part for part in parts if _is_text_part(part, "system-prompt")]
    role = "user" if not results and (prompts or not rules) else "tool" if results else "system"
    message: dict[str, Any] = {"role": role, "content": "", EXTRA_KEY: dump}
    if len(results) == 1 and not prompts and isinstance(results[0]["content"], str):
        message["tool_call_id"] = results[0]["tool_call_id"]
        message["content"] = results[0].pop("content")
    elif results:
        several = [part for part in parts if part in (*results, *prompts)]
        message["content"] = [_pop_content_part(part) for part in several]
    elif len(prompts) == 1:
        message["content"] = prompts[0].pop("content")
    elif prompts or len(rules) > 1:
        message["content"] = [_pop_content_part(part) for part in prompts or rules]
    elif rules:
        message["content"] = rules[0].pop("content")
    else:  # Make text between images searchable; it also stays in the dump.
        message["content"] = "\n".join(_prompt_texts(parts))
    return message


def _prompt_texts(parts: Sequence[MessageDump]) -> Iterator[str]:
    for part in parts:
        if part.get("part_kind") == "user-prompt" and isinstance(part.get("content"), list):
            yield from (one for one in part["content"] if isinstance(one, str))


def to_dump(message: Message) -> MessageDump:
    """Return the adapter's dump of a message. Messages of other programs are converted."""
    own = message.extra.get(EXTRA_KEY) if isinstance(message.extra, dict) else None
    if not isinstance(own, dict):
        return dump_messages([_from_plain_message(message)])[0]
    contents = _content_values(message.content)
    calls = iter(message.extra.get("tool_calls") or ())
    parts = []
    for known in own["parts"]:
        part = dict(known)
        if part.get("part_kind") == "tool-call" and "tool_name" not in part:
            call = next(calls)
            part |= {"tool_call_id": call["id"], "tool_name": call["function"]["name"]}
            part["args"] = call["function"]["arguments"]
        elif "content" not in part and part.get("part_kind") in _CONTENT_KINDS:
            part["content"] = next(contents)
        parts.append(part)
    return {**own, "parts": parts}


_CONTENT_KINDS = ("text", "user-prompt", "system-prompt", *_RESULTS)


def models_of(dumps: Sequence[MessageDump]) -> list[ModelMessage]:
    """Convert dumps to messages for a model.

    Parts that this release does not know are left out here and stay stored.
    """
    try:
        return ModelMessagesTypeAdapter.validate_python(list(dumps))
    except ValidationError:
        return [model for plain in dumps for model in _readable_messages(plain)]


def _readable_messages(dump: MessageDump) -> list[ModelMessage]:
    try:
        return ModelMessagesTypeAdapter.validate_python([dump])
    except ValidationError:
        parts = [part for part in dump.get("parts", ()) if _is_known({**dump, "parts": [part]})]
    try:
        return ModelMessagesTypeAdapter.validate_python([{**dump, "parts": parts}])
    except ValidationError as error:
        raise Invalid(
            "bad_message",
            f"a stored message cannot be read by this release of Pydantic AI ({error}): use the "
            "one that wrote it",
        ) from error


def _is_known(dump: MessageDump) -> bool:
    try:
        ModelMessagesTypeAdapter.validate_python([dump])
    except ValidationError:
        return False
    return True


def result_of(calls: Sequence[ToolCall]) -> ModelRequest:
    """Return synthetic results for calls that a crash interrupted."""
    parts = [ToolReturnPart(call.name, LOST_RESULT_TEXT, tool_call_id=call.id) for call in calls]
    return ModelRequest(parts=parts)


def _from_plain_message(message: Message) -> ModelMessage:
    text, call = text_of(message.content), message.extra.get("tool_call_id")
    when = datetime.fromtimestamp(message.time / 1e9, UTC)
    if message.role == "assistant":
        parts: list[Any] = [TextPart(text)] if text else []
        for one in message.extra.get("tool_calls") or ():
            function = one.get("function") or one
            args = function.get("arguments") or {}
            name = str(function.get("name", ""))
            parts.append(ToolCallPart(name, args, tool_call_id=str(one.get("id", ""))))
        return ModelResponse(parts=parts, timestamp=when)
    if message.role == "tool" and isinstance(call, str):
        name = str(message.extra.get("name") or "tool")
        result = ToolReturnPart(name, text, tool_call_id=call, timestamp=when)
        return ModelRequest(parts=[result])
    return ModelRequest(parts=[UserPromptPart(text, timestamp=when)])


def _is_text_part(part: MessageDump, kind: str) -> bool:
    return part.get("part_kind") == kind and isinstance(part.get("content"), str)


def _is_result(part: MessageDump) -> bool:
    known = part.get("part_kind") in _RESULTS and "content" in part
    return known and isinstance(part.get("tool_call_id"), str)


def _pop_tool_call(part: MessageDump) -> dict[str, Any]:
    function = {"name": part.pop("tool_name"), "arguments": part.pop("args", None)}
    return {"id": part.pop("tool_call_id"), "type": "function", "function": function}


def _pop_content_part(part: MessageDump) -> dict[str, Any]:
    content = part.pop("content")
    if part["part_kind"] in _RESULTS:
        return {"type": "tool_result", "tool_use_id": part["tool_call_id"], "content": content}
    return {"type": "text", "text": content}


def _content_values(content: Any) -> Iterator[Any]:
    """Yield the content of each part in order."""
    if not isinstance(content, list):
        yield content
        return
    for part in content:
        yield part["content"] if part.get("type") == "tool_result" else part["text"]
