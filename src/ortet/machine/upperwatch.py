"""Which directories of upper layers were touched: the kernel tells, so calm ones are not asked.

What an overlay does to the names and the metadata in its upper directory goes through the same
functions as any change there, and those notify. Writes into files do not: files are looked at.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from struct import Struct
from typing import Protocol

from ortet.machine.uppernode import Node

_ATTRIB, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x4, 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF, _OVERFLOW, _IGNORED = 0x400, 0x800, 0x4000, 0x8000
_ONLYDIR = 0x1000000
_MASK = _ATTRIB | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF | _ONLYDIR
_EVENT = Struct("iIII")
_CHUNK = 1 << 16


class Owner(Protocol):
    """Who is told."""

    def stir(self, node: Node | None) -> None:
        """This directory was touched; None: any may have been."""
        ...


class UpperWatch:
    """One inotify instance for all upper directories of an engine: a user has few of them."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = -1
        self._owners: dict[int, tuple[Owner, Node]] = {}

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def add(self, fd: int, owner: Owner, node: Node) -> int:
        """Watch an open directory; -1 when the kernel has no watch left: then it must be asked."""
        if self._fd < 0:
            self._fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            if self._fd < 0:
                return -1
        wd: int = self._libc.inotify_add_watch(self._fd, b"/proc/self/fd/%d" % fd, _MASK)
        if wd >= 0:
            if wd in self._owners:  # the directory was known under another name
                self._owners[wd][1].wd = -1
            self._owners[wd] = owner, node
        return wd

    def remove(self, node: Node) -> None:
        if node.wd >= 0 and self._owners.pop(node.wd, None) is not None:
            self._libc.inotify_rm_watch(self._fd, node.wd)
        node.wd = -1

    def drain(self) -> None:
        """Tell the owners what happened until now."""
        if self._fd < 0:
            return
        with suppress(BlockingIOError):
            while data := os.read(self._fd, _CHUNK):
                self._tell(data)

    def _tell(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            wd, mask, _, size = _EVENT.unpack_from(data, at)
            at += _EVENT.size + size
            if mask & _OVERFLOW:
                for owner in {id(owner): owner for owner, _ in self._owners.values()}.values():
                    owner.stir(None)
            elif wd in self._owners:
                owner, node = self._owners[wd]
                owner.stir(node)
                if mask & _IGNORED:
                    del self._owners[wd]
                    node.wd = -1
