"""Descriptors kept open from scan to scan: a stat by descriptor takes a third of one by name."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from ortet.machine.dirs import OPEN_DIR, Dirs
from ortet.machine.uppernode import Node

_PATH = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


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
    """Opens the directories of one upper directory, and keeps what there is room for."""

    def __init__(self, directory: Path, spare: Spare) -> None:
        self._spare = spare
        self._top = os.open(directory, OPEN_DIR)
        self._dirs = Dirs(self._top)

    def close(self) -> None:
        self._dirs.close()
        os.close(self._top)

    def open(self, node: Node) -> int:
        """A directory's descriptor, good until the next is opened."""
        above = node.parent
        if above is None:
            return self._top
        if not self._spare.take():
            return self._dirs.fd(node.path)
        try:
            at = above.fd if above.fd >= 0 else self._dirs.fd(above.path)
            node.fd = os.open(node.name, OPEN_DIR, dir_fd=at)
        except OSError:
            self._spare.give()
            raise
        return node.fd

    def hold(self, node: Node, name: str, fd: int) -> None:
        """Keep a file, so that the next look need not find it by name."""
        if name not in node.held and self._spare.take():
            with suppress(OSError):
                node.held[name] = os.open(name, _PATH, dir_fd=fd)
                return
            self._spare.give()

    def let_go(self, node: Node, name: str) -> None:
        fd = node.held.pop(name, -1)
        if fd >= 0:
            os.close(fd)
            self._spare.give()

    def release(self, top: Node) -> None:
        """Let go of a directory and of all below it."""
        for node in top.walk():
            for name in list(node.held):
                self.let_go(node, name)
            if node.fd >= 0:
                os.close(node.fd)
                self._spare.give()
                node.fd = -1

    def forget(self, path: bytes) -> None:
        """Another directory may be found at this path from now on."""
        self._dirs.forget(path)
