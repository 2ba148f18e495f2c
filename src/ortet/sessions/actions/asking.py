"""Index of the sessions with open approval requests.

It finds all open requests without loading every session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from ortet.backends.base import Catalog, CatalogRow, RowChange
from ortet.errors import NotFound, OrtetError
from ortet.history.records import Fold
from ortet.journal.state.records import Approval
from ortet.sessions.table import ARCHIVED, CLOSED, PENDING_APPROVALS, SessionRow

if TYPE_CHECKING:
    from ortet.hub.hub import Hub

# A row is written with each request, and with each timeline that inherits requests by a fork or a
# restore. A reader that finds no open request drops the row.
_INDEX_COMPLETE_ROW = ("store", PENDING_APPROVALS)
"""Row that says that the index is complete.

A store of an earlier release has no such row, until `_build_index` has read all sessions.
"""


def pending_approval_row(session: str) -> RowChange:
    return RowChange(PENDING_APPROVALS, session, b"")


def inherited_approval_rows(rows: Iterable[SessionRow], fold: Fold | None) -> list[RowChange]:
    """Return index rows for sessions that start from a fold with approvals."""
    asked = fold is not None and any(name == "approvals" for name, _ in fold.maps)
    return [pending_approval_row(row.id) for row in rows] if asked else []


def pending_approvals(
    hub: Hub, sees: Callable[[str], bool] = lambda _agent: True
) -> list[tuple[SessionRow, Approval]]:
    """Return the open approval requests of all sessions, oldest session first.

    Args:
        sees: says which agents are included.
    """
    if hub.catalog.row(*_INDEX_COMPLETE_ROW) is None:
        _build_index(hub)
    found: list[tuple[SessionRow, Approval]] = []
    done: list[RowChange] = []
    for hint in _hints(hub.catalog):
        try:
            row = hub._session_manager().table.get(hint.key)
        except NotFound:
            done.append(_drop_hint(hint))
            continue
        if not sees(row.agent):
            continue
        waiting = _open_approvals(hub, row)
        found += [(row, one) for one in waiting]
        if not waiting:
            done.append(_drop_hint(hint))
    if done:
        with suppress(OrtetError):  # a new request came in; the next call drops the other rows
            hub.catalog.move([], verb="answered", rows=done)
    return sorted(found, key=lambda pair: (pair[0].created, len(pair[0].name), pair[0].name))


def _open_approvals(hub: Hub, row: SessionRow) -> list[Approval]:
    """Return the open requests of a session. A closed or archived session has none."""
    if row.status in (CLOSED, ARCHIVED):
        return []
    return [one for one in hub.get(row.id).approvals() if one.state == "asked"]


def _drop_hint(hint: CatalogRow) -> RowChange:
    return RowChange(PENDING_APPROVALS, hint.key, None, expect=hint.version)


def _hints(catalog: Catalog) -> list[CatalogRow]:
    found: list[CatalogRow] = []
    while page := catalog.rows(PENDING_APPROVALS, found[-1].key if found else ""):
        found += page
    return found


def _build_index(hub: Hub) -> None:
    """Build the index once for a store of an earlier release. New requests add their own rows."""
    asking = [pending_approval_row(row.id) for row in hub.sessions() if _open_approvals(hub, row)]
    kind, key = _INDEX_COMPLETE_ROW
    with suppress(OrtetError):  # a read-only store is searched each time
        hub.catalog.move([], verb="asks", rows=[*asking, RowChange(kind, key, b"")])
