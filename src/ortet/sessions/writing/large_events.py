"""Events whose data is too large: it is stored as an object, and the event refers to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ortet._util.codec import decode, encode
from ortet.journal.conversation.text import clip, text_of
from ortet.journal.events import Draft, Event
from ortet.sessions.actions import artifacts
from ortet.sessions.actions.artifacts import StoredContent, load

if TYPE_CHECKING:
    from ortet.store.context import StoreContext

_SPILL_BYTES = 1 << 19
"""Bytes of event data above which it is stored apart. The limit of an event is twice as high."""

_SHOWN_CHARS = 4000
"""Characters of a large message that stay in the journal, for reading and search."""

_PAIRING = ("tool_calls", "tool_call_id", "name")
"""Fields of a large message that stay in its event, because they pair calls with results."""

_STORED_KEY = "stored"


class EventInput(NamedTuple):
    """An event to append: a "message", a "fact", or a kind that a program defines."""

    kind: str
    data: dict[str, Any]


def is_large(data: Any) -> bool:
    """Return True if data is stored apart from its event."""
    return len(encode(data)) > _SPILL_BYTES


def drafts_of(store: StoreContext, several: Sequence[EventInput]) -> list[Draft]:
    """Return drafts of the events and store large data. Must be called inside `store.writing()`."""
    drafts = [_draft(store, one) for one in several]
    store.objects.flush()
    return drafts


def full_data(store: StoreContext, event: Event) -> dict[str, Any]:
    """Return the data of an event as it was appended, including large data."""
    at = event.data.get("extra", {}) if event.kind == "message" else event.data
    return stored_data(store, at) or event.data


def stored_data(store: StoreContext, data: Any) -> dict[str, Any] | None:
    """Return the data stored apart from `data`, or None.

    Args:
        data: the data of an event, or the extra of a message.
    """
    apart = data.get(_STORED_KEY) if isinstance(data, dict) else None
    if not isinstance(apart, dict) or set(apart) != {"oid", "size"}:
        return None
    told: dict[str, Any] = decode(dict, load(store.objects, StoredContent(**apart)))
    return told


def _draft(store: StoreContext, event_input: EventInput) -> Draft:
    if not is_large(event_input.data):
        return Draft(event_input.kind, event_input.data, store.author)
    content = artifacts.store_content(store.objects, encode(store.secrets.redact(event_input.data)))
    named = {_STORED_KEY: {"oid": content.oid, "size": content.size}}
    return Draft(event_input.kind, _short(event_input, named), store.author, content.refs)


def _short(event_input: EventInput, named: Mapping[str, Any]) -> dict[str, Any]:
    if event_input.kind != "message":
        return dict(named)
    shown = clip(text_of(event_input.data.get("content")), _SHOWN_CHARS)
    extra = event_input.data.get("extra", {})
    pairing = {key: extra[key] for key in _PAIRING if key in extra and not is_large(extra[key])}
    return {"role": event_input.data.get("role"), "content": shown, "extra": {**pairing, **named}}
