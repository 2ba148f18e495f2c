"""Remove a session from the store: its rows, its timelines and its branch."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from ortet._util.codec import decode, encode
from ortet._util.failpoints import failpoint
from ortet.backends.base import Catalog, Move, RowChange
from ortet.errors import Conflict
from ortet.hub.governance.erase import timelines_of
from ortet.hub.governance.legal_holds import check_hold
from ortet.memory import working
from ortet.sessions.actions.approvals import USED
from ortet.sessions.actions.budget import kind_of as spend_kind
from ortet.sessions.actions.ledger import effect_kind, ledger_of, ledgers_of, root_timeline
from ortet.sessions.environment.removal_rows import drop_adapter_rows, removal_row_changes
from ortet.sessions.table import SessionRow
from ortet.sessions.writing import state_cache
from ortet.sessions.writing.inbox import kind_of as kind_of_letters
from ortet.sessions.writing.inbox import pending_messages
from ortet.vault.vault import VAULT_ROW_KIND as VAULT

if TYPE_CHECKING:
    from ortet.sessions.manager import SessionManager
    from ortet.store.context import StoreContext

_REMOVING_KIND = "removing"
"""Row kind: the timelines of a removed session that still have to be deleted."""


def remove(sessions: SessionManager, id_: str) -> None:
    """Remove a session; see `Governance.remove`."""
    store = sessions.store
    if store.catalog.row(_REMOVING_KIND, id_) is not None:
        finish_pending_removals(store)
        return
    row = sessions.table.get(id_)
    lease = sessions.acquire_lease(row)
    try:
        check_hold(store, row)
        own = timelines_of(sessions, row)
        head = store.catalog.head(f"branch:{row.branch}")
        moves = []
        if head is not None and sessions.workspaces.table.get(row.branch) is None:
            moves = [Move(head.name, head.oid, None)]
        rows = [
            *sessions.table.delete_changes(row),
            RowChange("archive", id_, None),
            *_inbox_row_changes(store.catalog, id_),
        ]
        rows += removal_row_changes(sessions.services, row)
        others = [other for other in sessions.all() if other.id != id_]
        if not any(other.family == row.family for other in others):
            rows += _family_row_changes(store.catalog, row, _unused_ledgers(store, row, others))
        rows.append(RowChange(_REMOVING_KIND, id_, encode(sorted(own))))
        failpoint("remove.begun")
        store.catalog.move(
            moves, verb="remove", actor=store.author, detail=row.name, lease=lease, rows=rows
        )
        failpoint("remove.rows")
    finally:
        store.catalog.release(lease)
    if any(change.kind == VAULT for change in rows):
        store.catalog.scrub()
    finish_pending_removals(store)


def finish_pending_removals(store: StoreContext) -> None:
    """Finish removals that a killed process started. No other row refers to the remains."""
    for row in store.catalog.rows(_REMOVING_KIND):
        store.bucket.delete([item.key for item in store.bucket.list(f"archives/{row.key}/")])
        failpoint("remove.archives")
        own = decode(list[str], row.value)
        for timeline in own:
            drop_adapter_rows(store.catalog, timeline)
            working.forget_timeline(store.cache, timeline)
            state_cache.forget(store.cache, timeline)
        _drop_timelines(store.catalog, own)
        store.catalog.drop_row(_REMOVING_KIND, row.key)


def _inbox_row_changes(catalog: Catalog, id_: str) -> list[RowChange]:
    return [RowChange(kind_of_letters(id_), key, None) for key, _ in pending_messages(catalog, id_)]


def _unused_ledgers(store: StoreContext, row: SessionRow, others: Iterable[SessionRow]) -> set[str]:
    """Return the ledgers of a session that began here and that no other session reads.

    The ledger of a commit that was pulled stays: another session may restore that commit.
    """
    own = {row.family, ledger_of(root_timeline(store.catalog, row.timeline))}
    used = {ledger for other in others for ledger in ledgers_of(store.catalog, other)}
    return own.intersection(ledgers_of(store.catalog, row)) - used


def _family_row_changes(
    catalog: Catalog, row: SessionRow, unused: Collection[str]
) -> list[RowChange]:
    """Return changes that delete the rows shared by a family of sessions.

    They apply when the last session of the family is removed. Spending for another family stays in
    the budget of that family. Bills are never deleted.
    """
    found: list[RowChange] = []
    for kind, prefix in (
        *((effect_kind(ledger), "") for ledger in unused),
        (spend_kind(row.family), ""),
        (USED, f"{row.family}/"),
        *(("deed-key", f"{ledger}/") for ledger in unused),
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
    """Drop timelines, children before parents.

    A timeline that a fork of another session still reads is kept.
    """
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
            failpoint("remove.timeline")
        if len(left) == before:
            return
