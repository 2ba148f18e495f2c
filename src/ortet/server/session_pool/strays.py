"""Leases that this server could not release, because the store was locked or its disk full.

The server still owns them, so it may release them before it opens the session again. A module of
its own, because this state outlives the slot of a session.
"""

from __future__ import annotations

from contextlib import suppress

from ortet.backends.base import Catalog, Lease
from ortet.errors import OrtetError


class UnreleasedLeases:
    """The unreleased leases of one store.

    A newer lease of the same session has another fence, so it is never released by mistake.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._leases: dict[str, Lease] = {}  # by session id

    def add(self, session: str, lease: Lease) -> None:
        """Remember the lease of a released session if the catalog still has it."""
        with suppress(OrtetError):  # if the check fails, the lease may still exist
            if not self._is_same_lease(self._catalog.lease(lease.name), lease):
                return
        self._leases[session] = lease

    def release(self, session: str) -> None:
        """Release the remembered lease of a session. Raises Unavailable if that still fails."""
        lease = self._leases.get(session)
        if lease is None:
            return
        held = self._catalog.lease(lease.name)
        if held is not None and self._is_same_lease(held, lease):
            self._catalog.seize(held)
        self._leases.pop(session, None)

    def release_all(self) -> None:
        """Release all remembered leases, and ignore errors."""
        for session in list(self._leases):
            with suppress(OrtetError):
                self.release(session)

    @staticmethod
    def _is_same_lease(current: Lease | None, lease: Lease) -> bool:
        return current is not None and (current.owner, current.fence) == (lease.owner, lease.fence)
