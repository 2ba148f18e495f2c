"""This terminal at a shell of a machine: raw, resized with the window, given back at the end."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from ortet.errors import Invalid, OrtetError

if TYPE_CHECKING:
    from ortet.machines.control.jobs import Job

LEAVE = 0x1D  # control-]
_TAIL = 4096  # bytes of what was on the screen before
_WAIT = 20.0
_CHUNK = 1 << 12


def check() -> None:
    """Invalid where there is no terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Invalid(
            "no_terminal", "attach needs a terminal: `ortet run` and `ortet logs` do without one"
        )


def size() -> tuple[int, int]:
    """Rows and columns."""
    found = os.get_terminal_size(0)
    return found.lines or 24, found.columns or 80


def attach(job: Job) -> int | None:
    """Until the shell ends, with its code, or the user leaves it running: None."""
    return _Attached(job).run()


class Escape:
    """Finds out whether what is typed means to leave: control-], or ~. at the begin of a line."""

    def __init__(self) -> None:
        self._fresh = True
        self._held = b""

    def typed(self, data: bytes) -> tuple[bytes, bool]:
        """What goes to the shell, and whether the user leaves after it."""
        out = bytearray()
        for code in data:
            one = bytes((code,))
            if code == LEAVE:
                return bytes(out), True
            if self._held:
                self._held = b""
                if one == b".":
                    return bytes(out), True
                out += b"" if one == b"~" else b"~"  # ~~ is one of them
            elif self._fresh and one == b"~":
                self._held = one
                continue
            out += one
            self._fresh = one in (b"\r", b"\n")
        return bytes(out), False


class _Attached:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._code: int | None = None
        self._error: OrtetError | None = None
        self._wake, self._woken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._left = self._over = False

    def run(self) -> int | None:
        with _raw(), self._resized():
            self._resize()
            cursor = self._show_the_last()
            reader = threading.Thread(target=self._read, args=(cursor,), daemon=True)
            reader.start()
            self._type()
        if self._error is not None:
            raise self._error
        return self._code

    def _show_the_last(self) -> int:
        """What a person would still see; returns where the rest begins."""
        seen, cursor = b"", 0
        while True:
            piece = self._job.read(cursor)
            seen, cursor = (seen + piece.data)[-_TAIL:], piece.cursor
            if not piece.data:
                break
        _put(seen)
        return cursor

    def _read(self, cursor: int) -> None:
        try:
            while not self._left:
                piece = self._job.read(cursor, _WAIT)
                if self._left:
                    return
                _put(piece.data)
                cursor = piece.cursor
                if piece.eof or (piece.code is not None and not piece.data):
                    self._code = piece.code if piece.code is not None else self._job.wait(_WAIT)
                    break
        except OrtetError as error:
            self._error = error
        self._over = True
        with suppress(OSError):
            os.write(self._woken, b"\0")

    def _type(self) -> None:
        escape = Escape()
        poll = select.poll()
        poll.register(0, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if self._wake in ready:
                os.read(self._wake, _CHUNK)
                if self._over:
                    return
                self._resize()
            if 0 in ready:
                data = os.read(0, _CHUNK)
                given, leaves = escape.typed(data)
                with suppress(OrtetError):  # it has just ended: the reader says so
                    self._job.write(given)
                if leaves or not data:
                    self._left = True
                    return

    @contextmanager
    def _resized(self) -> Iterator[None]:
        """The signal may come to any thread: what it writes wakes the one that types."""
        before: Any = signal.signal(signal.SIGWINCH, lambda *_: None)
        told = signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(told)
            signal.signal(signal.SIGWINCH, before)

    def _resize(self) -> None:
        with suppress(OrtetError, OSError):
            self._job.resize(*size())


@contextmanager
def _raw() -> Iterator[None]:
    before = termios.tcgetattr(0)
    try:
        tty.setraw(0)
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
        _put(b"\r\n")


def _put(data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(1, rest) :]
