"""Appending events of several kinds in one write, for programs that translate foreign records.

Data that is too large for an event is stored as an object, and the event refers to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ortet._util.codec import decode, encode
from ortet.backends.base import RowChange
from ortet.journal.conversation.text import clip, text_of
from ortet.journal.events import Draft, Event, check_plain
from ortet.journal.upcast import check_custom_kind
from ortet.sessions.actions.artifacts import StoredContent, load, store
from ortet.store.sweep_retry import run_with_sweep_retry

if TYPE_CHECKING:
    from ortet.hub.hub import Hub
    from ortet.sessions.session import Session

_SPILL_BYTES = 1 << 19
"""Bytes of event data above which it is stored apart. The limit of an event is twice as high."""

_SHOWN_CHARS = 4000
"""Characters of a large message that stay in the journal, for reading and search."""

_PAIRING = ("tool_calls", "tool_call_id", "name")
"""Fields of a large message that stay in its event, because they pair calls with results."""

_COMMIT_AFTER_EVENTS = 500

_STORED_KEY = "stored"


class EventInput(NamedTuple):
    """An event to append: a "message", a "fact", or a kind that a program defines."""

    kind: str
    data: dict[str, Any]


def append_events(
    session: Session, several: Sequence[EventInput], *, rows: Sequence[RowChange] = ()
) -> list[Event]:
    """Append all events and rows in one transaction, durable on return.

    `full_data` reads them back.
    """
    for kind, data in several:
        check_plain(data)
        if "." in kind:
            check_custom_kind(kind)
    session._begin_change()
    hub = session.hub
    if not any(is_large(one.data) for one in several):
        drafts = [Draft(kind, data, hub.author) for kind, data in several]
        events = session._writer.add(*drafts, rows=rows, durable=True)
    else:
        events = run_with_sweep_retry(hub, lambda: _add_large(session, several, rows))
    if several:
        session._auto_commit_if_due(*several[-1])
    return events


def _add_large(
    session: Session, several: Sequence[EventInput], rows: Sequence[RowChange]
) -> list[Event]:
    hub = session.hub
    with hub.writing():  # a sweep must not delete the object before the event exists
        return session._writer.add(*drafts_of(hub, several), rows=rows, durable=True)


def is_large(data: Any) -> bool:
    """Return True if data is stored apart from its event."""
    return len(encode(data)) > _SPILL_BYTES


def drafts_of(hub: Hub, several: Sequence[EventInput]) -> list[Draft]:
    """Return drafts of the events and store large data. Must be called inside `hub.writing()`."""
    drafts = [_draft(hub, one) for one in several]
    hub.objects.flush()
    return drafts


def full_data(hub: Hub, event: Event) -> dict[str, Any]:
    """Return the data of an event as it was appended, including large data."""
    at = event.data.get("extra", {}) if event.kind == "message" else event.data
    return stored_data(hub, at) or event.data


def stored_data(hub: Hub, data: Any) -> dict[str, Any] | None:
    """Return the data stored apart from `data`, or None.

    Args:
        data: the data of an event, or the extra of a message.
    """
    apart = data.get(_STORED_KEY) if isinstance(data, dict) else None
    if not isinstance(apart, dict) or set(apart) != {"oid", "size"}:
        return None
    told: dict[str, Any] = decode(dict, load(hub.objects, StoredContent(**apart)))
    return told


def _draft(hub: Hub, event_input: EventInput) -> Draft:
    if not is_large(event_input.data):
        return Draft(event_input.kind, event_input.data, hub.author)
    content = store(hub.objects, encode(hub.redact(event_input.data)))
    named = {_STORED_KEY: {"oid": content.oid, "size": content.size}}
    return Draft(event_input.kind, _short(event_input, named), hub.author, content.refs)


def _short(event_input: EventInput, named: Mapping[str, Any]) -> dict[str, Any]:
    if event_input.kind != "message":
        return dict(named)
    shown = clip(text_of(event_input.data.get("content")), _SHOWN_CHARS)
    extra = event_input.data.get("extra", {})
    pairing = {key: extra[key] for key in _PAIRING if key in extra and not is_large(extra[key])}
    return {"role": event_input.data.get("role"), "content": shown, "extra": {**pairing, **named}}


def commit_if_many_events(session: Session, message: str) -> None:
    """Commit a session with many events since the last commit. Each open reads all of them."""
    if session._writer.tip.seq - session.event_log.base.seq >= _COMMIT_AFTER_EVENTS:
        session.commit(message)
