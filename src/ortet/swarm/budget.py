"""The family budget as seen by a swarm: checks shares, and returns those of killed attempts.

A module of its own, because it changes budget rows of sessions that other processes own.
"""

from __future__ import annotations

from contextlib import suppress

from ortet._util.codec import encode
from ortet.backends.base import Catalog, RowChange
from ortet.errors import Conflict, Refused
from ortet.sessions.actions import budget_math
from ortet.sessions.actions.budget import kind_of, levels, reservation_rows, reserve_share
from ortet.sessions.actions.budget_math import Amounts
from ortet.sessions.table import SessionRow

_TRIES = 100


def is_affordable(catalog: Catalog, row: SessionRow, budget: Amounts) -> bool:
    """Return True if these amounts are available and not reserved."""
    with suppress(Refused):
        reserve_share(catalog, row, budget)
        return True
    return False


def check_share(catalog: Catalog, row: SessionRow, budget: Amounts) -> None:
    """Raise Refused("budget_spent") if not even one attempt can get its share."""
    reserve_share(catalog, row, budget)


def return_reservation(catalog: Catalog, row: SessionRow, session: str) -> None:
    """Return the unspent reservation of a killed session to its family."""
    for _ in range(_TRIES):
        level = levels(catalog, row)[0]
        reserved = next(
            (x for x in reservation_rows(catalog, level.family) if x[0].key == session), None
        )
        if reserved is None:
            return
        held, purse = reserved
        account, remaining = budget_math.return_unspent(level.account, purse)
        if remaining == purse:
            return
        kind = kind_of(level.family)
        rows = [
            RowChange(kind, session, encode(remaining), held.version),
            RowChange(kind, "account", encode(account), level.versions[0]),
        ]
        with suppress(Conflict):
            catalog.move([], verb="budget", rows=rows)
            return
