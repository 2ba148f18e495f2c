"""Whose turn it is: many processes may look at a workspace's files, one at a time moves them."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FILE = "turn"


class Turn:
    """A lock in a machine's home, given back by the kernel when its holder dies. Not re-entrant.

    Without it a process that opens a workspace would take another's restore, which is still
    running, for one that was killed, and undo it.
    """

    def __init__(self, home: Path) -> None:
        self._fd = os.open(home / _FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    @contextmanager
    def looking(self) -> Iterator[None]:
        """For the time of a scan."""
        fcntl.flock(self._fd, fcntl.LOCK_SH)
        try:
            yield
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    @contextmanager
    def moving(self) -> Iterator[None]:
        """For the time of a restore, or of undoing one."""
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._fd)
