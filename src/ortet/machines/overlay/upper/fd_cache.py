"""Files kept open from scan to scan: a stat by descriptor takes a third of one by name."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ortet.machines.dirfd import OPEN_DIR, Dirs
from ortet.machines.overlay.upper.uppernode import Node, Stamp

_DIRS = 128  # directories kept open
_PATH = getattr(os, "O_PATH", 0) | os.O_NOFOLLOW | os.O_CLOEXEC


class Spare:
    """How many more descriptors may be kept; shared by all that keep some."""

    def __init__(self, left: int = 256) -> None:
        self._left = left

    def take(self) -> bool:
        if self._left <= 0:
            return False
        self._left -= 1
        return True

    def give(self) -> None:
        self._left += 1


class Holder:
    """Opens the directories of one upper directory, and keeps the files there is room for.

    `held` is every kept descriptor with the ctime its file had, its directory and its name there.
    """

    def __init__(self, directory: Path, spare: Spare) -> None:
        self.held: dict[int, tuple[int, Node, str]] = {}
        self._spare = spare
        self._top = os.open(directory, OPEN_DIR)
        self._dirs = Dirs(self._top, keep=_DIRS)

    def close(self) -> None:
        self._dirs.close()
        os.close(self._top)

    def open(self, node: Node) -> int:
        """A directory's descriptor, good until others are opened."""
        return self._dirs.fd(node.path)

    def changed(self, some: Iterable[int] | None = None) -> list[tuple[Node, str, os.stat_result]]:
        """Kept files that are not as they were, of all or of some. Keep it short."""
        held, fstat, found = self.held, os.fstat, []
        for fd in held if some is None else some:
            if fd in held:
                ctime, node, name = held[fd]
                st = fstat(fd)
                if st.st_ctime_ns != ctime:  # which every change moves
                    found.append((node, name, st))
        return found

    def hold(self, node: Node, name: str, fd: int, stamp: Stamp) -> None:
        """Keep a file, so that the next look need not find it by name."""
        own = node.held.get(name)
        if own is None and self._spare.take():
            with suppress(OSError):
                own = node.held[name] = os.open(name, _PATH, dir_fd=fd)
            if own is None:
                self._spare.give()
        if own is not None:
            self.held[own] = stamp[0], node, name

    def let_go(self, node: Node, name: str) -> None:
        fd = node.held.pop(name, -1)
        if fd >= 0:
            del self.held[fd]
            os.close(fd)
            self._spare.give()

    def let_all_go(self, node: Node) -> None:
        for name in list(node.held):
            self.let_go(node, name)

    def forget(self, path: bytes) -> None:
        """Another directory may be found at this path from now on."""
        self._dirs.forget(path)
