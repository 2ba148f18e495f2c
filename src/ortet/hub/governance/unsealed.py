"""Objects that only events in the catalog name: no commit holds them yet, and no sweep may take
them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortet._util.codec import decode
from ortet.backends.base import Catalog, EventRow
from ortet.errors import NotFound, OrtetError
from ortet.ids import Oid
from ortet.journal.event_log import Line
from ortet.journal.events import Body
from ortet.objects.base import Link
from ortet.objects.source import kind_of
from ortet.sessions.history.participants import sealed
from ortet.sessions.table import ARCHIVED, SessionRow

if TYPE_CHECKING:
    from ortet.sessions.manager import Sessions


def unsealed(sessions: Sessions) -> Iterator[Link]:
    """What the events of all sessions name that are not in a commit."""
    for row in sessions.roll.all():
        if row.status == ARCHIVED:  # all of it is sealed, and its branch may be gone
            continue
        try:
            yield from _named(sessions, row)
        except NotFound:
            if sessions.roll.has(row.id):
                raise


def _named(sessions: Sessions, row: SessionRow) -> Iterator[Link]:
    for event in _rows(sessions, row):
        if event.salt:  # else it is erased
            for oid, kind in decode(Body, event.body).refs:
                yield Link(Oid(oid), kind_of(kind))


def _rows(sessions: Sessions, row: SessionRow) -> Iterator[EventRow]:
    hub = sessions.hub
    head = hub.catalog.head(f"branch:{row.branch}")
    try:
        journal, _ = sealed(sessions, row, head.oid if head else None)
    except OrtetError:  # the commit is damaged, which `verify` tells: rather too many than too few
        return _all(hub.catalog, row.timeline)
    if hub.catalog.last_seq(row.timeline) <= journal.seq:
        return iter(())
    line = Line(hub.catalog, hub.objects, sessions.chain, timeline=row.timeline, base=journal)
    return line.rows(journal.seq)


def _all(catalog: Catalog, timeline: str) -> Iterator[EventRow]:
    after = 0
    while page := catalog.events(timeline, after):
        yield from page
        after = page[-1].seq
