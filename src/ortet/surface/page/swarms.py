"""Swarms of a session as pages show them."""

from __future__ import annotations

from ortet.session.hub import Hub
from ortet.session.lifecycle import SessionRow
from ortet.session.swarming import SwarmResult as Swarm

__all__ = ["Swarm", "swarms_of"]


def swarms_of(hub: Hub, row: SessionRow) -> list[Swarm]:
    """Without a look at the mind of the session, of which there may be hundreds."""
    from ortet.swarm import book

    found = sorted(book.every(hub.catalog, row.id), key=lambda one: one.made)
    return [
        book.told(one, book.Book(hub.catalog, row.id, one.id).attempts(), row.name) for one in found
    ]
