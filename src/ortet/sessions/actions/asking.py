"""What waits for a human in all sessions, found without a look at every mind."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from ortet.backends.base import Catalog, Row, RowChange
from ortet.errors import NotFound, OrtetError
from ortet.history.records import Fold
from ortet.journal.state.records import Approval
from ortet.sessions.table import ARCHIVED, ASKS, CLOSED, SessionRow

if TYPE_CHECKING:
    from ortet.hub.hub import Hub

# A row is written with what asks, and with each timeline that begins behind such, in a fork or a
# restore. Who looks, and finds that all is answered, drops it.
_ALL = ("store", ASKS)
"""The row that says that there is one for each such session: a store of an earlier release has none
until somebody looks at all of its minds."""


def asks(session: str) -> RowChange:
    return RowChange(ASKS, session, b"")


def inherited(rows: Iterable[SessionRow], fold: Fold | None) -> list[RowChange]:
    """The same of sessions whose minds begin with a fold, where anything was ever asked for."""
    asked = fold is not None and any(name == "approvals" for name, _ in fold.maps)
    return [asks(row.id) for row in rows] if asked else []


def all_waiting(
    hub: Hub, sees: Callable[[str], bool] = lambda _agent: True
) -> list[tuple[SessionRow, Approval]]:
    """What can be answered in all sessions, or those of the agents to be seen: the oldest first."""
    if hub.catalog.row(*_ALL) is None:
        _look_at_all(hub)
    found: list[tuple[SessionRow, Approval]] = []
    done: list[RowChange] = []
    for hint in _hints(hub.catalog):
        try:
            row = hub._minds().roll.get(hint.key)
        except NotFound:
            done.append(_over(hint))
            continue
        if not sees(row.agent):
            continue
        waiting = _waiting(hub, row)
        found += [(row, one) for one in waiting]
        if not waiting:
            done.append(_over(hint))
    if done:
        with suppress(OrtetError):  # one of them has asked again: the next look finds the others
            hub.catalog.move([], verb="answered", rows=done)
    return sorted(found, key=lambda pair: (pair[0].created, len(pair[0].name), pair[0].name))


def _waiting(hub: Hub, row: SessionRow) -> list[Approval]:
    """Nothing in one that is closed; what is taken out of an archive says so anew."""
    if row.status in (CLOSED, ARCHIVED):
        return []
    return [one for one in hub.get(row.id).approvals() if one.state == "asked"]


def _over(hint: Row) -> RowChange:
    return RowChange(ASKS, hint.key, None, expect=hint.version)


def _hints(catalog: Catalog) -> list[Row]:
    found: list[Row] = []
    while page := catalog.rows(ASKS, found[-1].key if found else ""):
        found += page
    return found


def _look_at_all(hub: Hub) -> None:
    """Once in the life of a store. Who asks from now on says so itself."""
    asking = [asks(row.id) for row in hub.sessions() if _waiting(hub, row)]
    kind, key = _ALL
    with suppress(OrtetError):  # a store that cannot be written is looked through each time
        hub.catalog.move([], verb="asks", rows=[*asking, RowChange(kind, key, b"")])
