"""Sessions that this server has open, and hubs that only look.

A hub is used by one thread at a time, so each open session has a hub of its own: a room. What one
session does, for an hour if need be, keeps no other waiting. A room is left a while after its last
request, or as soon as another server asks for its session, and nothing runs in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Condition, Thread

from ortet.backend.abc import Signal
from ortet.errors import NotFound, OrtetError, Refused, Unavailable
from ortet.machine.abc import Door
from ortet.session.hub import Hub
from ortet.session.lending import (
    SOON,
    WANTED,
    Request,
    Requests,
    ask_for,
    is_across,
    left,
    wanted,
)
from ortet.session.lifecycle import SessionRow, no_session
from ortet.session.session import Session
from ortet.session.view import View
from ortet.surface.http.drives import Drives
from ortet.surface.http.presence import Presence
from ortet.surface.http.readers import Readers
from ortet.surface.http.room import Opened, Room
from ortet.surface.http.strays import Strays

Told = Callable[[str, BaseException], None]
"""Hears what failed where nobody can be told."""

_AGENT = "default"
"""Whose names go before those of others: see Roll.meant."""


def _everyone(_agent: str) -> bool:
    return True


class Rooms:
    """Those of one store. `linger`, `patience` and `turn` are in seconds: how long a session stays
    open that nobody uses, how long a request waits for it, how long it is kept from others."""

    def __init__(
        self,
        open_hub: Callable[[], Hub],
        *,
        most: int = 512,
        linger: float = 10.0,
        patience: float = 5.0,
        turn: float = 0.1,
        told: Told = lambda _what, _error: None,
    ) -> None:
        self._opened = open_hub
        self._most = most
        self._linger = linger
        self._patience = patience
        self._turn = turn
        self._told = told
        self.drives = Drives(told)
        self._rooms: dict[str, Room] = {}
        self._changed = Condition()
        self._readers = Readers(self._open_hub)
        self._ids: dict[str, str] = {}  # by name: of the default agent's that are open here
        self._closed = False
        self._keeper: Thread | None = None
        self._door = self._open_hub()
        self._strays = Strays(self._door.catalog)
        self._presence = Presence(self._door)
        self._calls = self._door.signal.narrowed(WANTED)  # not every event wakes the keeper

    def _open_hub(self) -> Hub:
        hub = self._opened()
        hub.lends = True
        return hub

    @property
    def count(self) -> int:
        return len(self._rooms)

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
        self._check()
        with self._readers.lent() as hub:
            yield hub

    def row(self, session: str, sees: Callable[[str], bool] = _everyone) -> SessionRow:
        """By id, name or agent/name; NotFound, also where its agent is not to be seen."""
        room = self._rooms.get(session) or self._rooms.get(self._ids.get(session, ""))
        row = room.row if room is not None else None  # while it is open here nobody removes it
        if row is None or (row.id != session and not sees(row.agent)):
            with self.hub() as hub:
                row = hub._minds().roll.seen(session, sees)
            if row.id in self._rooms and (row.agent, row.name) == (_AGENT, session):
                self._ids[session] = row.id
        if not sees(row.agent):
            raise no_session(session)
        return row

    @contextmanager
    def view(self, id_: str) -> Iterator[View]:
        """To read: as it is open here, where nobody works in it, else from the store."""
        self._check()
        room = self._rooms.get(id_)
        if room is not None and room.lock.acquire(blocking=False):
            try:
                if room.session is not None and room.is_ours():
                    yield room.session
                    return
            finally:
                room.lock.release()
        with self.hub() as hub:
            yield hub.get(id_)

    def lives(self, id_: str) -> bool:
        """Whether a machine of this session was used here and is still there; waits for nobody."""
        room = self._rooms.get(id_)
        return room is not None and room.files is not None

    def opened(self) -> list[Room]:
        """Those in which a session is; to look at, whoever works in it."""
        return [room for room in list(self._rooms.values()) if room.row is not None]

    def machine_door(self, row: SessionRow, *, again: bool = False) -> Door:
        """Where the programs of a session's machine can be asked, whatever else is done with it;
        `again`: not as it was known. NotFound when no machine of it lives here."""
        room = self._rooms.get(row.id)
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
                    room.take(hub, session)
                    taken.append(hub)
            return row

    @contextmanager
    def enter(
        self, row: SessionRow, opened: Opened | None = None, *, anew: bool = False
    ) -> Iterator[Session]:
        """The session, open and ours alone. Refused("lease_held") when another process keeps it."""
        with self._room(row.id) as room, room.alone(self._patience):
            if anew and not room.busy():
                self._empty(room)
            session = self._inside(room, row, opened)
            try:
                yield session
            except BaseException as error:
                if room.is_spoilt_by(error):
                    room.spoilt = isinstance(error, Unavailable) and error.kind == "busy"
                    if not room.spoilt:
                        self._empty(room)
                raise
            finally:
                self._tidy(room)
                if session.holding.ended or self._is_wanted(room):
                    self._empty(room)

    @contextmanager
    def aside(self, row: SessionRow) -> Iterator[Hub]:
        """A hub, for what is done to a session that nobody has open: archive it, erase it. It is
        left here before; Unavailable while something runs in it."""
        with self._room(row.id) as room, room.alone(self._patience):
            if room.busy():
                raise Unavailable(
                    "session_busy", "programs run in its machine: end them first, or try again"
                )
            self._empty(room)
            ask_for(self._door.signal, row.id)
            with self.hub() as hub:
                yield hub

    @contextmanager
    def _room(self, id_: str) -> Iterator[Room]:
        with self._changed:
            self._check()
            room = self._rooms.get(id_)
            if room is None:
                room = self._rooms[id_] = Room(id_)
                if self._keeper is None:
                    self._keeper = Thread(target=self._keep, name="ortet-rooms", daemon=True)
                    self._keeper.start()
            room.users += 1
        try:
            if len(self._rooms) > self._most:
                self._make_space()
            yield room
        finally:
            with self._changed:
                room.users -= 1
                room.used = time.monotonic()
                if not room.users and room.hub is None and self._rooms.get(id_) is room:
                    del self._rooms[id_]
                self._changed.notify_all()

    def _inside(self, room: Room, row: SessionRow, opened: Opened | None) -> Session:
        if room.session is not None:
            if room.beats():
                return room.session
            self._empty(room)  # it was ended, or another took it while this process slept
        self._strays.end(row.id)
        signal, topic = self._calls, left(row.id)
        lent = self._readers.lent(kept=lambda hub: room.hub is hub)
        with lent as hub, Request(self._door, row.id) as request:
            until = time.monotonic() + self._patience  # whatever it took to open a hub
            while True:
                token = signal.token(topic)
                try:
                    session = opened(hub) if opened else hub.session(row.name, agent=row.agent)
                    room.take(hub, session)
                    return session
                except Refused as error:
                    rest = until - time.monotonic()
                    if error.kind != "lease_held" or rest <= 0 or self._closed:
                        raise
                    signal.wait(topic, token, min(rest, request.ask()))

    def _make_space(self) -> None:
        """Leave the rooms that were not used for longest, where there are too many."""
        while len(self._rooms) > self._most:
            with self._changed:
                idle = [one for one in self._rooms.values() if not one.users]
            if not any(self._leave(one) for one in sorted(idle, key=lambda one: one.used)):
                raise Unavailable(
                    "too_many_sessions",
                    f"{self._most} sessions are busy here: try again, or ask another server",
                )

    # leaving

    def _is_wanted(self, room: Room) -> bool:
        """Another server asked for it, and it was ours for a turn."""
        if not room.wanted or time.monotonic() - room.since < self._turn:
            return False
        return not room.busy()

    def _leave(self, room: Room) -> bool:
        """Whether it could be left."""
        if not room.lock.acquire(blocking=False):
            return False
        try:
            if room.users or room.busy():
                return False
            self._empty(room)
            with self._changed:
                if not room.users and self._rooms.get(room.id) is room:
                    del self._rooms[room.id]
            return True
        finally:
            room.lock.release()

    def _empty(self, room: Room) -> None:
        """Let its session go. What fails then is told to the log, not to whoever is next."""
        if room.row is not None:
            self._ids.pop(room.row.name, None)
        held = room.session.holding.lease if room.session is not None else None
        hub = room.leave()
        if hub is None:
            return
        try:
            self._readers.give_back(hub)
        except OrtetError as error:
            self._told("leaving a session", error)
        finally:
            if held is not None:
                self._strays.left(room.id, held)
            self._notify(left(room.id))

    def _tidy(self, room: Room) -> None:
        try:
            room.tidy()
        except OrtetError as error:
            self._told("pausing a fork", error)

    def _notify(self, topic: str) -> None:
        with suppress(OSError, OrtetError):  # a hint
            self._calls.notify(topic)

    def _keep(self) -> None:
        """Leaves rooms that nobody uses, or that another server asks for."""
        signal, token, requests = self._calls, 0, Requests(self._door)
        pause = min(SOON, self._linger / 4) if is_across(self._door) else self._linger / 4
        while not self._closed:
            try:
                token = token or signal.token(WANTED)
                signal.wait(WANTED, token, pause)
                before, token = token, signal.token(WANTED)
                asked = requests.sessions() if self._rooms else set()
                for room in list(self._rooms.values()):
                    self._look_after(
                        room, signal.wait(wanted(room.id), before, 0) or room.id in asked
                    )
                self._readers.rest()
                self._strays.end_all()
            except Exception as error:
                self._told("keeping rooms", error)
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, self._linger / 4)

    def _look_after(self, room: Room, wanted: bool) -> None:
        now = time.monotonic()
        if wanted and room.hub is not None:
            room.wanted = True
        if not room.users and (self._is_wanted(room) or now - room.used > self._linger):
            self._leave(room)

    def _check(self) -> None:
        if self._closed:
            raise Unavailable("stopping", "this server is stopping: ask another, or try again")

    def close(self, patience: float = 10.0) -> int:
        """Wait for those inside, then let every session go; how many would not."""
        until = time.monotonic() + patience
        with self._changed:
            self._closed = True
            rooms, self._rooms = list(self._rooms.values()), {}
            self._changed.notify_all()
        self._notify(WANTED)
        self.drives.close()
        stuck = 0
        for room in sorted(rooms, key=lambda one: one.users):
            if room.lock.acquire(timeout=max(0.0, until - time.monotonic())):
                try:
                    self._empty(room)
                finally:
                    room.lock.release()
            else:
                stuck += 1
        self._readers.close()
        if self._keeper is not None:
            self._keeper.join(max(1.0, until - time.monotonic()))
        self._calls.close()
        self._presence.close()
        if not stuck:
            self._door.close()
        return stuck
