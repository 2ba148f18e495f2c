"""Shows that a server is running, so that others can tell if the owner of a request has died.

The server renews a lease, which other hosts and other containers can check. A process that is
visible from here is looked up by its pid. A module of its own, because idempotency and the session
pool both need it.
"""

from __future__ import annotations

from contextlib import suppress

from ortet.errors import OrtetError
from ortet.hub.hub import Hub
from ortet.store.lease import (
    LEASE_TTL_NS,
    HeldLease,
    LeaseRenewer,
    is_lease_held,
    is_owner_dead,
    is_owner_visible,
    owner_prefix,
)

_SERVER_LEASE_PREFIX = "server:"


def current_owner(hub: Hub) -> str:
    """Return the owner name of this process for requests."""
    return f"{owner_prefix(hub.store.host)}:http"


def has_owner_exited(hub: Hub, owner: str) -> bool:
    """Return True if the process of an owner is known to have ended."""
    host = hub.store.host
    if is_owner_visible(owner, host):
        return is_owner_dead(owner, host)
    return not is_lease_held(hub.catalog, _SERVER_LEASE_PREFIX + owner, host, hub.clock.now_ns())


class ServerLiveness:
    """The liveness lease of this process in one store. `hub` must stay open as long."""

    def __init__(self, hub: Hub) -> None:
        self._renewer = LeaseRenewer()
        owner = current_owner(hub)
        lease = hub.catalog.acquire(_SERVER_LEASE_PREFIX + owner, owner, LEASE_TTL_NS)
        self._held_lease = HeldLease(hub.catalog, hub.clock, lease)
        self._renewer.add(self._held_lease)

    def close(self) -> None:
        """Stop renewing the lease, and release it."""
        self._renewer.close()
        with suppress(OrtetError):  # then the lease expires
            self._held_lease.release()
