"""A command at a real terminal: its screen, typed input, and its exit code."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.fixtures.waiting import WAIT


class Terminal:
    """Leaving the block ends whatever still runs there."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        size: tuple[int, int] = (10, 100),
        **redirected: Any,
    ) -> None:
        self.seen = b""
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", *size, 0, 0))
        streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs} | redirected
        alone = ["setsid", "--ctty", *argv]  # whose terminal it is: Ctrl-C reaches it
        self.process = subprocess.Popen(alone, cwd=cwd, env={**env}, **streams)
        os.close(theirs)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self._ours)

    def until(self, text: str, typing: str = "") -> str:
        """Read until this is on the screen; returns all of it. `typing`: each time it is quiet."""
        quiet, deadline = select.poll(), time.monotonic() + WAIT
        quiet.register(self._ours, select.POLLIN)
        while text.encode() not in self.seen:
            if typing and time.monotonic() < deadline and not quiet.poll(200):
                self.type(typing)
                continue
            assert self._read(), f"{text!r} never came: {self.seen!r}"
        return self.text

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def end(self) -> int:
        """Read to the end; the exit code."""
        while self._read():
            pass
        return self.process.wait(WAIT)

    @property
    def text(self) -> str:
        return self.seen.decode("utf-8", "replace").replace("\r\n", "\n")

    def _read(self) -> bool:
        ready, _, _ = select.select([self._ours], [], [], WAIT)
        assert ready, f"nothing more comes: {self.seen!r}"
        try:
            data = os.read(self._ours, 1 << 16)
        except OSError:  # nobody has the other end
            data = b""
        self.seen += data
        return bool(data)
