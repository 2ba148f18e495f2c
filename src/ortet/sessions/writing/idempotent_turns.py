"""Idempotency keys of messages: a message sent twice under one key is recorded once.

The keys are in a catalog row of the session, so that any process recognises a repeated call.
"""

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
    from ortet.sessions.context import SessionContext
    from ortet.sessions.table import SessionRow

MessageData = Mapping[str, Any]
"""The data of a message event."""

KIND = "turns"
"""Row kind: the keys of the latest messages, by session id."""

_MAX_KEYS = 32
"""Number of keys kept. A client repeats a call before this many others arrive."""


class KeyedMessages(msgspec.Struct, frozen=True):
    """The messages of one call: events `first` to `last` of a timeline.

    After a restore the same numbers may belong to other events, on another timeline.
    """

    key: str
    timeline: str
    first: int
    last: int


def find_keyed_events(
    view: SessionContext, key: str, messages: Sequence[MessageData]
) -> list[Event] | None:
    """Return the events recorded under the key.

    Returns None if there are none, or if a restore went back before them.

    Raises:
        Invalid: "key_reused" if other messages were recorded under the key.
    """
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


def _is_same(
    view: SessionContext, events: Sequence[Event], messages: Sequence[MessageData]
) -> bool:
    """Compare with the events themselves. A stored digest would survive their erasure."""
    if len(events) != len(messages):
        return False
    hidden = view.store.secrets.redact  # a secret may have become known since then
    pairs = zip(events, messages, strict=True)
    return all(
        event.erased or encode(hidden(event.data)) == encode(hidden(dict(message)))
        for event, message in pairs
    )


def is_key_used(view: SessionContext, key: str) -> bool:
    """Return True if messages were recorded under the key and no restore went back before them."""
    return _find_key(view, key)[0] is not None


def _find_key(view: SessionContext, key: str) -> tuple[KeyedMessages | None, list[Event]]:
    check_text(key=key)
    known = next((one for one in _load_keys(view.store.catalog, view.id) if one.key == key), None)
    if known is None:
        return None, []
    events = list(view.events(known.first - 1, known.last))
    if [one.timeline for one in events] != [known.timeline] * (known.last - known.first + 1):
        return None, []
    return known, events


def key_row_change(
    catalog: Catalog, row: SessionRow, after: int, *, key: str, count: int
) -> RowChange:
    """Return the row change to write with `count` messages that follow event `after`."""
    said = KeyedMessages(key, row.timeline, after + 1, after + count)
    others = [one for one in _load_keys(catalog, row.id) if one.key != key]
    return RowChange(KIND, row.id, encode([*others[1 - _MAX_KEYS :], said]))


def _load_keys(catalog: Catalog, session: str) -> list[KeyedMessages]:
    row = catalog.row(KIND, session)
    return decode(list[KeyedMessages], row.value) if row is not None else []
