"""Converts ADK events to journal events and back.

Events with content become messages. All other events are stored unchanged.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from google.adk.events import Event as AdkEvent
from google.genai import types

from ortet.errors import Invalid
from ortet.hub.hub import Hub
from ortet.journal.conversation.text import text_of
from ortet.journal.events import Event, is_plain
from ortet.sessions.writing.large_events import EventInput, full_data

EVENT = "adk.event"
"""Event kind of an ADK event without content."""

_EXTRA_KEY = "adk"
_JSON_EXTRA_KEY = "adk-json"
_MODEL_SCORE_FIELDS = {"avg_logprobs", "logprobs_result"}
"""Scores of a model. A non-finite one may be read back as None, because that loses nothing."""
_ROLES = {"model": "assistant", "user": "user"}
_ADK_ROLES = {ours: theirs for theirs, ours in _ROLES.items()}


def to_journal_event(event: AdkEvent) -> EventInput:
    """Convert an ADK event without loss or duplication.

    Fields that a message lacks go to `extra`.
    """
    try:
        data = event.model_dump(mode="json", exclude_none=True)
    except Exception as error:  # A pydantic model in the event may raise anything.
        raise Invalid(
            "not_json", f"event {event.id!r} of {event.author!r} cannot be kept: {error}"
        ) from error
    if _has_none(data):
        _check_numbers(event)
    content = data.get("content") or {}
    parts = content.get("parts")
    if not parts:
        return EventInput(EVENT, encode_field("event", _drop_empty(data)))
    role = _ROLES.get(content.get("role", ""))
    message_role = role or ("user" if event.author == "user" else "assistant")
    if not is_plain(data):
        shown = text_of([_part(part) for part in parts]).encode("utf-8", "replace").decode()
        return EventInput(
            "message",
            {"role": message_role, "content": shown, "extra": {_JSON_EXTRA_KEY: json.dumps(data)}},
        )
    rest = _drop_empty({key: value for key, value in data.items() if key != "content"})
    extra: dict[str, Any] = {_EXTRA_KEY: rest}
    if data["author"] and data["author"] != "user":
        extra["name"] = rest.pop("author")
    elif data["author"]:
        del rest["author"]
    if role is None:
        rest["role"] = content.get("role")
    if list(parts[0]) == ["text"] and len(parts) == 1:
        return EventInput(
            "message", {"role": message_role, "content": parts[0]["text"], "extra": extra}
        )
    turned = [_part(part) for part in parts]
    return EventInput("message", {"role": message_role, "content": turned, "extra": extra})


def _has_none(value: Any) -> bool:
    """Return True if a number became None because JSON cannot represent it.

    All other None values were left out by the caller.
    """
    if isinstance(value, dict):
        return any(map(_has_none, value.values()))
    return any(map(_has_none, value)) if isinstance(value, list) else value is None


def _check_numbers(event: AdkEvent) -> None:
    """Raise Invalid, with its path, for a number that would be read back as None."""
    dump = event.model_dump(exclude_none=True, exclude=_MODEL_SCORE_FIELDS)
    waiting: list[tuple[str, Any]] = [("", dump)]
    while waiting:
        place, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [(f"{place}.{key}", one) for key, one in value.items()]
        elif isinstance(value, list | tuple):
            waiting += [(f"{place}[{number}]", one) for number, one in enumerate(value)]
        elif isinstance(value, float) and not math.isfinite(value):
            place = place.removeprefix(".")
            raise Invalid(
                "not_json",
                f"event {event.id!r} of {event.author!r} cannot be kept: {place} is {value}, which "
                "is no number that JSON has: give another number, None or text",
                key=place,
            )


def event_of(hub: Hub, event: Event) -> AdkEvent | None:
    """Return the ADK event of a journal event; None if it is not one."""
    data = data_of(hub, event)
    return None if data is None else AdkEvent.model_validate(data)


def data_of(hub: Hub, event: Event) -> dict[str, Any] | None:
    """Return the ADK event of a journal event as plain data; None if it is not one."""
    if event.erased or event.waiting or event.kind not in ("message", EVENT):
        return None
    data = full_data(hub.store, event)
    if event.kind == EVENT:
        fields: dict[str, Any] = decode_field("event", data)
        return fields
    extra = data.get("extra", {})
    if _JSON_EXTRA_KEY in extra:
        decoded: dict[str, Any] = json.loads(extra[_JSON_EXTRA_KEY])
        return decoded
    if _EXTRA_KEY not in extra:
        return None
    rest = {"author": extra.get("name", "user"), **extra[_EXTRA_KEY]}
    role = rest.pop("role") if "role" in rest else _ADK_ROLES[data["role"]]
    message_content = data["content"]
    parts = (
        [{"text": message_content}]
        if isinstance(message_content, str)
        else [_from_message_part(part) for part in message_content]
    )
    content: dict[str, Any] = {"parts": parts}
    return {**rest, "content": content if role is None else {**content, "role": role}}


def spoken_text(content: types.Content | None) -> str:
    """Return the text of the content, without the model's thoughts."""
    parts = content.parts or [] if content else []
    return "\n".join(part.text for part in parts if part.text and not part.thought)


def plain_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state as plain data.

    Raise Invalid with the key of a value that cannot be stored.
    """
    from pydantic_core import to_jsonable_python

    plain = {}
    for key, value in state.items():
        if not isinstance(key, str):
            raise Invalid("not_json", f"state key {key!r} is no text: give text")
        try:
            plain[key] = to_jsonable_python(value)
            json.dumps(plain[key], allow_nan=False)
        except Exception as error:  # A pydantic model in the value may raise anything.
            raise Invalid(
                "not_json",
                f"the value of state key {key!r} cannot be kept ({error}): give what JSON can say, "
                "or a pydantic model",
                key=key,
            ) from error
    return plain


def encode_field(name: str, value: Any) -> dict[str, Any]:
    """Return record data with the value, as JSON text if the journal cannot hold it directly."""
    return {name: value} if is_plain(value) else {"json": json.dumps(value)}


def decode_field(name: str, data: Mapping[str, Any]) -> Any:
    return json.loads(data["json"]) if "json" in data else data[name]


def _drop_empty(data: dict[str, Any]) -> dict[str, Any]:
    """Return the event data without empty fields."""
    rest = dict(data)
    actions = {key: value for key, value in rest.pop("actions", {}).items() if value != {}}
    if actions:
        rest["actions"] = actions
    if rest.get("node_info") == {"path": ""}:
        del rest["node_info"]
    return rest


def _part(part: dict[str, Any]) -> dict[str, Any]:
    """Convert an ADK part to the common message format, so that calls and results are paired."""
    keys = set(part)
    if keys == {"text"}:
        return {"type": "text", "text": part["text"]}
    if keys == {"function_call"} and set(part["function_call"]) == {"id", "name", "args"}:
        call = part["function_call"]
        return {"type": "tool_use", "id": call["id"], "name": call["name"], "input": call["args"]}
    if keys == {"function_response"} and set(part["function_response"]) == {
        "id",
        "name",
        "response",
    }:
        response = part["function_response"]
        fields = {
            "tool_use_id": response["id"],
            "name": response["name"],
            "content": response["response"],
        }
        return {"type": "tool_result", **fields}
    kind = "thinking" if part.get("thought") else next(iter(part), "empty")
    return {"type": kind, "part": part}


def _from_message_part(part: dict[str, Any]) -> dict[str, Any]:
    if "part" in part:
        adk_part: dict[str, Any] = part["part"]
        return adk_part
    if part["type"] == "text":
        return {"text": part["text"]}
    if part["type"] == "tool_use":
        call = {"id": part["id"], "name": part["name"], "args": part["input"]}
        return {"function_call": call}
    response = {"id": part["tool_use_id"], "name": part["name"], "response": part["content"]}
    return {"function_response": response}
