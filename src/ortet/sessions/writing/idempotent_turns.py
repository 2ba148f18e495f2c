"""What was said under a key: sent again, by whichever process gets it, it is not said again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ortet._util.codec import decode, encode
from ortet._util.validation import check_text
from ortet.backends.base import Catalog, RowChange
from ortet.errors import Invalid
from ortet.journal.events import Event, check_plain

if TYPE_CHECKING:
    from ortet.sessions.reader import SessionReader
    from ortet.sessions.table import SessionRow

MessageData = Mapping[str, Any]
"""As its event has it."""

KIND = "turns"
"""Rows of this kind, by the id of a session, hold the keys of what was said last in it."""

_MAX_KEYS = 32
"""Whoever sends something again does so before others have said this much."""


class KeyedMessages(msgspec.Struct, frozen=True):
    """Messages of one call: events `first` to `last` of a timeline. A session that was restored to
    before them has other events of these numbers, of another timeline."""

    key: str
    timeline: str
    first: int
    last: int


def find_keyed_events(
    view: SessionReader, key: str, messages: Sequence[MessageData]
) -> list[Event] | None:
    """What was said under the key; None when nothing was, or it was restored away."""
    for message in messages:
        check_plain(message)
    known, events = _find_key(view, key)
    if known is None:
        return None
    if not _is_same(view, events, messages):
        raise Invalid(
            "key_reused", f"under key {key!r} something else was said: give each turn its own"
        )
    return events


def _is_same(view: SessionReader, events: Sequence[Event], messages: Sequence[MessageData]) -> bool:
    """Told by the events themselves: what is kept beside them would outlive their erasure."""
    if len(events) != len(messages):
        return False
    hidden = view.hub.redact  # a secret may have become known since
    pairs = zip(events, messages, strict=True)
    return all(
        event.erased or encode(hidden(event.data)) == encode(hidden(dict(message)))
        for event, message in pairs
    )


def is_key_used(view: SessionReader, key: str) -> bool:
    """Whether anything was said under the key, and was not restored away."""
    return _find_key(view, key)[0] is not None


def _find_key(view: SessionReader, key: str) -> tuple[KeyedMessages | None, list[Event]]:
    check_text(key=key)
    known = next((one for one in _load_keys(view.hub.catalog, view.id) if one.key == key), None)
    if known is None:
        return None, []
    events = list(view.events(known.first - 1, known.last))
    if [one.timeline for one in events] != [known.timeline] * (known.last - known.first + 1):
        return None, []
    return known, events


def key_row_change(
    catalog: Catalog, row: SessionRow, after: int, *, key: str, count: int
) -> RowChange:
    """To be written with so many messages, which follow event `after`."""
    said = KeyedMessages(key, row.timeline, after + 1, after + count)
    others = [one for one in _load_keys(catalog, row.id) if one.key != key]
    return RowChange(KIND, row.id, encode([*others[1 - _MAX_KEYS :], said]))


def _load_keys(catalog: Catalog, session: str) -> list[KeyedMessages]:
    row = catalog.row(KIND, session)
    return decode(list[KeyedMessages], row.value) if row is not None else []
