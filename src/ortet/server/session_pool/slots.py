"""The rooms of one store by session: who is inside, how many there may be, how one is opened and
left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition, Event

from ortet.errors import OrtetError, Refused, Unavailable
from ortet.hub.hub import Hub
from ortet.server.session_pool.handover import Handing
from ortet.server.session_pool.readers import Readers
from ortet.server.session_pool.slot import Opened, Room
from ortet.server.session_pool.strays import Strays
from ortet.sessions.session import Session
from ortet.sessions.table import SessionRow

Told = Callable[[str, BaseException], None]
"""Hears what failed where nobody can be told."""


class Lobby:
    """`most` rooms at a time. `woken` is set when one that is asked for may be left."""

    def __init__(
        self, door: Hub, readers: Readers, handing: Handing, *, most: int, told: Told
    ) -> None:
        self._readers = readers
        self._strays = Strays(door.catalog)
        self._handing = handing
        self._most = most
        self._told = told
        self.woken = Event()
        self._rooms: dict[str, Room] = {}
        self._changed = Condition()
        self._ids: dict[str, str] = {}
        self.closed = False

    @property
    def count(self) -> int:
        return len(self._rooms)

    def rooms(self) -> list[Room]:
        return list(self._rooms.values())

    def get(self, session: str) -> Room | None:
        return self._rooms.get(session)

    def named(self, name: str) -> Room | None:
        """The one in which the session of this name is, of those that were `call`ed so."""
        return self._rooms.get(self._ids.get(name, ""))

    def call(self, session: str, name: str) -> None:
        """As long as it is open here."""
        if session in self._rooms:
            self._ids[name] = session

    def check(self) -> None:
        if self.closed:
            raise Unavailable("stopping", "this server is stopping: ask another, or try again")

    @contextmanager
    def room(self, session: str) -> Iterator[Room]:
        """The one of a session, which stays as long as anybody is there."""
        with self._changed:
            self.check()
            room = self._rooms.get(session)
            if room is None:
                room = self._rooms[session] = Room(session)
            room.users += 1
        try:
            if len(self._rooms) > self._most:
                self._make_space()
            yield room
        finally:
            with self._changed:
                room.users -= 1
                room.used = time.monotonic()
                if not room.users and room.hub is None and self._rooms.get(session) is room:
                    del self._rooms[session]
                self._changed.notify_all()
            self.came_out(room)

    def came_out(self, room: Room) -> None:
        if room.wanted:
            self.woken.set()

    def inside(
        self, room: Room, row: SessionRow, opened: Opened | None, *, patience: float
    ) -> Session:
        """What is in it, opened if need be; for one who is alone there."""
        if room.session is not None:
            if room.beats():
                return room.session
            self.empty(room)  # it was ended, or another took it while this process slept
        self._strays.end(row.id)
        self._handing.after_you(row.id)
        lent = self._readers.lent(kept=lambda hub: room.hub is hub)
        with lent as hub, self._handing.asking(row.id, patience) as asking:
            while True:
                try:
                    session = opened(hub) if opened else hub.session(row.name, agent=row.agent)
                    self.take(room, hub, session, asking.token)
                    return session
                except Refused as error:
                    if error.kind != "lease_held" or self.closed or not asking.wait():
                        raise

    def take(self, room: Room, hub: Hub, session: Session, token: int) -> None:
        """What was opened is in it from now on. Who was refused meanwhile has asked already."""
        room.take(hub, session, token)
        room.asked = self._handing.is_asked(room.id, token)

    def _make_space(self) -> None:
        """Leave the rooms that were not used for longest, where there are too many."""
        while len(self._rooms) > self._most:
            with self._changed:
                idle = [one for one in self._rooms.values() if not one.users]
            if not any(self.leave(one) for one in sorted(idle, key=lambda one: one.used)):
                raise Unavailable(
                    "too_many_sessions",
                    f"{self._most} sessions are busy here: try again, or ask another server",
                )

    def leave(self, room: Room) -> bool:
        """Whether it could be left."""
        if not room.lock.acquire(blocking=False):
            return False
        try:
            if room.users or room.busy():
                return False
            self.empty(room)
            with self._changed:
                if not room.users and self._rooms.get(room.id) is room:
                    del self._rooms[room.id]
            return True
        finally:
            room.lock.release()

    def empty(self, room: Room) -> None:
        """Let its session go, as one who is alone in it. What fails then is told to the log, not to
        whoever is next."""
        if room.row is not None:
            self._ids.pop(room.row.name, None)
        if room.wanted and room.asked:
            self._handing.give(room.id)
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
            self._handing.tell_left(room.id)

    def tidy(self, room: Room) -> None:
        try:
            room.tidy()
        except OrtetError as error:
            self._told("pausing a fork", error)

    def rest(self) -> None:
        """What is done now and then."""
        self._readers.rest()
        self._strays.end_all()

    def shut(self) -> list[Room]:
        """Nobody comes in any more; those that there are."""
        with self._changed:
            self.closed = True
            rooms, self._rooms = list(self._rooms.values()), {}
            self._changed.notify_all()
        return rooms

    def clear(self, rooms: list[Room], until: float) -> int:
        """Wait for those inside, then let every session go; how many would not."""
        stuck = 0
        for room in sorted(rooms, key=lambda one: one.users):
            if room.lock.acquire(timeout=max(0.0, until - time.monotonic())):
                try:
                    self.empty(room)
                finally:
                    room.lock.release()
            else:
                stuck += 1
        return stuck
