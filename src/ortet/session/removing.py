"""Taking a session out of the store: its rows, its timelines, its branch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortet.backend.abc import Move, RowChange
from ortet.errors import Conflict
from ortet.session.deeds import deeds_of
from ortet.session.erasure import timelines_of
from ortet.session.holds import check_hold
from ortet.session.lifecycle import Roll
from ortet.session.traces import left_outside
from ortet.session.vault import KIND as VAULT

if TYPE_CHECKING:
    from ortet.session.sessions import Sessions


def remove(sessions: Sessions, id_: str) -> None:
    """See Hub.remove."""
    hub, row = sessions.hub, sessions.roll.get(id_)
    lease = sessions.lease(row)
    try:
        check_hold(hub, row)
        own = timelines_of(sessions, row)
        head = hub.catalog.head(f"branch:{row.branch}")
        moves = []
        if head is not None and hub.registry.get(row.branch) is None:
            moves = [Move(head.name, head.oid, None)]
        rows = [*Roll.removed(row), RowChange("archive", id_, None), *left_outside(sessions, row)]
        if not any(other.family == row.family for other in sessions.all() if other.id != id_):
            deeds = deeds_of(hub.catalog, row.family)
            rows += [RowChange(f"deed/{row.family}", deed.effect.id, None) for deed in deeds]
        hub.catalog.move(
            moves, verb="remove", actor=hub.author, detail=row.name, lease=lease, rows=rows
        )
    finally:
        hub.catalog.release(lease)
    if any(change.kind == VAULT for change in rows):
        hub.catalog.scrub()
    hub.bucket.delete([item.key for item in hub.bucket.list(f"archives/{id_}/")])
    for timeline in sorted(own, reverse=True):  # ids grow with time: what was forked goes first
        try:
            hub.catalog.drop_timeline(timeline)
        except Conflict as error:
            if error.kind != "has_children":  # a fork still reads what it shares
                raise
