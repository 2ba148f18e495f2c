"""Sessions that this server has open, and hubs that only look.

A hub is used by one thread at a time, so each open session has a hub of its own: a room. What one
session does, for an hour if need be, keeps no other waiting. A room is left a while after its last
request, or as soon as another server asks for its session, and nothing runs in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ortet.backends.base import Signal
from ortet.errors import NotFound, Refused, Unavailable
from ortet.hub.hub import Hub
from ortet.machines.base import ControlSocket
from ortet.server.session_pool.eviction import SlotEvictor
from ortet.server.session_pool.handover import SessionHandover
from ortet.server.session_pool.liveness import ServerLiveness
from ortet.server.session_pool.readers import HubPool
from ortet.server.session_pool.slot import SessionOpener, SessionSlot
from ortet.server.session_pool.slots import ErrorReporter, SlotTable
from ortet.server.session_pool.swarm_jobs import SwarmJobs
from ortet.sessions.reader import SessionReader
from ortet.sessions.session import Session
from ortet.sessions.table import SessionRow, no_session
from ortet.sessions.writing.lease_handover import HANDOVER_TOPIC, request_handover

_DEFAULT_AGENT = "default"
"""Whose names go before those of others: see Roll.meant."""


def _sees_every_agent(_agent: str) -> bool:
    return True


class SessionPool:
    """Those of one store. `linger`, `patience` and `turn` are in seconds: how long a session stays
    open that nobody uses, how long a request waits for it, how long one that is used without a
    break is kept from others."""

    def __init__(
        self,
        open_hub: Callable[[], Hub],
        *,
        max_sessions: int = 512,
        linger: float = 10.0,
        patience: float = 5.0,
        min_hold: float = 0.2,
        report_error: ErrorReporter = lambda _what, _error: None,
    ) -> None:
        self._hub_factory = open_hub
        self._wait_timeout = patience
        self.swarm_jobs = SwarmJobs(report_error)
        self._hub_pool = HubPool(self._open_hub)
        self._shared_hub = self._open_hub()
        self._liveness = ServerLiveness(self._shared_hub)
        self._wanted_signal = self._shared_hub.signal.with_prefix(
            HANDOVER_TOPIC
        )  # not every event wakes the keeper
        self._handover = SessionHandover(self._shared_hub, self._wanted_signal)
        self._slots = SlotTable(
            self._shared_hub,
            self._hub_pool,
            self._handover,
            max_slots=max_sessions,
            report_error=report_error,
        )
        self._evictor = SlotEvictor(
            self._slots,
            self._shared_hub,
            self._wanted_signal,
            idle_timeout=linger,
            min_hold=min_hold,
            report_error=report_error,
        )

    def _open_hub(self) -> Hub:
        hub = self._hub_factory()
        hub.allows_lease_handover = True
        return hub

    @property
    def count(self) -> int:
        return self._slots.count

    @property
    def shared_hub(self) -> Hub:
        """Open as long as the server is; only for those parts of it that threads may share."""
        return self._shared_hub

    @property
    def signal(self) -> Signal:
        """Of the store."""
        return self._shared_hub.signal

    @property
    def upload_directory(self) -> Path:
        """Where bodies lie while they are received; on the disk of the store."""
        return self._shared_hub.root / "local" / "received"

    # reading

    @contextmanager
    def hub(self) -> Iterator[Hub]:
        """One that no other thread uses meanwhile. What is opened in it is closed after."""
        self._slots.check()
        with self._hub_pool.borrow() as hub:
            yield hub

    def row(self, session: str, sees: Callable[[str], bool] = _sees_every_agent) -> SessionRow:
        """By id, name or agent/name; NotFound, also where its agent is not to be seen."""
        room = self._slots.get(session) or self._slots.find_by_name(session)
        row = room.row if room is not None else None  # while it is open here nobody removes it
        if row is None or (row.id != session and not sees(row.agent)):
            with self.hub() as hub:
                row = hub._session_manager().table.resolve_visible(session, sees)
            if (row.agent, row.name) == (_DEFAULT_AGENT, session):
                self._slots.remember_name(row.id, session)
        if not sees(row.agent):
            raise no_session(session)
        return row

    @contextmanager
    def view(self, id_: str) -> Iterator[SessionReader]:
        """To read: as it is open here, where nobody works in it, else from the store."""
        self._slots.check()
        room = self._slots.get(id_)
        if room is not None and room.lock.acquire(blocking=False):
            try:
                if room.session is not None and room.is_ours():
                    yield room.session
                    return
            finally:
                room.lock.release()
                self._slots.wake_if_wanted(room)
        with self.hub() as hub:
            yield hub.get(id_)

    def has_live_machine(self, id_: str) -> bool:
        """Whether a machine of this session was used here and is still there; waits for nobody."""
        room = self._slots.get(id_)
        return room is not None and room.workspace is not None

    def open_slots(self) -> list[SessionSlot]:
        """Those in which a session is; to look at, whoever works in it."""
        return [room for room in self._slots.all_slots() if room.row is not None]

    def control_socket(self, row: SessionRow, *, refresh: bool = False) -> ControlSocket:
        """Where the programs of a session's machine can be asked, whatever else is done with it;
        `again`: not as it was known. NotFound when no machine of it lives here."""
        room = self._slots.get(row.id)
        files = room.workspace if room is not None else None
        if room is None or files is None:
            raise NotFound(
                "not_live",
                f"no machine of session {row.name!r} lives in this server: run something in it",
            )
        if room.control_socket is None or refresh:
            with room.exclusive(self._wait_timeout):
                room.control_socket = files.control_socket
        return room.control_socket

    # writing

    @contextmanager
    def open_by_name(
        self, agent: str, name: str, opener: SessionOpener, *, reopen: bool = True
    ) -> Iterator[Session]:
        """A session by name: as `opened` gives it, which makes it where it is new. `anew`: it is
        asked for with options, so one that is open here is opened again with them."""
        with self.hub() as hub:
            row = hub._session_manager().table.find(agent, name)
        if row is None:
            row = self._create_session(agent, name, opener)
            reopen = False
        with self.open_session(row, opener, reopen=reopen) as session:
            yield session

    def _create_session(self, agent: str, name: str, opener: SessionOpener) -> SessionRow:
        """A new session, in its room if nobody was faster to enter that."""
        taken: list[Hub] = []
        with self._hub_pool.borrow(is_kept=lambda hub: hub in taken) as hub:
            token = self._wanted_signal.token(HANDOVER_TOPIC)
            try:
                session = opener(hub)
            except Refused as error:
                row = hub._session_manager().table.find(agent, name)
                if error.kind != "lease_held" or row is None:
                    raise
                return row  # another was faster to make it
            row = session.row
            with self._slot(row.id) as room, room.try_exclusive() as alone:
                if alone and room.session is None:
                    self._slots.attach(room, hub, session, token)
                    taken.append(hub)
            return row

    @contextmanager
    def open_session(
        self, row: SessionRow, opener: SessionOpener | None = None, *, reopen: bool = False
    ) -> Iterator[Session]:
        """The session, open and ours alone. Refused("lease_held") when another process keeps it."""
        with self._slot(row.id) as room, room.exclusive(self._wait_timeout):
            if reopen and not room.is_busy():
                self._slots.release(room)
            session = self._slots.open_session(room, row, opener, timeout=self._wait_timeout)
            try:
                yield session
            except BaseException as error:
                if room.is_stale_after(error):
                    room.is_stale = isinstance(error, Unavailable) and error.kind == "busy"
                    if not room.is_stale:
                        self._slots.release(room)
                raise
            finally:
                self._slots.release_other_sessions(room)
                if session.held_lease.is_released or self._evictor.must_hand_over(room):
                    self._slots.release(room)

    @contextmanager
    def with_session_closed(self, row: SessionRow) -> Iterator[Hub]:
        """A hub, for what is done to a session that nobody has open: archive it, erase it. It is
        left here before; Unavailable while something runs in it."""
        with self._slot(row.id) as room, room.exclusive(self._wait_timeout):
            if room.is_busy():
                raise Unavailable(
                    "session_busy", "programs run in its machine: end them first, or try again"
                )
            self._slots.release(room)
            request_handover(self._shared_hub.signal, row.id)
            with self.hub() as hub:
                yield hub

    @contextmanager
    def _slot(self, id_: str) -> Iterator[SessionSlot]:
        with self._slots.use_slot(id_) as room:
            self._evictor.start()
            yield room

    def close(self, timeout: float = 10.0) -> int:
        """Wait for those inside, then let every session go; how many would not."""
        until = time.monotonic() + timeout
        self._evictor.stop()
        rooms = self._slots.stop_accepting()
        self._handover.notify(HANDOVER_TOPIC)  # which wakes who hears
        self.swarm_jobs.close()
        stuck = self._slots.release_all(rooms, until)
        self._hub_pool.close()
        self._evictor.join(until)
        self._wanted_signal.close()
        self._liveness.close()
        if not stuck:
            self._shared_hub.close()
        return stuck
