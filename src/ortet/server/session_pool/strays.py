"""Leases that this server could not give back, since the store was locked or its disk full: they
are its own still, and kept from nobody who asks it."""

from __future__ import annotations

from contextlib import suppress

from ortet.backends.base import Catalog, Lease
from ortet.errors import OrtetError


class Strays:
    """Of one store. A session is looked at by who is alone in its room."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._left: dict[str, Lease] = {}  # by session id

    def left(self, session: str, lease: Lease) -> None:
        """A session was let go that was held by this lease, and nobody uses it here any more."""
        with suppress(OrtetError):  # which says no more than that it may still be there
            if not self._is(self._catalog.lease(lease.name), lease):
                return
        self._left[session] = lease

    def end(self, session: str) -> None:
        """Give back what could not be; Unavailable when it still cannot."""
        lease = self._left.get(session)
        if lease is None:
            return
        held = self._catalog.lease(lease.name)
        if held is not None and self._is(held, lease):
            self._catalog.seize(held)
        self._left.pop(session, None)

    def end_all(self) -> None:
        """The same of all, as far as it goes."""
        for session in list(self._left):
            with suppress(OrtetError):
                self.end(session)

    @staticmethod
    def _is(held: Lease | None, lease: Lease) -> bool:
        return held is not None and (held.owner, held.fence) == (lease.owner, lease.fence)
