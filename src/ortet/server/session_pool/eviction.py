"""When rooms are left: a while after their last request, or when another server asks.

Two threads of each store. One hears who asks for what. The other leaves rooms: it is woken by the
first, by who comes out of a room that is asked for, and by the clock. Where no signal comes
through, others ask by rows, which it looks up now and then.
"""

from __future__ import annotations

import time
from threading import Event, Lock, Thread

from ortet.backends.base import Signal
from ortet.hub.hub import Hub
from ortet.server.session_pool.slot import Room
from ortet.server.session_pool.slots import Lobby, Told
from ortet.sessions.writing.lease_handover import SOON, Requests, asked_for, is_across, wanted

_QUIET = 0.01
"""Seconds without a request after which whoever worked in a room is thought to be done."""
_LONG = 5.0
"""Seconds for which it is listened at a time."""


class Keeper:
    """Of the rooms of one store. `linger` and `turn` are as in Rooms."""

    def __init__(
        self,
        lobby: Lobby,
        door: Hub,
        signal: Signal,
        *,
        linger: float,
        turn: float,
        told: Told,
    ) -> None:
        self._lobby = lobby
        self._door = door
        self._signal = signal
        self._linger = linger
        self._turn = turn
        self._told = told
        self._pause = min(SOON, linger / 4) if is_across(door) else linger / 4
        self._woken = lobby.woken
        self._ended = Event()
        self._starting = Lock()
        self._threads: list[Thread] = []

    def start(self) -> None:
        """Once a session is to be opened; what is asked for from now on is heard."""
        if self._threads:
            return
        with self._starting:
            if not self._threads and not self._ended.is_set():
                token, _ = self._signal.news(None, 0)
                work = ("keep", self._keep, ()), ("hear", self._hear, (token,))
                threads = [
                    Thread(target=run, args=args, name=f"ortet-rooms-{name}", daemon=True)
                    for name, run, args in work
                ]
                for thread in threads:
                    thread.start()
                self._threads = threads

    def is_over(self, room: Room) -> bool:
        """Whether a room that somebody is in goes to another server now: that asked for it, and it
        was ours for a turn."""
        return room.wanted and time.monotonic() - room.since >= self._turn and not room.busy()

    def stop(self) -> None:
        self._ended.set()
        self._woken.set()

    def join(self, until: float) -> None:
        for thread in self._threads:
            thread.join(max(1.0, until - time.monotonic()))

    def _hear(self, token: int | None) -> None:
        while not self._ended.is_set():
            try:
                token, topics = self._signal.news(token, _LONG)
                if topics is None:  # something was told that was not heard
                    self._guess(self._lobby.rooms())
                else:
                    self._ask({asked_for(topic) for topic in topics})
            except Exception as error:
                token = None
                self._fail("hearing who asks for sessions", error)

    def _ask(self, sessions: set[str]) -> None:
        for room in self._those(sessions):  # one of them may be what we ask for ourselves
            if self._signal.wait(wanted(room.id), room.token, 0):
                room.asked = True
                self._woken.set()

    def _guess(self, rooms: list[Room]) -> None:
        for room in rooms:
            room.guessed = True
            self._woken.set()

    def _those(self, sessions: set[str]) -> list[Room]:
        rooms = [self._lobby.get(session) for session in sessions]
        return [room for room in rooms if room is not None and room.hub is not None]

    def _keep(self) -> None:
        requests, rested, next_ = Requests(self._door), time.monotonic(), 0.0
        while not self._ended.is_set():
            try:
                self._woken.wait(max(0.0, next_ - time.monotonic()))
                self._woken.clear()
                if time.monotonic() >= rested + self._pause:
                    rested = time.monotonic()
                    if self._lobby.count:
                        # of whom nobody knows whether they still wait
                        self._guess(self._those(requests.sessions()))
                    self._lobby.rest()
                times = [self._look_after(room) for room in self._lobby.rooms()]
                next_ = min([rested + self._pause, *(due for due in times if due is not None)])
            except Exception as error:
                self._fail("keeping rooms", error)

    def _look_after(self, room: Room) -> float | None:
        """Leave it, if it is time; else when to look again, if that is soon: who is inside now says
        so when they come out, and all else is looked at now and then."""
        now, due = time.monotonic(), room.used + self._linger
        if room.wanted:
            due = min(due, room.since + self._turn, room.used + _QUIET)
        if room.users:
            return None
        if now < due:
            return due if room.wanted else None
        self._lobby.leave(room)
        return None

    def _fail(self, what: str, error: Exception) -> None:
        self._told(what, error)
        self._ended.wait(self._pause)
