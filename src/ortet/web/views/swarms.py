"""Reads the swarms of a session for the pages.

A module of its own, because it is the only view that imports `ortet.swarm`.
"""

from __future__ import annotations

from ortet.hub.hub import Hub
from ortet.sessions.swarm_api import SwarmResult as Swarm
from ortet.sessions.table import SessionRow

__all__ = ["Swarm", "swarms_of"]


def swarms_of(hub: Hub, row: SessionRow) -> list[Swarm]:
    """Return the swarms of a session without loading its state.

    A family may have hundreds of sessions.
    """
    from ortet.swarm import records

    found = sorted(records.list_swarms(hub.catalog, row.id), key=lambda one: one.made)
    return [
        records.swarm_result(
            one, records.SwarmRecords(hub.catalog, row.id, one.id).attempts(), row.name
        )
        for one in found
    ]
