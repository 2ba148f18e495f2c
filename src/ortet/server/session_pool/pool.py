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
from ortet.machines.base import Door
from ortet.server.session_pool.eviction import Keeper
from ortet.server.session_pool.handover import Handing
from ortet.server.session_pool.liveness import Presence
from ortet.server.session_pool.readers import Readers
from ortet.server.session_pool.slot import Opened, Room
from ortet.server.session_pool.slots import Lobby, Told
from ortet.server.session_pool.swarm_jobs import Drives
from ortet.sessions.reader import View
from ortet.sessions.session import Session
from ortet.sessions.table import SessionRow, no_session
from ortet.sessions.writing.lease_handover import WANTED, ask_for

_AGENT = "default"
"""Whose names go before those of others: see Roll.meant."""


def _everyone(_agent: str) -> bool:
    return True


class Rooms:
    """Those of one store. `linger`, `patience` and `turn` are in seconds: how long a session stays
    open that nobody uses, how long a request waits for it, how long one that is used without a
    break is kept from others."""

    def __init__(
        self,
        open_hub: Callable[[], Hub],
        *,
        most: int = 512,
        linger: float = 10.0,
        patience: float = 5.0,
        turn: float = 0.2,
        told: Told = lambda _what, _error: None,
    ) -> None:
        self._opened = open_hub
        self._patience = patience
        self.drives = Drives(told)
        self._readers = Readers(self._open_hub)
        self._door = self._open_hub()
        self._presence = Presence(self._door)
        self._calls = self._door.signal.narrowed(WANTED)  # not every event wakes the keeper
        self._handing = Handing(self._door, self._calls)
        self._lobby = Lobby(self._door, self._readers, self._handing, most=most, told=told)
        self._keeper = Keeper(
            self._lobby, self._door, self._calls, linger=linger, turn=turn, told=told
        )

    def _open_hub(self) -> Hub:
        hub = self._opened()
        hub.lends = True
        return hub

    @property
    def count(self) -> int:
        return self._lobby.count

    @property
    def door(self) -> Hub:
        """Open as long as the server is; only for those parts of it that threads may share."""
        return self._door

    @property
    def signal(self) -> Signal:
        """Of the store."""
        return self._door.signal

    @property
    def scratch(self) -> Path:
        """Where bodies lie while they are received; on the disk of the store."""
        return self._door.root / "local" / "received"

    # reading

    @contextmanager
    def hub(self) -> Iterator[Hub]:
        """One that no other thread uses meanwhile. What is opened in it is closed after."""
        self._lobby.check()
        with self._readers.lent() as hub:
            yield hub

    def row(self, session: str, sees: Callable[[str], bool] = _everyone) -> SessionRow:
        """By id, name or agent/name; NotFound, also where its agent is not to be seen."""
        room = self._lobby.get(session) or self._lobby.named(session)
        row = room.row if room is not None else None  # while it is open here nobody removes it
        if row is None or (row.id != session and not sees(row.agent)):
            with self.hub() as hub:
                row = hub._minds().roll.seen(session, sees)
            if (row.agent, row.name) == (_AGENT, session):
                self._lobby.call(row.id, session)
        if not sees(row.agent):
            raise no_session(session)
        return row

    @contextmanager
    def view(self, id_: str) -> Iterator[View]:
        """To read: as it is open here, where nobody works in it, else from the store."""
        self._lobby.check()
        room = self._lobby.get(id_)
        if room is not None and room.lock.acquire(blocking=False):
            try:
                if room.session is not None and room.is_ours():
                    yield room.session
                    return
            finally:
                room.lock.release()
                self._lobby.came_out(room)
        with self.hub() as hub:
            yield hub.get(id_)

    def lives(self, id_: str) -> bool:
        """Whether a machine of this session was used here and is still there; waits for nobody."""
        room = self._lobby.get(id_)
        return room is not None and room.files is not None

    def opened(self) -> list[Room]:
        """Those in which a session is; to look at, whoever works in it."""
        return [room for room in self._lobby.rooms() if room.row is not None]

    def machine_door(self, row: SessionRow, *, again: bool = False) -> Door:
        """Where the programs of a session's machine can be asked, whatever else is done with it;
        `again`: not as it was known. NotFound when no machine of it lives here."""
        room = self._lobby.get(row.id)
        files = room.files if room is not None else None
        if room is None or files is None:
            raise NotFound(
                "not_live",
                f"no machine of session {row.name!r} lives in this server: run something in it",
            )
        if room.door is None or again:
            with room.alone(self._patience):
                room.door = files.door
        return room.door

    # writing

    @contextmanager
    def begin(
        self, agent: str, name: str, opened: Opened, *, anew: bool = True
    ) -> Iterator[Session]:
        """A session by name: as `opened` gives it, which makes it where it is new. `anew`: it is
        asked for with options, so one that is open here is opened again with them."""
        with self.hub() as hub:
            row = hub._minds().roll.find(agent, name)
        if row is None:
            row = self._make(agent, name, opened)
            anew = False
        with self.enter(row, opened, anew=anew) as session:
            yield session

    def _make(self, agent: str, name: str, opened: Opened) -> SessionRow:
        """A new session, in its room if nobody was faster to enter that."""
        taken: list[Hub] = []
        with self._readers.lent(kept=lambda hub: hub in taken) as hub:
            token = self._calls.token(WANTED)
            try:
                session = opened(hub)
            except Refused as error:
                row = hub._minds().roll.find(agent, name)
                if error.kind != "lease_held" or row is None:
                    raise
                return row  # another was faster to make it
            row = session.row
            with self._room(row.id) as room, room.at_once() as alone:
                if alone and room.session is None:
                    self._lobby.take(room, hub, session, token)
                    taken.append(hub)
            return row

    @contextmanager
    def enter(
        self, row: SessionRow, opened: Opened | None = None, *, anew: bool = False
    ) -> Iterator[Session]:
        """The session, open and ours alone. Refused("lease_held") when another process keeps it."""
        with self._room(row.id) as room, room.alone(self._patience):
            if anew and not room.busy():
                self._lobby.empty(room)
            session = self._lobby.inside(room, row, opened, patience=self._patience)
            try:
                yield session
            except BaseException as error:
                if room.is_spoilt_by(error):
                    room.spoilt = isinstance(error, Unavailable) and error.kind == "busy"
                    if not room.spoilt:
                        self._lobby.empty(room)
                raise
            finally:
                self._lobby.tidy(room)
                if session.holding.ended or self._keeper.is_over(room):
                    self._lobby.empty(room)

    @contextmanager
    def aside(self, row: SessionRow) -> Iterator[Hub]:
        """A hub, for what is done to a session that nobody has open: archive it, erase it. It is
        left here before; Unavailable while something runs in it."""
        with self._room(row.id) as room, room.alone(self._patience):
            if room.busy():
                raise Unavailable(
                    "session_busy", "programs run in its machine: end them first, or try again"
                )
            self._lobby.empty(room)
            ask_for(self._door.signal, row.id)
            with self.hub() as hub:
                yield hub

    @contextmanager
    def _room(self, id_: str) -> Iterator[Room]:
        with self._lobby.room(id_) as room:
            self._keeper.start()
            yield room

    def close(self, patience: float = 10.0) -> int:
        """Wait for those inside, then let every session go; how many would not."""
        until = time.monotonic() + patience
        self._keeper.stop()
        rooms = self._lobby.shut()
        self._handing.tell(WANTED)  # which wakes who hears
        self.drives.close()
        stuck = self._lobby.clear(rooms, until)
        self._readers.close()
        self._keeper.join(until)
        self._calls.close()
        self._presence.close()
        if not stuck:
            self._door.close()
        return stuck
