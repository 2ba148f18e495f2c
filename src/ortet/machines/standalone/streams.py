"""The ends of a job's pipes, or of its terminal, that the pid 1 of a machine holds.

Standard library only: the pid 1 of a machine loads this file by itself.
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

CHUNK = 1 << 16
PENDING = 1 << 20
"""Bytes of input that are kept for a job that does not read them yet."""


class Output:
    """Moves what a job writes into rings, until nobody is left who could write."""

    def __init__(self, loop: event_loop.Loop, fd: int, rings: list[ring_buffer.Ring]) -> None:
        self.rings = rings
        """Empty once the job is forgotten: what still comes is read and dropped, for a closed
        pipe would kill a server that was left behind."""
        self.fd = fd
        self.eof = False
        self._loop = loop
        os.set_blocking(fd, False)
        self.regulate()

    def regulate(self) -> None:
        """Read on, or leave the bytes where they are until a reader made room."""
        if self.eof:
            return
        if any(ring.full for ring in self.rings):
            self._loop.drop(self.fd)
        else:
            self._loop.watch(self.fd, event_loop.IN, self._ready)

    def rest(self) -> None:
        """Take what an ended job can have left here; a child of it may go on writing for ever."""
        left = _capacity(self.fd) if not self.eof else 0
        while left > 0 and (got := self._take(left)):
            left -= got
        self.regulate()

    def close(self) -> None:
        if not self.eof:
            self.eof = True
            self._loop.drop(self.fd)
            os.close(self.fd)

    def _ready(self, _: int) -> None:
        self._take(CHUNK)
        self.regulate()

    def _take(self, most: int) -> int:
        try:
            data = os.read(self.fd, most)
        except BlockingIOError:
            return 0
        except OSError:  # nobody has the terminal open
            data = b""
        if not data:
            self.hung_up()
        for ring in self.rings:
            ring.add(data)
        return len(data)

    def hung_up(self) -> None:
        self.close()


class Input:
    """Feeds a job, never waiting for it."""

    def __init__(self, loop: event_loop.Loop, fd: int) -> None:
        self.fd = fd
        self.fed = 0
        """Bytes ever accepted."""
        self.closed = False
        """The job cannot be fed any more: it was told of the end, or wants no more."""
        self._loop = loop
        self._ending = False
        self._pending = bytearray()
        os.set_blocking(fd, False)

    def feed(self, data: bytes) -> int:
        """Bytes accepted; what a job will never read counts as such."""
        if self.closed:
            self.fed += len(data)
            return len(data)
        part = data[: PENDING - len(self._pending)]
        self._pending += part
        self.fed += len(part)
        self.push()
        return len(part)

    def end(self) -> None:
        """After what was accepted."""
        self._ending = True
        self.push()

    def push(self) -> None:
        while self._pending and not self.closed:
            try:
                del self._pending[: os.write(self.fd, self._pending[:CHUNK])]
            except BlockingIOError:
                break
            except OSError:  # the job does not want to read the rest
                self.close()
        if self._ending and not self._pending:
            self.close()
        self.await_room(wanted=bool(self._pending) and not self.closed)

    def await_room(self, *, wanted: bool) -> None:
        if wanted:
            self._loop.watch(self.fd, event_loop.OUT, lambda _: self.push())
        elif not self.closed:
            self._loop.drop(self.fd)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._pending.clear()
            self._loop.drop(self.fd)
            os.close(self.fd)


class Terminal(Output):
    """The inner end of a pseudo terminal: what is typed and what is shown."""

    def __init__(self, loop: event_loop.Loop, fd: int, rings: list[ring_buffer.Ring]) -> None:
        self.input = _Typed(loop, fd, self)
        self.alive = True
        """The job runs: it may have closed its terminal and open it again."""
        super().__init__(loop, fd, rings)

    def regulate(self) -> None:
        if self.eof:
            return
        events = 0 if any(ring.full for ring in self.rings) else event_loop.IN
        events |= event_loop.OUT if self.input.wanted else 0
        self._loop.watch(self.fd, events, self._event)

    def rest(self) -> None:
        self.alive = False
        super().rest()

    def hung_up(self) -> None:
        # closing our end would kill a job that only let go of its terminal for a while
        if self.alive:
            self._loop.drop(self.fd)
        else:
            self.close()

    def close(self) -> None:
        self.input.closed = True
        super().close()

    def _event(self, event: int) -> None:
        if event & event_loop.OUT:
            self.input.push()
        if event & (event_loop.IN | event_loop.HANGUP):
            quiet = not self._take(CHUNK)
            if quiet and event & event_loop.HANGUP:
                return  # until it is looked at again
        self.regulate()


class _Typed(Input):
    def __init__(self, loop: event_loop.Loop, fd: int, terminal: Terminal) -> None:
        super().__init__(loop, fd)
        self.wanted = False
        self._terminal = terminal

    def end(self) -> None:
        """A terminal has no end: one types control-D."""
        self.feed(b"\x04")

    def await_room(self, *, wanted: bool) -> None:
        self.wanted = wanted
        self._terminal.regulate()

    def close(self) -> None:
        self.closed = True
        self._pending.clear()


def _capacity(fd: int) -> int:
    try:
        return fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)
    except OSError:  # a terminal
        return CHUNK
