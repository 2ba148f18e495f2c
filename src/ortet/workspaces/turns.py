"""File locks in the home of a machine: one for having it open, one for access to its files.

The locks are flock(2) locks, so the kernel releases them when their holder dies.
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
    """The lock of an open machine, held until `close`.

    Inside it, `shared` and `exclusive` blocks control access to the files. Blocks do not nest.

    The lock tells a running restore from an interrupted one. Without it, a process that opens the
    workspace would undo the running restore of another process.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._open_fd = _lock_file(home / OPEN_LOCK_FILE)
        fcntl.flock(self._open_fd, fcntl.LOCK_SH)
        if not os.fstat(self._open_fd).st_nlink:  # the home was removed while we waited
            os.close(self._open_fd)
            raise NotFound(
                "no_workspace",
                "the workspace was just dropped by another process: `ortet branch` lists the rest",
            )
        self._files_fd = _lock_file(home / FILES_LOCK_FILE)
        self._pid = os.getpid()

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Hold the shared lock, for a scan of the files."""
        yield from self._locked(fcntl.LOCK_SH)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the exclusive lock, for a restore or its recovery."""
        yield from self._locked(fcntl.LOCK_EX)

    def release(self) -> None:
        """Release the open lock: other processes may remove the machine until `reacquire`."""
        fcntl.flock(self._open_fd, fcntl.LOCK_UN)

    def reacquire(self) -> bool:
        """Take the open lock again after `release`. Return False if the machine was removed."""
        fcntl.flock(self._open_fd, fcntl.LOCK_SH)
        return bool(os.fstat(self._open_fd).st_nlink)

    def close(self) -> None:
        os.close(self._files_fd)
        os.close(self._open_fd)

    def _locked(self, how: int) -> Iterator[None]:
        # flock is shared with the parent after fork(2): the child opens its own
        if self._pid != os.getpid():
            os.close(self._files_fd)
            self._files_fd, self._pid = _lock_file(self._home / FILES_LOCK_FILE), os.getpid()
        fcntl.flock(self._files_fd, how)
        try:
            yield
        finally:
            fcntl.flock(self._files_fd, fcntl.LOCK_UN)


@contextmanager
def lock_for_removal(home: Path, name: str) -> Iterator[None]:
    """Lock a machine for its removal.

    Raises:
        Conflict: "workspace_open" if a process has it open.
    """
    try:
        fd = _lock_file(home / OPEN_LOCK_FILE)
    except FileNotFoundError:  # the machine was never opened
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
