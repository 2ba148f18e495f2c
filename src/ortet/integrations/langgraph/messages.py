"""LangChain messages as messages of a session, and back: what is said is shown and found like any
other, and nothing of it is stored twice."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import cache
from math import isfinite
from operator import attrgetter
from typing import Any

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

EXTRA_KEY = "langgraph"
"""In `extra` of a message: what LangChain's has beside role and content, and its number here."""
_ROLES: dict[type[BaseMessage], str] = {
    HumanMessage: "user",
    AIMessage: "assistant",
    SystemMessage: "system",
    ToolMessage: "tool",
}
_CLASSES = {role: found for found, role in _ROLES.items()}
_CALLS = ("tool_calls", "tool_call_id")
"""Fields that are looked for in `extra` itself: results stay with their calls by them."""
_INTERNAL_FIELDS = ("n", "order")
"""What we note under MARK, beside the fields of a message: its number, and how dicts are sorted."""
_IMMUTABLE_TYPES = frozenset((str, int, bool, type(None), float, bytes))
_MAX_TEXT_CHARS = 1 << 18
_MAX_DEPTH = 40

Snapshot = tuple[dict[str, Any], Any]
state_of: Callable[[BaseMessage], Snapshot] = attrgetter("__dict__", "__pydantic_extra__")
"""What a message holds at this moment; its own dicts, so that nothing is copied to compare it."""


def data_of(message: BaseMessage) -> dict[str, Any] | None:
    """As a session has it, whatever becomes of the message; None for one that only LangGraph's
    serializer knows how to keep: of another class, with values that JSON has not, or very large."""
    role = _ROLES.get(type(message))
    if role is None or not is_plain(message.content) or _is_large(message.content):
        return None
    usual, extra, rest = _defaults(type(message)), dict[str, Any](), dict[str, Any]()
    fields = {**message.__dict__, **(message.__pydantic_extra__ or {})}
    for name, value in fields.items():
        if name in _INTERNAL_FIELDS:
            return None
        if name in ("content", "type") or (name in usual and value == usual[name]):
            continue
        if not is_plain(value) or _is_large(value):
            return None
        (extra if name in _CALLS else rest)[name] = copy_value(value)
    order = _order({"content": message.content, **extra, **rest})
    if order is not None:
        rest["order"] = order
    return {
        "role": role,
        "content": copy_value(message.content),
        "extra": {**extra, EXTRA_KEY: rest},
    }


def message_of(data: dict[str, Any]) -> BaseMessage:
    """The message that `data_of` was given, made anew."""
    made, extra = _CLASSES[data["role"]], data["extra"]
    fields = {"content": copy_value(data["content"])}
    for name, value in extra[EXTRA_KEY].items():
        if name not in _INTERNAL_FIELDS:
            fields[name] = value if type(value) in _IMMUTABLE_TYPES else copy_value(value)
    if len(extra) > 1:
        fields |= {name: copy_value(value) for name, value in extra.items() if name != EXTRA_KEY}
    if (order := extra[EXTRA_KEY].get("order")) is not None:
        fields = _apply_key_order(fields, order)
    try:
        found: BaseMessage = made(**fields)
    except Exception:  # as LangGraph's serializer does with what a later release refuses
        found = made.model_construct(**fields)
    return found


def snapshot(message: BaseMessage) -> Snapshot:
    """What tells whether a message was changed since."""
    fields, extra = state_of(message)
    kept = {
        name: one if type(one) in _IMMUTABLE_TYPES else copy_value(one)
        for name, one in fields.items()
    }
    return kept, copy_value(extra)


def matches_snapshot(message: BaseMessage, expected: Snapshot) -> bool:
    return state_of(message) == expected


def copy_value(value: Any) -> Any:
    """As deepcopy, of what is mostly plain and mostly empty."""
    kind = type(value)
    if kind in _IMMUTABLE_TYPES:
        return value
    if kind is dict:
        return {key: copy_value(one) for key, one in value.items()} if value else {}
    if kind is list:
        return [copy_value(one) for one in value] if value else []
    return deepcopy(value)


def is_plain(value: Any, depth: int = 0) -> bool:
    """Whether JSON and a session say exactly the same."""
    kind = type(value)
    if value is None or kind is bool:
        return True
    if kind is str:
        return is_text(value)
    if kind is int:
        return bool(-(1 << 63) <= value < 1 << 63)
    if kind is float:
        return isfinite(value)
    if depth > _MAX_DEPTH:
        return False
    if kind is list:
        return all(is_plain(one, depth + 1) for one in value)
    if kind is dict:
        keys = all(type(key) is str and is_plain(key) for key in value)
        return keys and all(is_plain(one, depth + 1) for one in value.values())
    return False


def _order(value: Any, *, top: bool = True) -> Any:
    """In which order the dicts below have their keys, where it is not that of the alphabet, which
    is how the journal has them; None where all are so."""
    if type(value) is dict:
        below = {key: found for key, one in value.items() if (found := _order(one, top=False))}
        keys = [] if top or list(value) == sorted(value) else list(value)
        return [keys, below] if keys or below else None
    if type(value) is list:
        parts = {
            str(at): found for at, one in enumerate(value) if (found := _order(one, top=False))
        }
        return [[], parts] if parts else None
    return None


def _apply_key_order(value: Any, order: Any) -> Any:
    keys, below = order
    if type(value) is list:
        for at, one in below.items():
            value[int(at)] = _apply_key_order(value[int(at)], one)
        return value
    for key, one in below.items():
        value[key] = _apply_key_order(value[key], one)
    return {key: value[key] for key in keys} if keys else value


def is_text(value: str) -> bool:
    """Whether it can be written down: halves of characters cannot."""
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_large(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) > _MAX_TEXT_CHARS
    if isinstance(value, list | dict):
        parts = value.values() if isinstance(value, dict) else value
        return any(_is_large(one) for one in parts) or len(value) > 1000
    return False


@cache
def _defaults(message_class: type[BaseMessage]) -> dict[str, Any]:
    return {
        name: field.get_default(call_default_factory=True)
        for name, field in message_class.model_fields.items()
        if not field.is_required()
    }
