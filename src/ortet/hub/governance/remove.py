"""Taking a session out of the store: its rows, its timelines, its branch."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from ortet._util.codec import decode, encode
from ortet._util.failpoints import reach
from ortet.backends.base import Catalog, Move, RowChange
from ortet.errors import Conflict
from ortet.hub.governance.erase import timelines_of
from ortet.hub.governance.holds import check_hold
from ortet.memory import working
from ortet.sessions.actions.approvals import USED
from ortet.sessions.actions.budget import kind_of as spend_kind
from ortet.sessions.environment.traces import drop_beside, left_outside
from ortet.sessions.table import SessionRow
from ortet.sessions.writing import state_cache
from ortet.sessions.writing.inbox import kind_of as kind_of_letters
from ortet.sessions.writing.inbox import letters
from ortet.vault.vault import KIND as VAULT

if TYPE_CHECKING:
    from ortet.hub.hub import Hub
    from ortet.sessions.manager import Sessions

_LEFT = "removing"
"""Rows of this kind name the timelines of a session that is no more, until they are gone too."""


def remove(sessions: Sessions, id_: str) -> None:
    """See Hub.remove."""
    hub = sessions.hub
    if hub.catalog.row(_LEFT, id_) is not None:
        finish(hub)
        return
    row = sessions.roll.get(id_)
    lease = sessions.lease(row)
    try:
        check_hold(hub, row)
        own = timelines_of(sessions, row)
        head = hub.catalog.head(f"branch:{row.branch}")
        moves = []
        if head is not None and hub.registry.get(row.branch) is None:
            moves = [Move(head.name, head.oid, None)]
        rows = [
            *sessions.roll.removed(row),
            RowChange("archive", id_, None),
            *_letters(hub.catalog, id_),
        ]
        rows += left_outside(sessions, row)
        if not any(other.family == row.family for other in sessions.all() if other.id != id_):
            rows += _family(hub.catalog, row)
        rows.append(RowChange(_LEFT, id_, encode(sorted(own))))
        reach("remove.begun")
        hub.catalog.move(
            moves, verb="remove", actor=hub.author, detail=row.name, lease=lease, rows=rows
        )
        reach("remove.rows")
    finally:
        hub.catalog.release(lease)
    if any(change.kind == VAULT for change in rows):
        hub.catalog.scrub()
    finish(hub)


def finish(hub: Hub) -> None:
    """End removals that a killed process had begun: nothing else knows what they leave behind."""
    for row in hub.catalog.rows(_LEFT):
        hub.bucket.delete([item.key for item in hub.bucket.list(f"archives/{row.key}/")])
        reach("remove.archives")
        own = decode(list[str], row.value)
        for timeline in own:
            drop_beside(hub.catalog, timeline)
            working.forget(hub.cache, timeline)
            state_cache.forget(hub.cache, timeline)
        _drop_timelines(hub.catalog, own)
        hub.catalog.drop_row(_LEFT, row.key)


def _letters(catalog: Catalog, id_: str) -> list[RowChange]:
    return [RowChange(kind_of_letters(id_), key, None) for key, _ in letters(catalog, id_)]


def _family(catalog: Catalog, row: SessionRow) -> list[RowChange]:
    """What all sessions of a family share, which nobody needs when the last is gone. What it spent
    for another family stays in that one's account, and the bill stays for good."""
    found: list[RowChange] = []
    for kind, prefix in (
        (f"deed/{row.family}", ""),
        (spend_kind(row.family), ""),
        (USED, f"{row.family}/"),
        ("deed-key", f"{row.family}/"),
        ("deed-key", f"{row.timeline}/"),
    ):
        after = prefix
        while page := catalog.rows(kind, after):
            found += [RowChange(kind, r.key, None) for r in page if r.key.startswith(prefix)]
            if not page[-1].key.startswith(prefix):
                break
            after = page[-1].key
    return found


def _drop_timelines(catalog: Catalog, own: Collection[str]) -> None:
    """Those that others began on come last, and stay when a fork still reads what it shares."""
    left = set(own)
    while left:
        before = len(left)
        for timeline in sorted(left):
            try:
                catalog.drop_timeline(timeline)
            except Conflict as error:
                if error.kind != "has_children":
                    raise
                continue
            left.remove(timeline)
            reach("remove.timeline")
        if len(left) == before:
            return
