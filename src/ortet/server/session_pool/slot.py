"""One session that this server has open, with the hub that it is open in."""

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
"""Threads that wait for one session; all others are told at once that it is busy."""

SessionOpener = Callable[[Hub], Session]


class SessionSlot:
    """`users` are requests inside, or about to be; `since` is when it was opened; `asked`: another
    server asked for it since, `guessed`: one may have."""

    def __init__(self, id_: str) -> None:
        self.id = id_
        self.lock = RLock()
        self.users = 0
        self.last_used = time.monotonic()
        self.opened_at = 0.0
        self.is_requested = False
        self.is_maybe_requested = False
        self.signal_token = 0  # of the signal: who asked before did not ask us
        self.is_stale = False  # it is to be read again, once the store can be written
        self.hub: Hub | None = None
        self.session: Session | None = None
        self.control_socket: ControlSocket | None = None  # of its machine, once somebody asked
        self._waiting = 0
        self._count = Lock()

    @property
    def is_wanted(self) -> bool:
        """It is ours, and another server may be waiting for it."""
        return self.hub is not None and (self.is_requested or self.is_maybe_requested)

    @property
    def row(self) -> SessionRow | None:
        """Of the session that is open here; None when there is none."""
        session = self.session
        return None if session is None or session.held_lease.is_released else session.row

    @property
    def workspace(self) -> Workspace | None:
        """The machine of the session that is open here, if it was used."""
        session = self.session
        return None if session is None or session.held_lease.is_released else session.attached_files

    def attach(self, hub: Hub, session: Session, token: int) -> None:
        """`token` is of the moment in which it was tried to open it."""
        self.opened_at, self.signal_token, self.control_socket = time.monotonic(), token, None
        self.is_stale = self.is_requested = self.is_maybe_requested = False
        self.hub, self.session = hub, session

    def detach(self) -> Hub | None:
        """What is to be closed."""
        hub, self.hub, self.session = self.hub, None, None
        return hub

    def is_busy(self) -> bool:
        """Something runs in it that would end with it."""
        session = self.session
        if session is None or session.held_lease.is_released:
            return False
        with suppress(OrtetError):
            return session.is_running()
        return True

    def renew_lease(self) -> bool:
        """Whether it can go on: nobody ended it, or took it while this process slept."""
        if self.session is None or self.session.held_lease.is_released:
            return False
        try:
            if self.is_stale:  # Unavailable as long as the store is: what is left then is not freed
                self.session.held_lease.renew()
                return False
            self.session.held_lease.renew_if_due()
        except Refused:
            return False
        return self.is_ours()

    def is_ours(self) -> bool:
        """As the catalog knows it, so that no reader is shown what is another's by now."""
        session = self.session
        if session is None or self.hub is None or session.held_lease.is_released or self.is_stale:
            return False
        lease = session.held_lease.lease
        held = self.hub.catalog.lease(lease.name)
        return held is not None and (held.owner, held.fence) == (lease.owner, lease.fence)

    def release_other_sessions(self) -> None:
        """Sessions that a request opened beside this one, as forks, are anybody's now."""
        if self.hub is not None and self.session is not None:
            self.hub.pause_open_sessions(keep_open=self.session)

    def is_stale_after(self, error: BaseException) -> bool:
        """Whether what is in memory may not be what is stored: then it is read again."""
        if self.session is None or self.session.held_lease.is_released:
            return True
        if isinstance(error, Refused):
            return error.kind == "lease_lost"
        fault = not isinstance(error, OrtetError) or isinstance(error, Unavailable | Corrupt)
        return fault and not self.is_busy()

    @contextmanager
    def exclusive(self, timeout: float) -> Iterator[None]:
        """No other thread is inside; Unavailable("session_busy") after `patience` seconds."""
        if not self.lock.acquire(blocking=False):
            self._wait(timeout)
        try:
            yield
        finally:
            self.lock.release()

    @contextmanager
    def try_exclusive(self) -> Iterator[bool]:
        """The same without waiting: whether it is so."""
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
                    "the session is doing something else: try again, or leave it a comment",
                )
        finally:
            if not full:
                with self._count:
                    self._waiting -= 1
