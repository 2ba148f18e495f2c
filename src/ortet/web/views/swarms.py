"""Swarms of a session as pages show them."""

from __future__ import annotations

from ortet.hub.hub import Hub
from ortet.sessions.swarm_api import SwarmResult as Swarm
from ortet.sessions.table import SessionRow

__all__ = ["Swarm", "swarms_of"]


def swarms_of(hub: Hub, row: SessionRow) -> list[Swarm]:
    """Without a look at the mind of the session, of which there may be hundreds."""
    from ortet.swarm import records

    found = sorted(records.list_swarms(hub.catalog, row.id), key=lambda one: one.made)
    return [
        records.swarm_result(
            one, records.SwarmRecords(hub.catalog, row.id, one.id).attempts(), row.name
        )
        for one in found
    ]
