"""That a server lives, as servers on other hosts can tell: a lease which it renews. A process of
the same host is looked up there."""

from __future__ import annotations

from contextlib import suppress

from ortet.errors import OrtetError
from ortet.hub.hub import Hub
from ortet.sessions.writing.lease_handover import is_across
from ortet.store.lease import TTL_NS, Heart, Holding, is_dead, is_held, process_here

_SERVER = "server:"


def owner_here(hub: Hub) -> str:
    """This process, as the owner of what its server is asked to do."""
    return f"{process_here(hub._parts.host)}:http"


def is_gone(hub: Hub, owner: str) -> bool:
    """Whether the process of an owner has ended, as far as can be told from here."""
    host = hub._parts.host
    if is_dead(owner, host):
        return True
    if not is_across(hub) or owner.partition(":")[0] == host:
        return False
    return not is_held(hub.catalog, _SERVER + owner, host, hub.clock.now_ns())


class Presence:
    """Of this process in one store; `hub` stays open as long."""

    def __init__(self, hub: Hub) -> None:
        self._heart = Heart()
        self._holding: Holding | None = None
        if is_across(hub):
            owner = owner_here(hub)
            lease = hub.catalog.acquire(_SERVER + owner, owner, TTL_NS)
            self._holding = Holding(hub.catalog, hub.clock, lease)
            self._heart.add(self._holding)

    def close(self) -> None:
        self._heart.close()
        if self._holding is not None:
            with suppress(OrtetError):  # then it ends by itself
                self._holding.end()
