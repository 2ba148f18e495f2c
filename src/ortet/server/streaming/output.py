"""The output of programs in live machines, for any number of readers: one thread for each program
that somebody follows. Who falls behind reads what the machine still keeps, and is told what is
gone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, NamedTuple

from ortet.errors import OrtetError
from ortet.machines.control.client import Indoors
from ortet.machines.control.jobs import Job, Piece, Stream
from ortet.server.session_pool.pool import Rooms
from ortet.server.streaming.wakeups import Bell, Feed
from ortet.sessions.table import SessionRow

if TYPE_CHECKING:
    from ortet.server.streaming.streams import Streams

KEEP = 256 << 10
"""Bytes that are kept here of each."""
PIECE = 64 << 10
_WAIT = 2.0
"""Seconds of one request; a thread that nobody needs any more ends then."""


class Program(NamedTuple):
    """One that was found, and who was asked. `stream`: "stdout" of a terminal, else "output"."""

    indoors: Indoors
    job: Job
    stream: Stream


class Tap:
    """Of one program."""

    def __init__(self, streams: Streams, feed: Feed, program: Program) -> None:
        self.job = program.job
        self.topic = f"output:{self.job.pid}:{self.job.id}:{id(self)}"
        self.users = 0
        self.error: OrtetError | None = None
        self._indoors = program.indoors
        self._stream = program.stream
        self._streams = streams
        self._feed = feed
        self._loop = asyncio.get_running_loop()
        self._kept = bytearray()
        self._end = 0
        self._eof = self._begun = False
        self._code: int | None = None
        self._stopped = False
        self._thread = Thread(target=self._follow, name="ortet-tap", daemon=True)
        self._thread.start()

    @contextmanager
    def listen(self) -> Iterator[Bell]:
        with self._feed.listen(self.topic) as bell:
            yield bell

    async def read(self, cursor: int, most: int = PIECE) -> Piece:
        """What came after a position, as far as it is known here; the error that ended it."""
        if self.error is not None:
            raise self.error
        start = self._end - len(self._kept)
        if start <= cursor < self._end:
            data = bytes(self._kept[cursor - start : cursor - start + most])
            at = cursor + len(data)
            last = self._eof and at == self._end
            return Piece(data, at, 0, last, self._code if last else None)
        if cursor < start or not self._begun:
            ask = partial(self.job.read, cursor, stream=self._stream, most=most)
            piece: Piece = await self._streams.in_thread(ask)
            return piece
        return Piece(b"", self._end, 0, self._eof, self._code)

    def stop(self) -> None:
        """The thread ends with the answer that it waits for."""
        self._stopped = True
        self._indoors.close()

    def _follow(self) -> None:
        cursor = 0
        while not self._stopped:
            try:
                piece = self.job.read(cursor, _WAIT, stream=self._stream)
                over = piece.eof or (piece.code is not None and not piece.data)
                code = piece.code
                if over and code is None:
                    code = self.job.wait(_WAIT)
            except OrtetError as error:
                self._tell(partial(self._failed, error))
                return
            if piece.data or piece.missed or over:
                self._tell(partial(self._took, piece, over, code))
            cursor = piece.cursor
            if over:
                return

    def _tell(self, function: partial[None]) -> None:
        if not self._stopped and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function)

    def _took(self, piece: Piece, over: bool, code: int | None) -> None:
        self._begun = True
        if piece.cursor - len(piece.data) != self._end:
            self._kept.clear()  # something is missing, or it went back to an earlier state
        self._kept += piece.data
        self._end = piece.cursor
        del self._kept[: max(0, len(self._kept) - KEEP)]
        if over:
            self._eof, self._code = True, code
        self._feed.ring({self.topic})

    def _failed(self, error: OrtetError) -> None:
        self.error = error
        self._feed.ring({self.topic})


class Taps:
    """All of a server. Used in the event loop."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._open: dict[tuple[str, int, int], Tap] = {}

    async def find(self, rooms: Rooms, row: SessionRow, name: str) -> Program:
        """A program by its name, in the machine of a session that lives here; for `on`."""
        found: Program = await self._streams.in_thread(partial(_find, rooms, row, name))
        return found

    @contextmanager
    def on(self, feed: Feed, session: str, found: Program) -> Iterator[Tap]:
        """Follows it as long as somebody does."""
        key = session, found.indoors.pid, found.job.id
        tap = self._open.get(key)
        if tap is None or tap.error is not None:
            tap = self._open[key] = Tap(self._streams, feed, found)
        else:
            found.indoors.close()
        tap.users += 1
        try:
            yield tap
        finally:
            tap.users -= 1
            if not tap.users:
                tap.stop()
                if self._open.get(key) is tap:
                    del self._open[key]


def _find(rooms: Rooms, row: SessionRow, name: str) -> Program:
    try:
        return _program(rooms, row, name)
    except OrtetError as error:
        if error.kind not in ("machine_gone", "machine_silent"):
            raise
        return _program(rooms, row, name, again=True)  # it was restored: another stands there


def _program(rooms: Rooms, row: SessionRow, name: str, *, again: bool = False) -> Program:
    door = rooms.machine_door(row, again=again)
    indoors = Indoors(door.pid, path=door.path, lock=door.lock)
    try:
        job = indoors.job(name)
        at_terminal = any(one.id == job.id and one.tty is not None for one in indoors.jobs())
    except BaseException:
        indoors.close()
        raise
    return Program(indoors, job, "stdout" if at_terminal else "output")
