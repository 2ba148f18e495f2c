"""SlotTable: the slots of one store by session; opens, releases and evicts them."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Condition, Event

from ortet.backends.base import Catalog, Lease
from ortet.errors import OrtetError, Refused, Unavailable
from ortet.hub.hub import Hub
from ortet.server.session_pool.handover import SessionHandover
from ortet.server.session_pool.readers import HubPool
from ortet.server.session_pool.slot import SessionOpener, SessionSlot
from ortet.sessions.session import Session
from ortet.sessions.table import SessionRow

_log = logging.getLogger(__name__)


class UnreleasedLeases:
    """Leases of one store that could not be released: the store was locked or its disk full.

    The server still owns them, so it may release them before it opens the session again. They
    outlive the slot of the session. A newer lease of the same session has another fence, so it is
    never released by mistake.
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


class SlotTable:
    """At most `max_slots` slots. `wakeup` is set when a wanted session may be free."""

    def __init__(
        self,
        hub: Hub,
        hub_pool: HubPool,
        handover: SessionHandover,
        *,
        max_slots: int,
    ) -> None:
        self._hub_pool = hub_pool
        self._unreleased_leases = UnreleasedLeases(hub.catalog)
        self._handover = handover
        self._max_slots = max_slots
        self.wakeup = Event()
        self._slots: dict[str, SessionSlot] = {}
        self._changed = Condition()
        self._ids_by_name: dict[str, str] = {}
        self.closed = False

    @property
    def count(self) -> int:
        return len(self._slots)

    def all_slots(self) -> list[SessionSlot]:
        return list(self._slots.values())

    def get(self, session: str) -> SessionSlot | None:
        return self._slots.get(session)

    def find_by_name(self, name: str) -> SessionSlot | None:
        """Return the slot of a session whose name was stored by `remember_name`."""
        return self._slots.get(self._ids_by_name.get(name, ""))

    def remember_name(self, session: str, name: str) -> None:
        """Remember the name of a session while it is open here."""
        if session in self._slots:
            self._ids_by_name[name] = session

    def check(self) -> None:
        """Raise Unavailable if the server is stopping."""
        if self.closed:
            raise Unavailable(
                "stopping", "this server is stopping: use another server, or try again"
            )

    @contextmanager
    def use_slot(self, session: str) -> Iterator[SessionSlot]:
        """Within this block, the slot of a session stays in the table."""
        with self._changed:
            self.check()
            slot = self._slots.get(session)
            if slot is None:
                slot = self._slots[session] = SessionSlot(session)
            slot.users += 1
        try:
            if len(self._slots) > self._max_slots:
                self._evict_idle()
            yield slot
        finally:
            with self._changed:
                slot.users -= 1
                slot.last_used = time.monotonic()
                if not slot.users and slot.hub is None and self._slots.get(session) is slot:
                    del self._slots[session]
                self._changed.notify_all()
            self.wake_if_wanted(slot)

    def wake_if_wanted(self, slot: SessionSlot) -> None:
        """Wake the evictor if another process may be waiting for the session."""
        if slot.is_wanted:
            self.wakeup.set()

    def open_session(
        self, slot: SessionSlot, row: SessionRow, opener: SessionOpener | None, *, timeout: float
    ) -> Session:
        """Return the session of a slot, and open it if needed. The caller holds the slot's lock.

        Raises:
            Refused: `lease_held`, if another process does not release the session in time.
        """
        if slot.session is not None:
            if slot.renew_lease():
                return slot.session
            self.release(slot)  # the session ended, or another process took the expired lease
        self._unreleased_leases.release(row.id)
        self._handover.wait_for_taker(row.id)
        borrowed = self._hub_pool.borrow(is_kept=lambda hub: slot.hub is hub)
        with borrowed as hub, self._handover.request_lease(row.id, timeout) as waiter:
            while True:
                try:
                    session = opener(hub) if opener else hub.session(row.name, agent=row.agent)
                    self.attach(slot, hub, session, waiter.token)
                    return session
                except Refused as error:
                    if error.kind != "lease_held" or self.closed or not waiter.wait():
                        raise

    def attach(self, slot: SessionSlot, hub: Hub, session: Session, token: int) -> None:
        """Store an open session in its slot, and check if another process wants it."""
        slot.attach(hub, session, token)
        slot.is_requested = self._handover.is_requested(slot.id, token)

    def _evict_idle(self) -> None:
        """Evict the least recently used slots while there are too many."""
        while len(self._slots) > self._max_slots:
            with self._changed:
                idle = [one for one in self._slots.values() if not one.users]
            if not any(self.try_evict(one) for one in sorted(idle, key=lambda one: one.last_used)):
                raise Unavailable(
                    "too_many_sessions",
                    f"{self._max_slots} sessions are busy here: try again, or ask another server",
                )

    def try_evict(self, slot: SessionSlot) -> bool:
        """Evict the slot unless it is in use. Return True on success."""
        if not slot.lock.acquire(blocking=False):
            return False
        try:
            if slot.users or slot.is_busy():
                return False
            self.release(slot)
            with self._changed:
                if not slot.users and self._slots.get(slot.id) is slot:
                    del self._slots[slot.id]
            return True
        finally:
            slot.lock.release()

    def release(self, slot: SessionSlot) -> None:
        """Release the session of a slot. The caller holds the slot's lock.

        An error is reported to the log, not to the next request.
        """
        if slot.row is not None:
            self._ids_by_name.pop(slot.row.name, None)
        if slot.is_wanted and slot.is_requested:
            self._handover.record_release(slot.id)
        held = slot.session.internals.held_lease.lease if slot.session is not None else None
        hub = slot.detach()
        if hub is None:
            return
        try:
            self._hub_pool.return_hub(hub)
        except OrtetError as error:
            _log.error("leaving a session", exc_info=error)
        finally:
            if held is not None:
                self._unreleased_leases.add(slot.id, held)
            self._handover.notify_released(slot.id)

    def release_other_sessions(self, slot: SessionSlot) -> None:
        """Pause forks that a request opened in the slot's hub, and report errors."""
        try:
            slot.release_other_sessions()
        except OrtetError as error:
            _log.error("pausing a fork", exc_info=error)

    def clean_up(self) -> None:
        """Close idle hubs and release leases that could not be released before.

        Called periodically.
        """
        self._hub_pool.close_idle()
        self._unreleased_leases.release_all()

    def stop_accepting(self) -> list[SessionSlot]:
        """Refuse new requests, and return all slots."""
        with self._changed:
            self.closed = True
            slots, self._slots = list(self._slots.values()), {}
            self._changed.notify_all()
        return slots

    def release_all(self, slots: list[SessionSlot], deadline: float) -> int:
        """Wait for running requests, then release every session.

        Returns:
            The number of sessions that were still busy at the deadline.
        """
        stuck = 0
        for slot in sorted(slots, key=lambda one: one.users):
            if slot.lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
                try:
                    self.release(slot)
                finally:
                    slot.lock.release()
            else:
                stuck += 1
        return stuck
