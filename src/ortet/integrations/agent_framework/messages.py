"""Converts Agent Framework messages to session messages and back, without loss or duplication.

`extra.agent_framework` has the fields that the session message lacks. For each content, it has what
remains without its text, call or result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent_framework import Content
from agent_framework import Message as Foreign

from ortet.integrations._shared.messages import report_invalid_value
from ortet.journal.conversation.text import text_of
from ortet.journal.conversation.tool_calls import LOST_RESULT_TEXT
from ortet.journal.events import check_plain
from ortet.journal.state.records import Message, ToolCall

EXTRA_KEY = "agent_framework"
_REQUEST = "function_approval_request"
_NO_PROPERTIES: dict[str, Any] = {"additional_properties": {}}


def message_of(framework_message: Foreign) -> dict[str, Any]:
    """Convert a framework message to the form that `say_all` takes."""
    data = framework_message.to_dict()
    if framework_message.additional_properties:  # `to_dict` leaves tuples out.
        data["additional_properties"] = framework_message.additional_properties
    contents = [dict(one) for one in data.pop("contents", [])]
    role = str(data.pop("role"))
    for key in ("type", "additional_properties"):
        if data.get(key) in ("message", {}):
            del data[key]
    message: dict[str, Any] = {"role": role, "content": ""}
    texts = [one for one in contents if one.get("type") == "text" and "text" in one]
    results = [one for one in contents if _is_result(one)]
    calls = [one for one in contents if _is_call(one)]
    if len(texts) == 1 and not results:
        message["content"] = texts[0].pop("text")
    elif len(results) == 1 and not texts and isinstance(results[0].get("result"), str):
        message["tool_call_id"] = results[0].pop("call_id")
        message["content"] = results[0].pop("result")
        _drop_items(results[0], message["content"])
    elif results or texts:
        message["content"] = [_pop_content_part(one) for one in contents]
    if calls:
        message["tool_calls"] = [_pop_tool_call(one) for one in calls]
    rest = [_drop_empty_properties(one) for one in contents]
    if data or rest != [{"type": "text"}] or texts != contents:
        message[EXTRA_KEY] = {**data, "contents": rest}
    return message


def check_properties(framework_messages: Sequence[Foreign]) -> None:
    """Raise Invalid, with the path, for properties that `to_dict` would silently leave out."""
    properties = [
        {
            "additional_properties": one.additional_properties,
            "contents": [{"additional_properties": c.additional_properties} for c in one.contents],
        }
        for one in framework_messages
    ]
    with report_invalid_value("message", properties):
        check_plain(properties)


def to_framework_message(message: Message) -> Foreign:
    """Convert a session message back to a framework message.

    Messages of other programs are converted to text, calls and results.
    """
    extra = message.extra if isinstance(message.extra, dict) else {}
    own = extra.get(EXTRA_KEY)
    calls = [call for call in extra.get("tool_calls") or () if isinstance(call, dict)]
    if not isinstance(own, dict):
        return _from_plain_message(message, calls, extra.get("tool_call_id"))
    contents, left, parts = [], iter(calls), iter(_parts(message.content))
    for rest in own["contents"]:
        one = {**_NO_PROPERTIES, **rest}
        if "said" in one:
            one = _restore_content_part(one, next(parts))
        elif one["type"] == "text" and "text" not in one:
            one["text"] = message.content
        elif one["type"] == "function_result" and "call_id" not in one:
            one["call_id"], one["result"] = extra.get("tool_call_id"), message.content
            if one.get("items") == "text":
                one["items"] = _items(message.content)
        elif one["type"] == "function_call" and "call_id" not in one:
            call = next(left)
            one |= {"call_id": call["id"], **call["function"]}
        contents.append(one)
    known = {key: value for key, value in own.items() if key != "contents"}
    return Foreign.from_dict({"role": message.role, **known, "contents": contents})


def result_of(call: ToolCall) -> Foreign:
    """Return a synthetic result for a call that a crash interrupted."""
    return Foreign("tool", [Content.from_function_result(call_id=call.id, result=LOST_RESULT_TEXT)])


def answered_call_ids(framework_messages: Sequence[Foreign]) -> set[str]:
    """Return the ids of the calls whose results are in these messages."""
    return {
        content.call_id
        for message in framework_messages
        for content in message.contents
        if content.type == "function_result" and isinstance(content.call_id, str)
    }


def waiting_call_ids(messages: Sequence[Message]) -> set[str]:
    """Return the ids of the calls for which the last answer of the model requests an approval.

    They wait until a message follows that is not a substitute for a lost result.
    """
    for message in reversed(messages):
        if message.role == "assistant":
            own = message.extra.get(EXTRA_KEY) or {}
            requests = [one for one in own.get("contents", ()) if one.get("type") == _REQUEST]
            calls = [one.get("function_call") or {} for one in requests]
            return {call["call_id"] for call in calls if isinstance(call.get("call_id"), str)}
        if not message.extra.get("synthetic"):
            break
    return set()


def _from_plain_message(message: Message, calls: list[dict[str, Any]], call: Any) -> Foreign:
    text = text_of(message.content)
    if message.role == "tool" and isinstance(call, str):
        return Foreign("tool", [Content.from_function_result(call_id=call, result=text)])
    contents: list[Any] = [text] if text or not calls else []
    for one in calls:
        known = one.get("function")
        function: Mapping[str, Any] = known if isinstance(known, dict) else one
        contents.append(
            Content.from_function_call(
                call_id=str(one.get("id", "")),
                name=str(function.get("name", "")),
                arguments=function.get("arguments"),
            )
        )
    role = message.role if message.role in ("system", "user", "assistant") else "user"
    return Foreign(role, contents)


def _is_result(content: Mapping[str, Any]) -> bool:
    return content.get("type") == "function_result" and isinstance(content.get("call_id"), str)


def _is_call(content: Mapping[str, Any]) -> bool:
    return content.get("type") == "function_call" and isinstance(content.get("call_id"), str)


def _pop_tool_call(content: dict[str, Any]) -> dict[str, Any]:
    function = {key: content.pop(key) for key in ("name", "arguments") if key in content}
    return {"id": content.pop("call_id"), "type": "function", "function": function}


def _pop_content_part(content: dict[str, Any]) -> dict[str, Any]:
    """Move a text or result into the message content, where readers of a session look for it."""
    if _is_result(content):
        content["said"] = True
        result = content.pop("result", None)
        _drop_items(content, result)
        return {"type": "tool_result", "tool_use_id": content.pop("call_id"), "content": result}
    if content.get("type") == "text" and "text" in content:
        content["said"] = True
        return {"type": "text", "text": content.pop("text")}
    return {"type": str(content.get("type"))}


def _restore_content_part(content: dict[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    del content["said"]
    if part["type"] == "text":
        return {**content, "text": part["text"]}
    if content.get("items") == "text":
        content["items"] = _items(part["content"])
    return {**content, "call_id": part["tool_use_id"], "result": part["content"]}


def _parts(content: Any) -> list[Mapping[str, Any]]:
    several = content if isinstance(content, list) else []
    return [part for part in several if part.get("type") in ("text", "tool_result")]


def _items(text: str) -> list[dict[str, Any]]:
    """Return the items that the framework creates for a text result."""
    return [{"type": "text", "text": text, **_NO_PROPERTIES}]


def _drop_items(content: dict[str, Any], text: Any) -> None:
    if isinstance(text, str) and content.get("items") == _items(text):
        content["items"] = "text"


def _drop_empty_properties(content: dict[str, Any]) -> dict[str, Any]:
    if content.get("additional_properties") == {}:
        del content["additional_properties"]
    return content
