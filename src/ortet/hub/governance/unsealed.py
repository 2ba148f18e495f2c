"""Objects that only events in the catalog refer to. A sweep must keep them.

No commit contains these events yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortet._util.codec import decode
from ortet.backends.base import Catalog, EventRow
from ortet.errors import NotFound, OrtetError
from ortet.ids import Oid
from ortet.journal.event_log import EventLog
from ortet.journal.events import EventBody
from ortet.objects.base import ObjectRef
from ortet.objects.source import kind_of
from ortet.sessions.history.participants import sealed_journal
from ortet.sessions.table import ARCHIVED, SessionRow

if TYPE_CHECKING:
    from ortet.sessions.manager import SessionManager


def unsealed_objects(sessions: SessionManager) -> Iterator[ObjectRef]:
    """Yield the objects that uncommitted events of all sessions refer to."""
    for row in sessions.table.all():
        if row.status == ARCHIVED:  # all its events are sealed, and its branch may not exist
            continue
        try:
            yield from _referenced_objects(sessions, row)
        except NotFound:
            if sessions.table.has(row.id):
                raise


def _referenced_objects(sessions: SessionManager, row: SessionRow) -> Iterator[ObjectRef]:
    for event in _unsealed_rows(sessions, row):
        if event.salt:  # an event without salt is erased
            for oid, kind in decode(EventBody, event.body).refs:
                yield ObjectRef(Oid(oid), kind_of(kind))


def _unsealed_rows(sessions: SessionManager, row: SessionRow) -> Iterator[EventRow]:
    hub = sessions.hub
    head = hub.catalog.head(f"branch:{row.branch}")
    try:
        journal, _ = sealed_journal(sessions, row, head.oid if head else None)
    # damaged commit, which `verify` reports; keep too many objects rather than too few
    except OrtetError:
        return _all_rows(hub.catalog, row.timeline)
    if hub.catalog.last_seq(row.timeline) <= journal.seq:
        return iter(())
    line = EventLog(hub.catalog, hub.objects, sessions.chain, timeline=row.timeline, base=journal)
    return line.rows(journal.seq)


def _all_rows(catalog: Catalog, timeline: str) -> Iterator[EventRow]:
    after = 0
    while page := catalog.events(timeline, after):
        yield from page
        after = page[-1].seq
