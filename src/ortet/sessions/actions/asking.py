"""What waits for a human in all sessions, found without a look at every mind."""

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

# A row is written with what asks, and with each timeline that begins behind such, in a fork or a
# restore. Who looks, and finds that all is answered, drops it.
_INDEX_COMPLETE_ROW = ("store", PENDING_APPROVALS)
"""The row that says that there is one for each such session: a store of an earlier release has none
until somebody looks at all of its minds."""


def pending_approval_row(session: str) -> RowChange:
    return RowChange(PENDING_APPROVALS, session, b"")


def inherited_approval_rows(rows: Iterable[SessionRow], fold: Fold | None) -> list[RowChange]:
    """The same of sessions whose minds begin with a fold, where anything was ever asked for."""
    asked = fold is not None and any(name == "approvals" for name, _ in fold.maps)
    return [pending_approval_row(row.id) for row in rows] if asked else []


def pending_approvals(
    hub: Hub, sees: Callable[[str], bool] = lambda _agent: True
) -> list[tuple[SessionRow, Approval]]:
    """What can be answered in all sessions, or those of the agents to be seen: the oldest first."""
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
        with suppress(OrtetError):  # one of them has asked again: the next look finds the others
            hub.catalog.move([], verb="answered", rows=done)
    return sorted(found, key=lambda pair: (pair[0].created, len(pair[0].name), pair[0].name))


def _open_approvals(hub: Hub, row: SessionRow) -> list[Approval]:
    """Nothing in one that is closed; what is taken out of an archive says so anew."""
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
    """Once in the life of a store. Who asks from now on says so itself."""
    asking = [pending_approval_row(row.id) for row in hub.sessions() if _open_approvals(hub, row)]
    kind, key = _INDEX_COMPLETE_ROW
    with suppress(OrtetError):  # a store that cannot be written is looked through each time
        hub.catalog.move([], verb="asks", rows=[*asking, RowChange(kind, key, b"")])
