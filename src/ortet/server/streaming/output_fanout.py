"""Output of running programs for any number of readers, with one thread per followed program.

A reader that falls behind reads from the machine's own buffer and is told how many bytes are lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Thread
from typing import Any, NamedTuple, Protocol

from ortet.errors import OrtetError
from ortet.machines.control.client import InitClient
from ortet.machines.jobs import Job, Stream, StreamChunk
from ortet.server.session_pool.pool import SessionPool
from ortet.server.streaming.wakeups import StoreWakeups, WakeupListener
from ortet.sessions.table import SessionRow

BUFFER_BYTES = 256 << 10
"""Size of the buffer of each program."""
READ_BYTES = 64 << 10
_READ_WAIT_SECONDS = 2.0
"""Timeout of one read. A thread that is no longer needed ends after it."""


class ReaderThreads(Protocol):
    """Runs blocking reads for streams."""

    async def in_thread(self, function: Callable[[], Any]) -> Any:
        """Run `function` in a thread and return its result."""


class FollowedProgram(NamedTuple):
    """A program to follow and its connection.

    `stream` is "stdout" for a terminal, else "output".
    """

    client: InitClient
    job: Job
    stream: Stream


class OutputFanout:
    """Reads the output of one program for all its readers."""

    def __init__(
        self, threads: ReaderThreads, wakeups: StoreWakeups, program: FollowedProgram
    ) -> None:
        self.job = program.job
        self.topic = f"output:{self.job.pid}:{self.job.id}:{id(self)}"
        self.users = 0
        self.error: OrtetError | None = None
        self._client = program.client
        self._stream = program.stream
        self._threads = threads
        self._wakeups = wakeups
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._buffer_end = 0
        self._eof = self._has_read = False
        self._code: int | None = None
        self._stopped = False
        self._thread = Thread(target=self._follow, name="ortet-tap", daemon=True)
        self._thread.start()

    @contextmanager
    def listen(self) -> Iterator[WakeupListener]:
        """Yield a listener that is woken by new output."""
        with self._wakeups.listen(self.topic) as listener:
            yield listener

    async def read(self, cursor: int, max_bytes: int = READ_BYTES) -> StreamChunk:
        """Return the output after a position, as far as it was read.

        Raises:
            OrtetError: The error that ended the reading thread.
        """
        if self.error is not None:
            raise self.error
        start = self._buffer_end - len(self._buffer)
        if start <= cursor < self._buffer_end:
            data = bytes(self._buffer[cursor - start : cursor - start + max_bytes])
            end = cursor + len(data)
            last = self._eof and end == self._buffer_end
            return StreamChunk(data, end, 0, last, self._code if last else None)
        if cursor < start or not self._has_read:
            read = partial(self.job.read, cursor, stream=self._stream, most=max_bytes)
            piece: StreamChunk = await self._threads.in_thread(read)
            return piece
        return StreamChunk(b"", self._buffer_end, 0, self._eof, self._code)

    def stop(self) -> None:
        """Stop the thread. It ends when its current read returns."""
        self._stopped = True
        self._client.close()

    def _follow(self) -> None:
        cursor = 0
        while not self._stopped:
            try:
                piece = self.job.read(cursor, _READ_WAIT_SECONDS, stream=self._stream)
                over = piece.eof or (piece.code is not None and not piece.data)
                code = piece.code
                if over and code is None:
                    code = self.job.wait(_READ_WAIT_SECONDS)
            except OrtetError as error:
                self._call_in_loop(partial(self._on_error, error))
                return
            if piece.data or piece.missed or over:
                self._call_in_loop(partial(self._on_output, piece, over, code))
            cursor = piece.cursor
            if over:
                return

    def _call_in_loop(self, function: partial[None]) -> None:
        if not self._stopped and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function)

    def _on_output(self, piece: StreamChunk, is_ended: bool, code: int | None) -> None:
        self._has_read = True
        if piece.cursor - len(piece.data) != self._buffer_end:
            self._buffer.clear()  # bytes are missing, or the machine was restored
        self._buffer += piece.data
        self._buffer_end = piece.cursor
        del self._buffer[: max(0, len(self._buffer) - BUFFER_BYTES)]
        if is_ended:
            self._eof, self._code = True, code
        self._wakeups.wake({self.topic})

    def _on_error(self, error: OrtetError) -> None:
        self.error = error
        self._wakeups.wake({self.topic})


class OutputFanouts:
    """The followed programs of a server. Used in the event loop."""

    def __init__(self, threads: ReaderThreads) -> None:
        self._threads = threads
        self._fanouts: dict[tuple[str, int, int], OutputFanout] = {}

    async def find(self, pool: SessionPool, row: SessionRow, name: str) -> FollowedProgram:
        """Find a program by name in the running machine of a session, for `follow`."""
        program: FollowedProgram = await self._threads.in_thread(partial(_find, pool, row, name))
        return program

    @contextmanager
    def follow(
        self, wakeups: StoreWakeups, session: str, program: FollowedProgram
    ) -> Iterator[OutputFanout]:
        """Follow a program while at least one reader does."""
        key = session, program.client.pid, program.job.id
        fanout = self._fanouts.get(key)
        if fanout is None or fanout.error is not None:
            fanout = self._fanouts[key] = OutputFanout(self._threads, wakeups, program)
        else:
            program.client.close()
        fanout.users += 1
        try:
            yield fanout
        finally:
            fanout.users -= 1
            if not fanout.users:
                fanout.stop()
                if self._fanouts.get(key) is fanout:
                    del self._fanouts[key]


def _find(pool: SessionPool, row: SessionRow, name: str) -> FollowedProgram:
    try:
        return _open_program(pool, row, name)
    except OrtetError as error:
        if error.kind not in ("machine_gone", "machine_silent"):
            raise
        return _open_program(pool, row, name, refresh=True)  # the machine was restored: reconnect


def _open_program(
    pool: SessionPool, row: SessionRow, name: str, *, refresh: bool = False
) -> FollowedProgram:
    control = pool.control_socket(row, refresh=refresh)
    client = InitClient(control.pid, path=control.path, lock_path=control.lock)
    try:
        job = client.job(name)
        at_terminal = any(one.id == job.id and one.tty is not None for one in client.jobs())
    except BaseException:
        client.close()
        raise
    return FollowedProgram(client, job, "stdout" if at_terminal else "output")
