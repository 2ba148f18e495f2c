"""Sessions that this server has open, and hubs that only look.

A hub is used by one thread at a time, so each open session has a hub of its own: a room. What one
session does, for an hour if need be, keeps no other waiting. A room is left a while after its last
request, or as soon as another server asks for its session, and nothing runs in it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Condition, RLock, Thread

from ortet.backend.abc import Signal
from ortet.errors import OrtetError, Refused, Unavailable
from ortet.session.hub import Hub
from ortet.session.lifecycle import SessionRow, no_session
from ortet.session.session import Session
from ortet.session.view import View

WANTED = "rooms"
"""The topic under which servers ask one another for a session."""

Opened = Callable[[Hub], Session]


class Room:
    """One session, open. `users` are requests inside, or about to be."""

    def __init__(self, id_: str) -> None:
        self.id = id_
        self.lock = RLock()
        self.users = 0
        self.used = 0.0
        self.hub: Hub | None = None
        self.session: Session | None = None

    def busy(self) -> bool:
        """Something runs in it that would end with it."""
        with suppress(OrtetError):
            return bool(self.session is not None and self.session.is_running())
        return True


class Rooms:
    """Those of one store. `linger` and `patience` are in seconds."""

    def __init__(
        self,
        open_hub: Callable[[], Hub],
        *,
        most: int = 64,
        linger: float = 10.0,
        patience: float = 5.0,
    ) -> None:
        self._open_hub = open_hub
        self._most = most
        self._linger = linger
        self._patience = patience
        self._rooms: dict[str, Room] = {}
        self._changed = Condition()
        self._readers: deque[Hub] = deque()
        self._closed = False
        self._keeper: Thread | None = None
        self._door = open_hub()

    @property
    def count(self) -> int:
        return len(self._rooms)

    @property
    def signal(self) -> Signal:
        """Of the store."""
        return self._door.signal

    # reading

    @contextmanager
    def hub(self) -> Iterator[Hub]:
        """One that no other thread uses meanwhile."""
        with self._changed:
            self._check()
            hub = self._readers.pop() if self._readers else None
        hub = hub or self._open_hub()
        try:
            yield hub
        finally:
            with self._changed:
                keep = not self._closed and len(self._readers) < self._most
                if keep:
                    self._readers.append(hub)
            if not keep:
                hub.close()

    def row(self, session: str, sees: Callable[[str], bool] = lambda _: True) -> SessionRow:
        """By id, name or agent/name; NotFound, also where its agent is not to be seen."""
        with self.hub() as hub:
            roll = hub._minds().roll
            row = roll.get(roll.meant(session))
        if not sees(row.agent):
            raise no_session(session)
        return row

    @contextmanager
    def view(self, id_: str) -> Iterator[View]:
        """To read: as it is open here, where nobody works in it, else from the store."""
        with self._changed:
            self._check()
            room = self._rooms.get(id_)
        if room is not None and room.lock.acquire(blocking=False):
            try:
                if room.session is not None and not room.session.holding.ended:
                    yield room.session
                    return
            finally:
                room.lock.release()
        with self.hub() as hub:
            yield hub.get(id_)

    # writing

    @contextmanager
    def begin(self, agent: str, name: str, opened: Opened) -> Iterator[Session]:
        """A session by name: as `opened` gives it, which makes it where it is new."""
        with self.hub() as hub:
            row = hub._minds().roll.find(agent, name)
            if row is None:
                # made, and let go: whoever was faster, it is there now
                with suppress(Refused):
                    opened(hub).pause()
                row = hub._minds().roll.find(agent, name)
        assert row is not None
        with self.enter(row, opened) as session:
            yield session

    @contextmanager
    def enter(self, row: SessionRow, opened: Opened | None = None) -> Iterator[Session]:
        """The session, open and ours alone. Refused("lease_held") when another process keeps it."""
        room = self._room(row.id)
        try:
            with self._alone(room):
                yield self._inside(room, row, opened)
                if room.session is not None and room.session.holding.ended:
                    self._empty(room)  # closed, or archived
        finally:
            with self._changed:
                room.users -= 1
                room.used = time.monotonic()
                self._changed.notify_all()

    @contextmanager
    def _alone(self, room: Room) -> Iterator[None]:
        if not room.lock.acquire(timeout=self._patience):
            raise Unavailable(
                "session_busy",
                "the session is doing something else: try again, or leave it a comment",
            )
        try:
            yield
        finally:
            room.lock.release()

    def _room(self, id_: str) -> Room:
        with self._changed:
            self._check()
            room = self._rooms.get(id_)
            if room is None:
                room = self._rooms[id_] = Room(id_)
                self._start()
            room.users += 1
        self._make_space(room)
        return room

    def _inside(self, room: Room, row: SessionRow, opened: Opened | None) -> Session:
        session = room.session
        if session is not None and not session.holding.ended:
            try:
                session.holding.beat()
                return session
            except Refused:  # another took it, while this process slept
                self._empty(room)
        until = time.monotonic() + self._patience
        hub = self._open_hub()
        try:
            while True:
                try:
                    found = opened(hub) if opened else hub.session(row.name, agent=row.agent)
                    room.session, room.hub = found, hub
                    return found
                except Refused as error:
                    rest = until - time.monotonic()
                    if error.kind != "lease_held" or rest <= 0 or self._closed:
                        raise
                    topic = f"left:{row.id}"
                    token = self._door.signal.token(topic)
                    self._door.signal.notify(f"wanted:{row.id}")
                    self._door.signal.notify(WANTED)
                    self._door.signal.wait(topic, token, min(rest, 0.25))
        finally:
            if room.hub is not hub:
                hub.close()

    def _make_space(self, mine: Room) -> None:
        """Leave the room that was not used for longest, where there are too many."""
        while len(self._rooms) > self._most:
            with self._changed:
                idle = [one for one in self._rooms.values() if not one.users and one is not mine]
            for room in sorted(idle, key=lambda one: one.used):
                if self._leave(room):
                    break
            else:
                with self._changed:
                    mine.users -= 1
                raise Unavailable(
                    "too_many_sessions",
                    f"{self._most} sessions are busy here: try again, or ask another server",
                )

    # leaving

    def _leave(self, room: Room) -> bool:
        """Whether it could be left."""
        if not room.lock.acquire(blocking=False):
            return False
        try:
            with self._changed:
                if room.users:
                    return False
            if room.busy():
                return False
            self._empty(room)
            with self._changed:
                if not room.users:
                    self._rooms.pop(room.id, None)
            return True
        finally:
            room.lock.release()

    def _empty(self, room: Room) -> None:
        hub, room.hub, room.session = room.hub, None, None
        if hub is not None:
            try:
                hub.close()
            finally:
                self._door.signal.notify(f"left:{room.id}")

    def _start(self) -> None:
        if self._keeper is None:
            self._keeper = Thread(target=self._keep, name="ortet-rooms", daemon=True)
            self._keeper.start()

    def _keep(self) -> None:
        """Leaves rooms that nobody uses, or that another server asks for."""
        signal = self._door.signal
        token = signal.token(WANTED)
        while not self._closed:
            signal.wait(WANTED, token, self._linger / 4)
            before, token = token, signal.token(WANTED)
            with self._changed:
                rooms = [room for room in self._rooms.values() if not room.users]
            for room in rooms:
                old = time.monotonic() - room.used > self._linger
                if old or signal.wait(f"wanted:{room.id}", before, 0):
                    with suppress(OrtetError):  # a full disk: the next turn tries again
                        self._leave(room)

    def _check(self) -> None:
        if self._closed:
            raise Unavailable("stopping", "this server is stopping: ask another, or try again")

    def close(self) -> None:
        """Wait for those inside, then let every session go."""
        with self._changed:
            self._closed = True
            rooms, readers = list(self._rooms.values()), list(self._readers)
            self._rooms, self._readers = {}, deque()
        self._door.signal.notify(WANTED)
        for room in rooms:
            with room.lock, suppress(OrtetError):
                self._empty(room)
        for hub in readers:
            hub.close()
        if self._keeper is not None:
            self._keeper.join()
        self._door.close()
