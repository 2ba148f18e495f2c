"""This process's ends of a job's pipes or terminal.

Standard library only: pid 1 loads this file as a plain module.
"""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ortet.machines.standalone import event_loop, ring_buffer
else:
    import event_loop
    import ring_buffer

CHUNK_BYTES = 1 << 16
MAX_PENDING_BYTES = 1 << 20
"""Limit in bytes for input that the job has not read yet."""


class JobOutput:
    """Moves the output of a job into rings until all writers have closed it."""

    def __init__(
        self, loop: event_loop.EventLoop, fd: int, rings: list[ring_buffer.RingBuffer]
    ) -> None:
        self.rings = rings
        """Empty once the job is forgotten.

        Later output is read and dropped: a closed pipe would kill a server that is still running.
        """
        self.fd = fd
        self.eof = False
        self._loop = loop
        os.set_blocking(fd, False)
        self.update_watch()

    def update_watch(self) -> None:
        """Read on, or stop reading while a ring is full."""
        if self.eof:
            return
        if any(ring.is_full for ring in self.rings):
            self._loop.unwatch(self.fd)
        else:
            self._loop.watch(self.fd, event_loop.IN, self._on_readable)

    def read_rest(self) -> None:
        """Read what an ended job left in the pipe, at most one pipe buffer.

        A child of the job may keep writing without end.
        """
        left = _pipe_capacity(self.fd) if not self.eof else 0
        while left > 0 and (got := self._read(left)):
            left -= got
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
        try:
            data = os.read(self.fd, max_bytes)
        except BlockingIOError:
            return 0
        except OSError:  # no process has the terminal open
            data = b""
        if not data:
            self.on_hangup()
        for ring in self.rings:
            ring.add(data)
        return len(data)

    def on_hangup(self) -> None:
        """Handle the end of the stream."""
        self.close()


class JobInput:
    """Writes to the input of a job without ever blocking."""

    def __init__(self, loop: event_loop.EventLoop, fd: int) -> None:
        self.fd = fd
        self.accepted_bytes = 0
        """Total number of accepted bytes."""
        self.closed = False
        """True if the job cannot be fed any more: its input was closed on either side."""
        self._loop = loop
        self._is_ending = False
        self._pending = bytearray()
        os.set_blocking(fd, False)

    def feed(self, data: bytes) -> int:
        """Return the number of accepted bytes. Bytes that the job will never read count too."""
        if self.closed:
            self.accepted_bytes += len(data)
            return len(data)
        part = data[: MAX_PENDING_BYTES - len(self._pending)]
        self._pending += part
        self.accepted_bytes += len(part)
        self.flush()
        return len(part)

    def end_input(self) -> None:
        """Close the input after everything that was accepted has been written."""
        self._is_ending = True
        self.flush()

    def flush(self) -> None:
        """Write buffered input as far as possible, and close the input if that was requested."""
        while self._pending and not self.closed:
            try:
                del self._pending[: os.write(self.fd, self._pending[:CHUNK_BYTES])]
            except BlockingIOError:
                break
            except OSError:  # the job closed its input
                self.close()
        if self._is_ending and not self._pending:
            self.close()
        self.watch_writable(wanted=bool(self._pending) and not self.closed)

    def watch_writable(self, *, wanted: bool) -> None:
        if wanted:
            self._loop.watch(self.fd, event_loop.OUT, lambda _: self.flush())
        elif not self.closed:
            self._loop.unwatch(self.fd)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._pending.clear()
            self._loop.unwatch(self.fd)
            os.close(self.fd)


class JobTerminal(JobOutput):
    """The controlling side of a pseudo terminal: input and output of a job."""

    def __init__(
        self, loop: event_loop.EventLoop, fd: int, rings: list[ring_buffer.RingBuffer]
    ) -> None:
        self.input = _TerminalInput(loop, fd, self)
        self.is_job_alive = True
        """While the job runs it may close its terminal and open it again."""
        super().__init__(loop, fd, rings)

    def update_watch(self) -> None:
        if self.eof:
            return
        events = 0 if any(ring.is_full for ring in self.rings) else event_loop.IN
        events |= event_loop.OUT if self.input.wants_writable else 0
        self._loop.watch(self.fd, events, self._on_event)

    def read_rest(self) -> None:
        self.is_job_alive = False
        super().read_rest()

    def on_hangup(self) -> None:
        # closing it would kill a job that only closed its terminal for a while
        if self.is_job_alive:
            self._loop.unwatch(self.fd)
        else:
            self.close()

    def close(self) -> None:
        self.input.closed = True
        super().close()

    def _on_event(self, event: int) -> None:
        if event & event_loop.OUT:
            self.input.flush()
        if event & (event_loop.IN | event_loop.HANGUP):
            quiet = not self._read(CHUNK_BYTES)
            if quiet and event & event_loop.HANGUP:
                return  # wait until it is read again
        self.update_watch()


class _TerminalInput(JobInput):
    def __init__(self, loop: event_loop.EventLoop, fd: int, terminal: JobTerminal) -> None:
        super().__init__(loop, fd)
        self.wants_writable = False
        self._terminal = terminal

    def end_input(self) -> None:
        """Type control-D: a terminal has no end of input."""
        self.feed(b"\x04")

    def watch_writable(self, *, wanted: bool) -> None:
        self.wants_writable = wanted
        self._terminal.update_watch()

    def close(self) -> None:
        self.closed = True
        self._pending.clear()


def _pipe_capacity(fd: int) -> int:
    try:
        return fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)
    except OSError:  # a terminal
        return CHUNK_BYTES
