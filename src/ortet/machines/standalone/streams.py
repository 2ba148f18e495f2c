"""This process's ends of a job's pipes or terminal.

Standard library only: pid 1 loads this file as a plain module.
"""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from ortet.machines.standalone import event_loop, ring_buffer
else:
    import event_loop
    import ring_buffer

CHUNK_BYTES = 1 << 16
MAX_PENDING_BYTES = 1 << 20
"""Limit in bytes for input that the job has not read yet."""


class JobOutput(Protocol):
    """The reading end of a job's stream: moves output into rings until all writers closed it."""

    rings: list[ring_buffer.RingBuffer]
    """Empty once the job is forgotten.

    Later output is read and dropped: a closed pipe would kill a server that is still running.
    """
    fd: int
    eof: bool

    def update_watch(self) -> None:
        """Read on, or stop reading while a ring is full."""

    def read_rest(self) -> None:
        """Read what an ended job left in the pipe, at most one pipe buffer.

        A child of the job may keep writing without end.
        """

    def close(self) -> None: ...


class JobInput(Protocol):
    """The writing end of a job's input. It never blocks."""

    accepted_bytes: int
    """Total number of accepted bytes."""
    closed: bool
    """True if the job cannot be fed any more: its input was closed on either side."""

    def feed(self, data: bytes) -> int:
        """Return the number of accepted bytes. Bytes that the job will never read count too."""

    def end_input(self) -> None:
        """End the input after everything that was accepted has been written."""

    def close(self) -> None: ...


class PipeOutput:
    """A pipe from a job, as a JobOutput."""

    def __init__(
        self, loop: event_loop.EventLoop, fd: int, rings: list[ring_buffer.RingBuffer]
    ) -> None:
        self.rings = rings
        self.fd = fd
        self.eof = False
        self._loop = loop
        os.set_blocking(fd, False)
        self.update_watch()

    def update_watch(self) -> None:
        if self.eof:
            return
        if any(ring.is_full for ring in self.rings):
            self._loop.unwatch(self.fd)
        else:
            self._loop.watch(self.fd, event_loop.IN, self._on_readable)

    def read_rest(self) -> None:
        if not self.eof:
            _read_capacity(self.fd, self._read)
        self.update_watch()

    def close(self) -> None:
        if not self.eof:
            self.eof = True
            self._loop.unwatch(self.fd)
            os.close(self.fd)

    def _on_readable(self, _: int) -> None:
        self._read(CHUNK_BYTES)
        self.update_watch()

    def _read(self, max_bytes: int) -> int:
        count = _read_into(self.rings, self.fd, max_bytes)
        if count is None:
            self.close()
        return count or 0


class PipeInput:
    """A pipe to a job, as a JobInput."""

    def __init__(self, loop: event_loop.EventLoop, fd: int) -> None:
        self.fd = fd
        self.accepted_bytes = 0
        self.closed = False
        self._loop = loop
        self._is_ending = False
        self._pending = bytearray()
        os.set_blocking(fd, False)

    def feed(self, data: bytes) -> int:
        count = len(data) if self.closed else _accept(self._pending, data)
        self.accepted_bytes += count
        self._flush()
        return count

    def end_input(self) -> None:
        self._is_ending = True
        self._flush()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._pending.clear()
            self._loop.unwatch(self.fd)
            os.close(self.fd)

    def _flush(self) -> None:
        """Write buffered input as far as possible, and close the input if that was requested."""
        if self.closed:
            return
        if not _write_pending(self._pending, self.fd) or (self._is_ending and not self._pending):
            self.close()
        elif self._pending:
            self._loop.watch(self.fd, event_loop.OUT, lambda _: self._flush())
        else:
            self._loop.unwatch(self.fd)


class JobTerminal:
    """The controlling side of a pseudo terminal: input and output of a job."""

    def __init__(
        self, loop: event_loop.EventLoop, fd: int, rings: list[ring_buffer.RingBuffer]
    ) -> None:
        self.rings = rings
        self.fd = fd
        self.eof = False
        self.input = TerminalInput(fd, self.update_watch)
        self.is_job_alive = True
        """While the job runs it may close its terminal and open it again."""
        self._loop = loop
        os.set_blocking(fd, False)
        self.update_watch()

    def update_watch(self) -> None:
        if self.eof:
            return
        events = 0 if any(ring.is_full for ring in self.rings) else event_loop.IN
        events |= event_loop.OUT if self.input.wants_writable else 0
        self._loop.watch(self.fd, events, self._on_event)

    def read_rest(self) -> None:
        self.is_job_alive = False
        if not self.eof:
            _read_capacity(self.fd, self._read)
        self.update_watch()

    def close(self) -> None:
        self.input.closed = True
        if not self.eof:
            self.eof = True
            self._loop.unwatch(self.fd)
            os.close(self.fd)

    def _read(self, max_bytes: int) -> int:
        count = _read_into(self.rings, self.fd, max_bytes)
        if count is None:
            # closing it would kill a job that only closed its terminal for a while
            if self.is_job_alive:
                self._loop.unwatch(self.fd)
            else:
                self.close()
        return count or 0

    def _on_event(self, event: int) -> None:
        if event & event_loop.OUT:
            self.input.flush()
        if event & (event_loop.IN | event_loop.HANGUP):
            quiet = not self._read(CHUNK_BYTES)
            if quiet and event & event_loop.HANGUP:
                return  # wait until it is read again
        self.update_watch()


class TerminalInput:
    """The input side of a JobTerminal, as a JobInput. `update_watch` is that of the terminal."""

    def __init__(self, fd: int, update_watch: Callable[[], None]) -> None:
        self.accepted_bytes = 0
        self.closed = False
        self.wants_writable = False
        self._fd = fd
        self._pending = bytearray()
        self._update_watch = update_watch

    def feed(self, data: bytes) -> int:
        count = len(data) if self.closed else _accept(self._pending, data)
        self.accepted_bytes += count
        self.flush()
        return count

    def end_input(self) -> None:
        """Type control-D: a terminal has no end of input."""
        self.feed(b"\x04")

    def flush(self) -> None:
        """Write buffered input as far as possible."""
        if self.closed:
            return
        if not _write_pending(self._pending, self._fd):
            self.close()
        self.wants_writable = bool(self._pending)
        self._update_watch()

    def close(self) -> None:
        """End the input. The descriptor belongs to the terminal."""
        self.closed = True
        self._pending.clear()


def _accept(pending: bytearray, data: bytes) -> int:
    """Buffer as much input as the limit allows, and return its length."""
    part = data[: MAX_PENDING_BYTES - len(pending)]
    pending += part
    return len(part)


def _write_pending(pending: bytearray, fd: int) -> bool:
    """Write buffered input as far as possible. Return False if the job closed its input."""
    while pending:
        try:
            del pending[: os.write(fd, pending[:CHUNK_BYTES])]
        except BlockingIOError:
            break
        except OSError:
            return False
    return True


def _read_into(rings: list[ring_buffer.RingBuffer], fd: int, max_bytes: int) -> int | None:
    """Read into all rings. Return the number of bytes, or None at the end of the stream."""
    try:
        data = os.read(fd, max_bytes)
    except BlockingIOError:
        return 0
    except OSError:  # no process has the terminal open
        return None
    for ring in rings:
        ring.add(data)
    return len(data) if data else None


def _read_capacity(fd: int, read: Callable[[int], int]) -> None:
    """Call `read` until it has read one pipe buffer, or nothing more."""
    left = _pipe_capacity(fd)
    while left > 0 and (count := read(left)):
        left -= count


def _pipe_capacity(fd: int) -> int:
    try:
        return fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)
    except OSError:  # a terminal
        return CHUNK_BYTES
