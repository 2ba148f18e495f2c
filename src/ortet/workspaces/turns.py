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

OPEN = "open"
TURN = "turn"


class Turn:
    """That a machine is open, until `close`; and, in blocks: many may look at its files, one at a
    time moves them. Blocks do not nest.

    Without it a process that opens a workspace would take another's restore, which is still
    running, for one that was killed, and undo it.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._open = _lock_file(home / OPEN)
        fcntl.flock(self._open, fcntl.LOCK_SH)
        if not os.fstat(self._open).st_nlink:  # it was removed while we waited
            os.close(self._open)
            raise NotFound(
                "no_workspace",
                "the workspace was just dropped by another process: `ortet branch` lists the rest",
            )
        self._turn = _lock_file(home / TURN)
        self._pid = os.getpid()

    @contextmanager
    def looking(self) -> Iterator[None]:
        """For the time of a scan."""
        yield from self._hold(fcntl.LOCK_SH)

    @contextmanager
    def moving(self) -> Iterator[None]:
        """For the time of a restore, or of undoing one."""
        yield from self._hold(fcntl.LOCK_EX)

    def let_go(self) -> None:
        """Nothing is being done with the machine: others may remove it meanwhile."""
        fcntl.flock(self._open, fcntl.LOCK_UN)

    def take_again(self) -> bool:
        """After `let_go`; False when it was removed."""
        fcntl.flock(self._open, fcntl.LOCK_SH)
        return bool(os.fstat(self._open).st_nlink)

    def close(self) -> None:
        os.close(self._turn)
        os.close(self._open)

    def _hold(self, how: int) -> Iterator[None]:
        if self._pid != os.getpid():  # the lock is its parent's: a child of fork(2) takes its own
            os.close(self._turn)
            self._turn, self._pid = _lock_file(self._home / TURN), os.getpid()
        fcntl.flock(self._turn, how)
        try:
            yield
        finally:
            fcntl.flock(self._turn, fcntl.LOCK_UN)


@contextmanager
def nobody_in(home: Path, name: str) -> Iterator[None]:
    """For the time of a removal; Conflict("workspace_open") when the machine is open somewhere."""
    try:
        fd = _lock_file(home / OPEN)
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
