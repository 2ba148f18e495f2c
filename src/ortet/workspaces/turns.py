"""Locks in a machine's home: who has it open, and whose turn it is to move its files.

The kernel gives them back when their holder dies.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ortet.errors import Conflict, NotFound

OPEN_LOCK_FILE = "open"
FILES_LOCK_FILE = "turn"


class MachineLock:
    """That a machine is open, until `close`; and, in blocks: many may look at its files, one at a
    time moves them. Blocks do not nest.

    Without it a process that opens a workspace would take another's restore, which is still
    running, for one that was killed, and undo it.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._open_fd = _lock_file(home / OPEN_LOCK_FILE)
        fcntl.flock(self._open_fd, fcntl.LOCK_SH)
        if not os.fstat(self._open_fd).st_nlink:  # it was removed while we waited
            os.close(self._open_fd)
            raise NotFound(
                "no_workspace",
                "the workspace was just dropped by another process: `ortet branch` lists the rest",
            )
        self._files_fd = _lock_file(home / FILES_LOCK_FILE)
        self._pid = os.getpid()

    @contextmanager
    def shared(self) -> Iterator[None]:
        """For the time of a scan."""
        yield from self._locked(fcntl.LOCK_SH)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """For the time of a restore, or of undoing one."""
        yield from self._locked(fcntl.LOCK_EX)

    def release(self) -> None:
        """Nothing is being done with the machine: others may remove it meanwhile."""
        fcntl.flock(self._open_fd, fcntl.LOCK_UN)

    def reacquire(self) -> bool:
        """After `let_go`; False when it was removed."""
        fcntl.flock(self._open_fd, fcntl.LOCK_SH)
        return bool(os.fstat(self._open_fd).st_nlink)

    def close(self) -> None:
        os.close(self._files_fd)
        os.close(self._open_fd)

    def _locked(self, how: int) -> Iterator[None]:
        if self._pid != os.getpid():  # the lock is its parent's: a child of fork(2) takes its own
            os.close(self._files_fd)
            self._files_fd, self._pid = _lock_file(self._home / FILES_LOCK_FILE), os.getpid()
        fcntl.flock(self._files_fd, how)
        try:
            yield
        finally:
            fcntl.flock(self._files_fd, fcntl.LOCK_UN)


@contextmanager
def lock_for_removal(home: Path, name: str) -> Iterator[None]:
    """For the time of a removal; Conflict("workspace_open") when the machine is open somewhere."""
    try:
        fd = _lock_file(home / OPEN_LOCK_FILE)
    except FileNotFoundError:  # it was never opened
        yield
        return
    try:
        _claim(fd, name)
        yield
    finally:
        os.close(fd)


def _claim(fd: int, name: str) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Conflict(
            "workspace_open", f"workspace {name!r} is open in another process: close it there first"
        ) from None


def _lock_file(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
