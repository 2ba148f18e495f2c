"""Files kept open from scan to scan: a stat by descriptor takes a third of one by name."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ortet.machines.dirfd import OPEN_DIR_FLAGS, DirFdCache
from ortet.machines.overlay.upper.uppernode import Stamp, UpperDirectory

_MAX_OPEN_DIRS = 128  # directories kept open
_PATH = getattr(os, "O_PATH", 0) | os.O_NOFOLLOW | os.O_CLOEXEC


class FdBudget:
    """How many more descriptors may be kept; shared by all that keep some."""

    def __init__(self, limit: int = 256) -> None:
        self._available = limit

    def acquire(self) -> bool:
        if self._available <= 0:
            return False
        self._available -= 1
        return True

    def release(self) -> None:
        self._available += 1


class FdCache:
    """Opens the directories of one upper directory, and keeps the files there is room for.

    `held` is every kept descriptor with the ctime its file had, its directory and its name there.
    """

    def __init__(self, directory: Path, budget: FdBudget) -> None:
        self.open_files: dict[int, tuple[int, UpperDirectory, str]] = {}
        self._budget = budget
        self._top = os.open(directory, OPEN_DIR_FLAGS)
        self._dirs = DirFdCache(self._top, max_open=_MAX_OPEN_DIRS)

    def close(self) -> None:
        self._dirs.close()
        os.close(self._top)

    def open(self, node: UpperDirectory) -> int:
        """A directory's descriptor, good until others are opened."""
        return self._dirs.fd(node.path)

    def changed_files(
        self, fds: Iterable[int] | None = None
    ) -> list[tuple[UpperDirectory, str, os.stat_result]]:
        """Kept files that are not as they were, of all or of some. Keep it short."""
        held, fstat, found = self.open_files, os.fstat, []
        for fd in held if fds is None else fds:
            if fd in held:
                ctime, node, name = held[fd]
                st = fstat(fd)
                if st.st_ctime_ns != ctime:  # which every change moves
                    found.append((node, name, st))
        return found

    def add(self, node: UpperDirectory, name: str, fd: int, stamp: Stamp) -> None:
        """Keep a file, so that the next look need not find it by name."""
        own = node.open_fds.get(name)
        if own is None and self._budget.acquire():
            with suppress(OSError):
                own = node.open_fds[name] = os.open(name, _PATH, dir_fd=fd)
            if own is None:
                self._budget.release()
        if own is not None:
            self.open_files[own] = stamp[0], node, name

    def release(self, node: UpperDirectory, name: str) -> None:
        fd = node.open_fds.pop(name, -1)
        if fd >= 0:
            del self.open_files[fd]
            os.close(fd)
            self._budget.release()

    def release_all(self, node: UpperDirectory) -> None:
        for name in list(node.open_fds):
            self.release(node, name)

    def forget_directory(self, path: bytes) -> None:
        """Another directory may be found at this path from now on."""
        self._dirs.close_tree(path)
