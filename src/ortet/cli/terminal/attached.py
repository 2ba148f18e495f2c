"""Connects this terminal to a shell in a machine: raw mode, window size, and cleanup at the end."""

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
    from ortet.machines.jobs import Job

DETACH_BYTE = 0x1D  # control-]
_RECENT_OUTPUT_BYTES = 4096  # bytes of earlier output to show
_READ_WAIT_SECONDS = 20.0
_CHUNK = 1 << 12


def check_terminal() -> None:
    """Raise Invalid("no_terminal") if standard input or output is not a terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Invalid(
            "no_terminal", "attach needs a terminal: `ortet run` and `ortet logs` do without one"
        )


def terminal_size() -> tuple[int, int]:
    """Return the rows and columns of the terminal."""
    size = os.get_terminal_size(0)
    return size.lines or 24, size.columns or 80


def attach(job: Job) -> int | None:
    """Connect to a shell until it ends, and return its exit code. None if the user detached."""
    return _AttachedTerminal(job).run()


class DetachDetector:
    """Detects the keys that detach: control-], or ~. at the beginning of a line."""

    def __init__(self) -> None:
        self._at_line_start = True
        self._pending_tilde = b""

    def feed(self, data: bytes) -> tuple[bytes, bool]:
        """Return the bytes for the shell, and True if the user detaches after them."""
        out = bytearray()
        for code in data:
            byte = bytes((code,))
            if code == DETACH_BYTE:
                return bytes(out), True
            if self._pending_tilde:
                self._pending_tilde = b""
                if byte == b".":
                    return bytes(out), True
                out += b"" if byte == b"~" else b"~"  # ~~ sends one ~
            elif self._at_line_start and byte == b"~":
                self._pending_tilde = byte
                continue
            out += byte
            self._at_line_start = byte in (b"\r", b"\n")
        return bytes(out), False


class _AttachedTerminal:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._code: int | None = None
        self._error: OrtetError | None = None
        self._wake_reader, self._wake_writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._is_detached = self._is_ended = False

    def run(self) -> int | None:
        with _raw(), self._watch_resize():
            self._resize()
            cursor = self._show_recent_output()
            reader = threading.Thread(target=self._forward_output, args=(cursor,), daemon=True)
            reader.start()
            self._forward_input()
        if self._error is not None:
            raise self._error
        return self._code

    def _show_recent_output(self) -> int:
        """Print the latest output, and return the cursor where new output begins."""
        seen, cursor = b"", 0
        while True:
            piece = self._job.read(cursor)
            seen, cursor = (seen + piece.data)[-_RECENT_OUTPUT_BYTES:], piece.cursor
            if not piece.data:
                break
        _put(seen)
        return cursor

    def _forward_output(self, cursor: int) -> None:
        try:
            while not self._is_detached:
                piece = self._job.read(cursor, _READ_WAIT_SECONDS)
                if self._is_detached:
                    return
                _put(piece.data)
                cursor = piece.cursor
                if piece.eof or (piece.code is not None and not piece.data):
                    self._code = (
                        piece.code if piece.code is not None else self._job.wait(_READ_WAIT_SECONDS)
                    )
                    break
        except OrtetError as error:
            self._error = error
        self._is_ended = True
        with suppress(OSError):
            os.write(self._wake_writer, b"\0")

    def _forward_input(self) -> None:
        escape = DetachDetector()
        poll = select.poll()
        poll.register(0, select.POLLIN)
        poll.register(self._wake_reader, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if self._wake_reader in ready:
                os.read(self._wake_reader, _CHUNK)
                if self._is_ended:
                    return
                self._resize()
            if 0 in ready:
                data = os.read(0, _CHUNK)
                typed, leaves = escape.feed(data)
                with suppress(OrtetError):  # the shell has just ended: the reader thread reports it
                    self._job.write(typed)
                if leaves or not data:
                    self._is_detached = True
                    return

    @contextmanager
    def _watch_resize(self) -> Iterator[None]:
        """Wake the input loop at SIGWINCH.

        The wakeup fd is used because any thread may get the signal.
        """
        before: Any = signal.signal(signal.SIGWINCH, lambda *_: None)
        previous_fd = signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(previous_fd)
            signal.signal(signal.SIGWINCH, before)

    def _resize(self) -> None:
        with suppress(OrtetError, OSError):
            self._job.resize(*terminal_size())


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
