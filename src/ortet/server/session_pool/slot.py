"""SessionSlot: one open session with its hub and lock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock, RLock

from ortet.errors import Corrupt, OrtetError, Refused, Unavailable
from ortet.hub.hub import Hub
from ortet.machines.base import ControlSocket
from ortet.sessions.session import Session
from ortet.sessions.table import SessionRow
from ortet.workspaces.workspace import Workspace

_MAX_WAITING_THREADS = 16
"""Maximum number of threads that wait for one session. Others get `session_busy` at once."""

SessionOpener = Callable[[Hub], Session]


class SessionSlot:
    """One session of the pool, open or about to be opened.

    `users` counts requests that use the slot or wait for it. `opened_at` is the time when the
    session was opened. `is_requested`: another process asked for the session since then.
    `is_maybe_requested`: another process may have asked.
    """

    def __init__(self, id_: str) -> None:
        self.id = id_
        self.lock = RLock()
        self.users = 0
        self.last_used = time.monotonic()
        self.opened_at = 0.0
        self.is_requested = False
        self.is_maybe_requested = False
        self.signal_token = 0  # earlier requests were not meant for this server
        self.is_stale = False  # reload the session once the store is writable
        self.hub: Hub | None = None
        self.session: Session | None = None
        self.control_socket: ControlSocket | None = None  # of the machine, set at first use
        self._waiting = 0
        self._count = Lock()

    @property
    def is_wanted(self) -> bool:
        """True if the session is open here and another process may be waiting for it."""
        return self.hub is not None and (self.is_requested or self.is_maybe_requested)

    @property
    def row(self) -> SessionRow | None:
        """The row of the open session, or None."""
        session = self.session
        return (
            None
            if session is None or session.internals.held_lease.is_released
            else session.internals.row
        )

    @property
    def workspace(self) -> Workspace | None:
        """The machine of the open session, or None if it was not used."""
        session = self.session
        return (
            None
            if session is None or session.internals.held_lease.is_released
            else session.internals.files.attached
        )

    def attach(self, hub: Hub, session: Session, token: int) -> None:
        """Store an open session. `token` is the signal token from before it was opened."""
        self.opened_at, self.signal_token, self.control_socket = time.monotonic(), token, None
        self.is_stale = self.is_requested = self.is_maybe_requested = False
        self.hub, self.session = hub, session

    def detach(self) -> Hub | None:
        """Remove the session and return its hub, which the caller must close."""
        hub, self.hub, self.session = self.hub, None, None
        return hub

    def is_busy(self) -> bool:
        """Return True if programs run in the session that would end with it."""
        session = self.session
        if session is None or session.internals.held_lease.is_released:
            return False
        with suppress(OrtetError):
            return session.programs.is_running()
        return True

    def renew_lease(self) -> bool:
        """Renew the lease if it is due. Return False if the session must be opened again."""
        if self.session is None or self.session.internals.held_lease.is_released:
            return False
        try:
            if self.is_stale:  # raises Unavailable while the store is locked
                self.session.internals.held_lease.renew()
                return False
            self.session.internals.held_lease.renew_if_due()
        except Refused:
            return False
        return self.is_ours()

    def is_ours(self) -> bool:
        """Return True if the catalog says that this server holds the lease.

        A reader must not be shown the memory of a session that another process has taken.
        """
        session = self.session
        if (
            session is None
            or self.hub is None
            or session.internals.held_lease.is_released
            or self.is_stale
        ):
            return False
        lease = session.internals.held_lease.lease
        held = self.hub.catalog.lease(lease.name)
        return held is not None and (held.owner, held.fence) == (lease.owner, lease.fence)

    def release_other_sessions(self) -> None:
        """Pause other sessions that a request opened in this hub, such as forks."""
        if self.hub is not None and self.session is not None:
            self.hub.internals.pause_open_sessions(keep_open=self.session)

    def is_stale_after(self, error: BaseException) -> bool:
        """Return True if an error may leave the session in memory different from the stored one."""
        if self.session is None or self.session.internals.held_lease.is_released:
            return True
        if isinstance(error, Refused):
            return error.kind == "lease_lost"
        fault = not isinstance(error, OrtetError) or isinstance(error, Unavailable | Corrupt)
        return fault and not self.is_busy()

    @contextmanager
    def exclusive(self, timeout: float) -> Iterator[None]:
        """Within this block, no other thread uses the session.

        Raises:
            Unavailable: `session_busy`, if the session is not free within `timeout` seconds.
        """
        if not self.lock.acquire(blocking=False):
            self._wait(timeout)
        try:
            yield
        finally:
            self.lock.release()

    @contextmanager
    def try_exclusive(self) -> Iterator[bool]:
        """Take the lock without waiting, and yield True if that succeeded."""
        alone = self.lock.acquire(blocking=False)
        try:
            yield alone
        finally:
            if alone:
                self.lock.release()

    def _wait(self, timeout: float) -> None:
        with self._count:
            full = self._waiting >= _MAX_WAITING_THREADS
            self._waiting += not full
        try:
            if full or not self.lock.acquire(timeout=timeout):
                raise Unavailable(
                    "session_busy",
                    "the session is busy: try again, or add a comment to it",
                )
        finally:
            if not full:
                with self._count:
                    self._waiting -= 1
