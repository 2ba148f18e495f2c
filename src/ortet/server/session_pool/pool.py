"""SessionPool: the sessions of one store that this server has open, and hubs for reading.

A hub is used by one thread at a time, so each open session has its own hub, in a slot. A session
that is busy for an hour delays no other session. A slot is released some time after its last
request, or when another process asks for the session. It is kept while programs run in it.
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
from ortet.server.session_pool.slots import SlotTable
from ortet.server.session_pool.swarm_jobs import SwarmJobs
from ortet.sessions.reader import SessionReader
from ortet.sessions.session import Session
from ortet.sessions.table import SessionRow, no_session
from ortet.sessions.writing.lease_handover import HANDOVER_TOPIC, request_handover

_DEFAULT_AGENT = "default"
"""The agent whose session names win over those of others. See `SessionTable.resolve`."""


def _sees_every_agent(_agent: str) -> bool:
    return True


class SessionPool:
    """The sessions of one store. Thread-safe.

    Args:
        open_hub: Opens a hub of the store.
        max_sessions: Maximum number of open sessions.
        linger: Seconds that an unused session stays open.
        patience: Seconds that a request waits for a busy session.
        min_hold: Seconds that a session in constant use is kept before it is handed over.
    """

    def __init__(
        self,
        open_hub: Callable[[], Hub],
        *,
        max_sessions: int = 512,
        linger: float = 10.0,
        patience: float = 5.0,
        min_hold: float = 0.2,
    ) -> None:
        self._hub_factory = open_hub
        self._wait_timeout = patience
        self.swarm_jobs = SwarmJobs()
        self._hub_pool = HubPool(self._open_hub)
        self._shared_hub = self._open_hub()
        self._liveness = ServerLiveness(self._shared_hub)
        self._wanted_signal = self._shared_hub.signal.with_prefix(
            HANDOVER_TOPIC
        )  # other events must not wake the evictor
        self._handover = SessionHandover(self._shared_hub, self._wanted_signal)
        self._slots = SlotTable(
            self._shared_hub,
            self._hub_pool,
            self._handover,
            max_slots=max_sessions,
        )
        self._evictor = SlotEvictor(
            self._slots,
            self._shared_hub,
            self._wanted_signal,
            idle_timeout=linger,
            min_hold=min_hold,
        )

    def _open_hub(self) -> Hub:
        hub = self._hub_factory()
        hub.store.allows_lease_handover = True
        return hub

    @property
    def count(self) -> int:
        """The number of slots."""
        return self._slots.count

    @property
    def shared_hub(self) -> Hub:
        """A hub that is open as long as the pool; only for its parts that threads may share."""
        return self._shared_hub

    @property
    def signal(self) -> Signal:
        """The signal of the store."""
        return self._shared_hub.signal

    @property
    def upload_directory(self) -> Path:
        """The directory for request bodies while they are received, on the disk of the store."""
        return self._shared_hub.root / "local" / "received"

    # Reading

    @contextmanager
    def hub(self) -> Iterator[Hub]:
        """Yield a hub for use by this thread alone.

        Sessions that are opened in it are closed afterwards.
        """
        self._slots.check()
        with self._hub_pool.borrow() as hub:
            yield hub

    def row(self, session: str, sees: Callable[[str], bool] = _sees_every_agent) -> SessionRow:
        """Return the row of a session.

        Args:
            session: An id, a name or agent/name.
            sees: Returns True for agents whose sessions the caller may see.

        Raises:
            NotFound: There is no such session, or its agent is not visible.
        """
        slot = self._slots.get(session) or self._slots.find_by_name(session)
        row = slot.row if slot is not None else None  # an open session cannot be removed
        if row is None or (row.id != session and not sees(row.agent)):
            with self.hub() as hub:
                row = hub.internals.session_manager.table.resolve_visible(session, sees)
            if (row.agent, row.name) == (_DEFAULT_AGENT, session):
                self._slots.remember_name(row.id, session)
        if not sees(row.agent):
            raise no_session(session)
        return row

    @contextmanager
    def view(self, id_: str) -> Iterator[SessionReader]:
        """Yield a session for reading.

        It is the open session if no thread uses that, else one that is read from the store.
        """
        self._slots.check()
        slot = self._slots.get(id_)
        if slot is not None and slot.lock.acquire(blocking=False):
            try:
                if slot.session is not None and slot.is_ours():
                    yield slot.session
                    return
            finally:
                slot.lock.release()
                self._slots.wake_if_wanted(slot)
        with self.hub() as hub:
            yield hub.get(id_)

    def has_live_machine(self, id_: str) -> bool:
        """Return True if a machine of the session runs in this server.

        Does not wait for the session's lock.
        """
        slot = self._slots.get(id_)
        return slot is not None and slot.workspace is not None

    def open_slots(self) -> list[SessionSlot]:
        """Return the slots with an open session. Other threads may be using them."""
        return [slot for slot in self._slots.all_slots() if slot.row is not None]

    def control_socket(self, row: SessionRow, *, refresh: bool = False) -> ControlSocket:
        """Return the control socket of a session's machine.

        The socket can be used while another thread uses the session.

        Args:
            row: The session.
            refresh: Look the socket up again instead of using the cached one.

        Raises:
            NotFound: No machine of the session runs in this server.
        """
        slot = self._slots.get(row.id)
        files = slot.workspace if slot is not None else None
        if slot is None or files is None:
            raise NotFound(
                "not_live",
                f"no machine of session {row.name!r} lives in this server: run something in it",
            )
        if slot.control_socket is None or refresh:
            with slot.exclusive(self._wait_timeout):
                slot.control_socket = files.control_socket
        return slot.control_socket

    # Writing

    @contextmanager
    def open_by_name(
        self, agent: str, name: str, opener: SessionOpener, *, reopen: bool = True
    ) -> Iterator[Session]:
        """Open a session by name for use by this thread alone; `opener` creates it if it is new.

        Args:
            agent: Agent of the session.
            name: Name of the session.
            opener: Opens the session in a hub, with the options of the request.
            reopen: Open the session again with `opener` if it is already open here.
        """
        with self.hub() as hub:
            row = hub.internals.session_manager.table.find(agent, name)
        if row is None:
            row = self._create_session(agent, name, opener)
            reopen = False
        with self.open_session(row, opener, reopen=reopen) as session:
            yield session

    def _create_session(self, agent: str, name: str, opener: SessionOpener) -> SessionRow:
        """Create a session and attach it to its slot, unless another thread uses that already."""
        taken: list[Hub] = []
        with self._hub_pool.borrow(is_kept=lambda hub: hub in taken) as hub:
            token = self._wanted_signal.token(HANDOVER_TOPIC)
            try:
                session = opener(hub)
            except Refused as error:
                row = hub.internals.session_manager.table.find(agent, name)
                if error.kind != "lease_held" or row is None:
                    raise
                return row  # another process created it first
            row = session.internals.row
            with self._slot(row.id) as slot, slot.try_exclusive() as alone:
                if alone and slot.session is None:
                    self._slots.attach(slot, hub, session, token)
                    taken.append(hub)
            return row

    @contextmanager
    def open_session(
        self, row: SessionRow, opener: SessionOpener | None = None, *, reopen: bool = False
    ) -> Iterator[Session]:
        """Open a session for use by this thread alone.

        Raises:
            Refused: `lease_held`, if another process keeps the session.
            Unavailable: `session_busy`, if another thread uses it for longer than the timeout.
        """
        with self._slot(row.id) as slot, slot.exclusive(self._wait_timeout):
            if reopen and not slot.is_busy():
                self._slots.release(slot)
            session = self._slots.open_session(slot, row, opener, timeout=self._wait_timeout)
            try:
                yield session
            except BaseException as error:
                if slot.is_stale_after(error):
                    slot.is_stale = isinstance(error, Unavailable) and error.kind == "busy"
                    if not slot.is_stale:
                        self._slots.release(slot)
                raise
            finally:
                self._slots.release_other_sessions(slot)
                if session.internals.held_lease.is_released or self._evictor.must_hand_over(slot):
                    self._slots.release(slot)

    @contextmanager
    def with_session_closed(self, row: SessionRow) -> Iterator[Hub]:
        """Yield a hub for an operation on a closed session, such as archive or erase.

        The session is released here first, and other processes are asked to release it.

        Raises:
            Unavailable: Programs run in the session's machine.
        """
        with self._slot(row.id) as slot, slot.exclusive(self._wait_timeout):
            if slot.is_busy():
                raise Unavailable(
                    "session_busy",
                    "programs run in the machine of the session: end them first, or try again",
                )
            self._slots.release(slot)
            request_handover(self._shared_hub.signal, row.id)
            with self.hub() as hub:
                yield hub

    @contextmanager
    def _slot(self, id_: str) -> Iterator[SessionSlot]:
        with self._slots.use_slot(id_) as slot:
            self._evictor.start()
            yield slot

    def close(self, timeout: float = 10.0) -> int:
        """Wait for running requests, then release every session.

        Returns:
            The number of sessions that were still busy at the timeout.
        """
        until = time.monotonic() + timeout
        self._evictor.stop()
        slots = self._slots.stop_accepting()
        self._handover.notify(HANDOVER_TOPIC)  # wakes the listening thread
        self.swarm_jobs.close()
        stuck = self._slots.release_all(slots, until)
        self._hub_pool.close()
        self._evictor.join(until)
        self._wanted_signal.close()
        self._liveness.close()
        if not stuck:
            self._shared_hub.close()
        return stuck
