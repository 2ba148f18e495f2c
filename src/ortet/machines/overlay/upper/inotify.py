"""inotify watches on upper directories, so that unchanged ones are not scanned.

Changes of names and metadata through an overlay send events in its upper directory. Writes to file
content send events only in the merged view, at the write and at the close. So the merged view is
watched too. Writes through a memory mapping send no event.
"""

from __future__ import annotations

import ctypes
import os
from fcntl import ioctl
from struct import Struct
from termios import FIONREAD
from typing import Protocol

from ortet.machines.overlay.upper.entry import UpperDirectory

_ATTRIB, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x4, 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF, _OVERFLOW, _IGNORED = 0x400, 0x800, 0x4000, 0x8000
_ONLYDIR = 0x1000000
_MOVED = _MOVED_FROM | _MOVED_TO | _MOVE_SELF
_NAME_EVENTS = _ATTRIB | _MOVED | _CREATE | _DELETE | _DELETE_SELF | _ONLYDIR
_MODIFY, _CLOSE_WRITE = 0x2, 0x8
_WRITE_EVENTS = _MODIFY | _CLOSE_WRITE | _ATTRIB | _ONLYDIR
_EVENT = Struct("iIII")
_CHUNK = 1 << 16
_NONE = bytes(4)


class WatchListener(Protocol):
    """The receiver of events."""

    def mark_changed(self, node: UpperDirectory | None) -> None:
        """Handle a change of this directory; None means that any may have changed."""
        ...

    def mark_written(self, node: UpperDirectory, name: str) -> None:
        """Handle a write to this file of the directory."""
        ...


class UpperWatch:
    """One inotify instance for all upper directories of an engine: a user has few instances."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = -1
        self._listeners: dict[int, tuple[WatchListener, UpperDirectory]] = {}

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def add(self, fd: int, listener: WatchListener, node: UpperDirectory) -> None:
        """Watch an open directory.

        Its `wd` is -1 if no watch is left; then every scan checks it.
        """
        node.wd = self._add(b"/proc/self/fd/%d" % fd, _NAME_EVENTS, listener, node)

    def add_view(self, path: bytes, listener: WatchListener, node: UpperDirectory) -> None:
        """Watch writes in the corresponding directory of the merged view."""
        node.view_wd = self._add(path, _WRITE_EVENTS, listener, node)

    def remove(self, node: UpperDirectory) -> None:
        for wd in (node.wd, node.view_wd):
            if wd >= 0 and self._listeners.pop(wd, None) is not None:
                self._libc.inotify_rm_watch(self._fd, wd)
        node.wd = node.view_wd = -1

    def _add(self, place: bytes, mask: int, listener: WatchListener, node: UpperDirectory) -> int:
        if self._fd < 0:
            self._fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        wd: int = self._libc.inotify_add_watch(self._fd, place, mask)
        if wd >= 0:
            if wd in self._listeners:  # the directory was known under another name
                self._listeners[wd][1].clear_watch(wd)
            self._listeners[wd] = listener, node
        return wd

    def drain(self) -> None:
        """Deliver all queued events to their listeners."""
        # The queue is usually empty, and this check is faster than an exception.
        while self._fd >= 0 and ioctl(self._fd, FIONREAD, _NONE) != _NONE:
            self._dispatch(os.read(self._fd, _CHUNK))

    def _dispatch(self, data: bytes) -> None:
        offset = 0
        while offset < len(data):
            wd, mask, _, size = _EVENT.unpack_from(data, offset)
            name = data[offset + _EVENT.size : offset + _EVENT.size + size]
            offset += _EVENT.size + size
            if mask & _OVERFLOW:
                for owner in {id(owner): owner for owner, _ in self._listeners.values()}.values():
                    owner.mark_changed(None)
            elif wd in self._listeners:
                owner, node = self._listeners[wd]
                if mask & _IGNORED:
                    del self._listeners[wd]
                    node.clear_watch(wd)
                if wd == node.view_wd and name:
                    owner.mark_written(node, os.fsdecode(name.rstrip(b"\0")))
                else:
                    owner.mark_changed(node)
