"""Leases that this server could not give back, since the store was locked or its disk full: they
are its own still, and kept from nobody who asks it."""

from __future__ import annotations

from contextlib import suppress

from ortet.backends.base import Catalog, Lease
from ortet.errors import OrtetError


class UnreleasedLeases:
    """Of one store. A session is looked at by who is alone in its room."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._leases: dict[str, Lease] = {}  # by session id

    def add(self, session: str, lease: Lease) -> None:
        """A session was let go that was held by this lease, and nobody uses it here any more."""
        with suppress(OrtetError):  # which says no more than that it may still be there
            if not self._is_same_lease(self._catalog.lease(lease.name), lease):
                return
        self._leases[session] = lease

    def release(self, session: str) -> None:
        """Give back what could not be; Unavailable when it still cannot."""
        lease = self._leases.get(session)
        if lease is None:
            return
        held = self._catalog.lease(lease.name)
        if held is not None and self._is_same_lease(held, lease):
            self._catalog.seize(held)
        self._leases.pop(session, None)

    def release_all(self) -> None:
        """The same of all, as far as it goes."""
        for session in list(self._leases):
            with suppress(OrtetError):
                self.release(session)

    @staticmethod
    def _is_same_lease(current: Lease | None, lease: Lease) -> bool:
        return current is not None and (current.owner, current.fence) == (lease.owner, lease.fence)
