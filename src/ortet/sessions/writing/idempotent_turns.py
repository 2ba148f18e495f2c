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
    from ortet.sessions.reader import View
    from ortet.sessions.table import SessionRow

Message = Mapping[str, Any]
"""As its event has it."""

KIND = "turns"
"""Rows of this kind, by the id of a session, hold the keys of what was said last in it."""

_KEPT = 32
"""Whoever sends something again does so before others have said this much."""


class Said(msgspec.Struct, frozen=True):
    """Messages of one call: events `first` to `last` of a timeline. A session that was restored to
    before them has other events of these numbers, of another timeline."""

    key: str
    timeline: str
    first: int
    last: int


def said_before(view: View, key: str, messages: Sequence[Message]) -> list[Event] | None:
    """What was said under the key; None when nothing was, or it was restored away."""
    for message in messages:
        check_plain(message)
    known, events = _under(view, key)
    if known is None:
        return None
    if not _is_same(view, events, messages):
        raise Invalid(
            "key_reused", f"under key {key!r} something else was said: give each turn its own"
        )
    return events


def _is_same(view: View, events: Sequence[Event], messages: Sequence[Message]) -> bool:
    """Told by the events themselves: what is kept beside them would outlive their erasure."""
    if len(events) != len(messages):
        return False
    hidden = view.hub.hidden  # a secret may have become known since
    pairs = zip(events, messages, strict=True)
    return all(
        event.erased or encode(hidden(event.data)) == encode(hidden(dict(message)))
        for event, message in pairs
    )


def is_said(view: View, key: str) -> bool:
    """Whether anything was said under the key, and was not restored away."""
    return _under(view, key)[0] is not None


def _under(view: View, key: str) -> tuple[Said | None, list[Event]]:
    check_text(key=key)
    known = next((one for one in _known(view.hub.catalog, view.id) if one.key == key), None)
    if known is None:
        return None, []
    events = list(view.events(known.first - 1, known.last))
    if [one.timeline for one in events] != [known.timeline] * (known.last - known.first + 1):
        return None, []
    return known, events


def noted(catalog: Catalog, row: SessionRow, after: int, *, key: str, count: int) -> RowChange:
    """To be written with so many messages, which follow event `after`."""
    said = Said(key, row.timeline, after + 1, after + count)
    others = [one for one in _known(catalog, row.id) if one.key != key]
    return RowChange(KIND, row.id, encode([*others[1 - _KEPT :], said]))


def _known(catalog: Catalog, session: str) -> list[Said]:
    row = catalog.row(KIND, session)
    return decode(list[Said], row.value) if row is not None else []
