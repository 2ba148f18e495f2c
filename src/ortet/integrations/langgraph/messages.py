"""Converts LangChain messages to session messages and back.

The messages are shown and found like all others of the session, and are stored once.
"""

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
"""Key in a message's `extra` with the LangChain fields besides role and content, and its number."""
_ROLES: dict[type[BaseMessage], str] = {
    HumanMessage: "user",
    AIMessage: "assistant",
    SystemMessage: "system",
    ToolMessage: "tool",
}
_CLASSES = {role: found for found, role in _ROLES.items()}
_CALLS = ("tool_calls", "tool_call_id")
"""Fields that are stored directly in `extra`, where the session pairs tool calls with results."""
_INTERNAL_FIELDS = ("n", "order")
"""Our own keys under `EXTRA_KEY`: the number of the message and the key order of its dicts."""
_IMMUTABLE_TYPES = frozenset((str, int, bool, type(None), float, bytes))
_MAX_TEXT_CHARS = 1 << 18
_MAX_DEPTH = 40

Snapshot = tuple[dict[str, Any], Any]
state_of: Callable[[BaseMessage], Snapshot] = attrgetter("__dict__", "__pydantic_extra__")
"""Return the current fields of a message. The dicts are not copied, so comparing is cheap."""
_set_attribute = object.__setattr__  # without the checks of pydantic


def data_of(message: BaseMessage) -> dict[str, Any] | None:
    """Convert a LangChain message to session data that is independent of the object.

    Return None for a message that only LangGraph's serializer can store: one of another class, with
    values outside JSON, or very large.
    """
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
    """Build a new LangChain message from the data that `data_of` returned."""
    message_class, extra = _CLASSES[data["role"]], data["extra"]
    fields = {"content": copy_value(data["content"])}
    for name, value in extra[EXTRA_KEY].items():
        if name not in _INTERNAL_FIELDS:
            fields[name] = value if type(value) in _IMMUTABLE_TYPES else copy_value(value)
    if len(extra) > 1:
        fields |= {name: copy_value(value) for name, value in extra.items() if name != EXTRA_KEY}
    if (order := extra[EXTRA_KEY].get("order")) is not None:
        fields = _apply_key_order(fields, order)
    try:
        message: BaseMessage = message_class(**fields)
    except Exception:
        # LangGraph's serializer also falls back if a later release rejects the fields.
        message = message_class.model_construct(**fields)
    return message


def snapshot(message: BaseMessage) -> Snapshot:
    """Copy the fields of a message, to detect later changes."""
    fields, extra = state_of(message)
    copied = {
        name: one if type(one) in _IMMUTABLE_TYPES else copy_value(one)
        for name, one in fields.items()
    }
    return copied, copy_value(extra)


class MessageTemplate:
    """A private copy of a message, which makes new messages that are equal to it.

    Making a message from its data takes pydantic twenty times as long, and a long thread has
    thousands of messages.
    """

    __slots__ = ("_class", "_deep", "_fields_set", "_flat", "snapshot")

    def __init__(self, message: BaseMessage, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._class = type(message)
        self._fields_set = set(message.__pydantic_fields_set__)
        mutable = {k: v for k, v in snapshot[0].items() if type(v) not in _IMMUTABLE_TYPES}
        self._flat = [name for name, value in mutable.items() if _is_flat(value)]
        self._deep = [name for name in mutable if name not in self._flat]

    @property
    def has_id(self) -> bool:
        return self.snapshot[0].get("id") is not None

    def new_message(self) -> BaseMessage:
        """Return a new message that shares no mutable value with any other."""
        values, extra = self.snapshot
        fields = values.copy()
        for name in self._flat:
            fields[name] = fields[name].copy()
        for name in self._deep:
            fields[name] = copy_value(fields[name])
        message = self._class.__new__(self._class)
        _set_attribute(message, "__dict__", fields)
        _set_attribute(message, "__pydantic_fields_set__", self._fields_set.copy())
        _set_attribute(message, "__pydantic_extra__", copy_value(extra))
        _set_attribute(message, "__pydantic_private__", None)
        return message


def matches_snapshot(message: BaseMessage, expected: Snapshot) -> bool:
    return state_of(message) == expected


def copy_value(value: Any) -> Any:
    """Deep-copy a value; fast for plain and empty values."""
    kind = type(value)
    if kind in _IMMUTABLE_TYPES:
        return value
    if kind is dict:
        return {key: copy_value(one) for key, one in value.items()} if value else {}
    if kind is list:
        return [copy_value(one) for one in value] if value else []
    return deepcopy(value)


def _is_flat(value: Any) -> bool:
    """Return True for a dict or list of immutable values."""
    if type(value) is dict:
        value = list(value.values())
    return type(value) is list and all(type(one) in _IMMUTABLE_TYPES for one in value)


def is_plain(value: Any, depth: int = 0) -> bool:
    """Return True if the value is unchanged by a round trip through JSON and the journal."""
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
    """Return the key order of nested dicts, or None if all keys are sorted.

    The journal sorts the keys of dicts, so any other order has to be recorded.
    """
    if type(value) is dict:
        below = {key: order for key, one in value.items() if (order := _order(one, top=False))}
        keys = [] if top or list(value) == sorted(value) else list(value)
        return [keys, below] if keys or below else None
    if type(value) is list:
        parts = {
            str(at): order for at, one in enumerate(value) if (order := _order(one, top=False))
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
    """Return True if the text can be encoded; lone surrogates cannot."""
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
