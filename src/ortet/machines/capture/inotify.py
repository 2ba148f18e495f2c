"""inotify watches: which names changed since the last scan.

inotify only makes scans faster; the stat index is the truth. There is no thread: the kernel queues
events, and a scan drains them. A scan adds a directory before it lists it. A name created before
the watch is found by the listing, a later one by an event.

Two kinds of writes are found only by the next full scan. The first are writes through a memory
mapping before any other event (see `mmap_writers.py`). The second are writes by a hardlink that was
created and removed between two scans, or that is ignored or outside of the workspace.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import sys
from collections.abc import Callable
from pathlib import Path
from struct import Struct

from ortet.machines.base import ChangeNotice
from ortet.machines.capture.frames import DirtyPaths
from ortet.machines.dirfd import join_path

_MODIFY, _ATTRIB, _CLOSE_WRITE = 0x2, 0x4, 0x8
_MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x40, 0x80, 0x100, 0x200
_MOVE_SELF = 0x800
_UNMOUNT, _OVERFLOW, _IGNORED, _ISDIR = 0x2000, 0x4000, 0x8000, 0x4000_0000
_ONLYDIR, _DONT_FOLLOW, _EXCL_UNLINK = 0x0100_0000, 0x0200_0000, 0x0400_0000

_CHILD_EVENTS = _MODIFY | _ATTRIB | _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE
_DIRECTORY = _CHILD_EVENTS | _MOVE_SELF | _ONLYDIR | _EXCL_UNLINK
_FILE = _MODIFY | _ATTRIB | _CLOSE_WRITE | _DONT_FOLLOW
_WRITE_ENDED_EVENTS = _CLOSE_WRITE | _MOVED_FROM | _DELETE

_EVENT = Struct("iIII")
_READ = 1 << 16

_LOCAL_FILESYSTEMS = frozenset(
    b"bcachefs btrfs exfat ext2 ext3 ext4 f2fs jfs nilfs2 ntfs3 overlay tmpfs vfat xfs zfs".split()
)
"""File systems on which this kernel sees every change."""


class InotifyWatch:
    """The watches of one workspace.

    `broken_reason` says why the watches do not cover everything; it is empty if they do.
    """

    def __init__(self, fd: int, libc: ctypes.CDLL) -> None:
        self._fd = fd
        self._libc = libc
        self._paths: dict[int, bytes] = {}
        self._dirs: dict[bytes, int] = {}
        self._files: dict[bytes, int] = {}
        self._open_for_write: set[bytes] = set()
        self._undrained: DirtyPaths | None = DirtyPaths({})  # None: anything may have changed
        self.broken_reason = ""
        self._pid = os.getpid()

    @classmethod
    def open(cls, root: Path) -> InotifyWatch | None:
        """Return a watch, or None without inotify or on a file system that is not local."""
        if not sys.platform.startswith("linux") or not is_local_filesystem(root):
            return None
        libc = ctypes.CDLL(None, use_errno=True)
        fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        return cls(fd, libc) if fd >= 0 else None

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def add(self, fd: int, path: bytes) -> None:
        """Watch an open directory under this path."""
        if path not in self._dirs:
            self._add(b"/proc/self/fd/%d" % fd, _DIRECTORY, path, self._dirs)

    def add_file(self, fd: int, path: bytes) -> None:
        """Watch one file in an open directory, so that a write by any of its names is seen."""
        name = path.rpartition(b"/")[2]
        self._add(b"/proc/self/fd/%d/%s" % (fd, name), _FILE, path, self._files)

    def remove(self, path: bytes) -> None:
        """Remove the watches of a deleted directory and of everything below it."""
        below = path + b"/"
        for known in (self._dirs, self._files):
            for at in [at for at in known if at == path or at.startswith(below)]:
                wd = known.pop(at)
                if self._paths.get(wd) == at:
                    self._libc.inotify_rm_watch(self._fd, wd)
                    del self._paths[wd]
        self._open_for_write = {at for at in self._open_for_write if not at.startswith(below)}

    def drain(self) -> DirtyPaths | None:
        """Return the changes since the last call, or None if anything may have changed."""
        heard, self._undrained = self._undrained, DirtyPaths({})
        return _merge_dirty(heard, self._drain())

    def wait_for_changes(
        self, timeout: float, wake_fd: int, is_ignored: Callable[[bytes, bool], bool]
    ) -> ChangeNotice:
        """Wait for changes, as `Machine.wait_for_changes` does.

        Events read here are not lost: the next `drain` returns them.
        """
        poll = select.poll()
        for fd in (self._fd, wake_fd):
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(None if timeout < 0 else timeout * 1000)}
        if self._fd not in ready:
            return ChangeNotice()
        dirty = self._drain()
        self._undrained = _merge_dirty(self._undrained, dirty)
        if dirty is None:
            return ChangeNotice(changed=True, fresh=True)
        fresh = any(not is_ignored(path, True) for path in dirty.whole)
        return ChangeNotice(changed=fresh or _has_state_changes(dirty, is_ignored), fresh=fresh)

    def _drain(self) -> DirtyPaths | None:
        if os.getpid() != self._pid:
            return None  # after fork(2) the queue belongs to the parent process
        dirty = DirtyPaths({}, set(), self._open_for_write)
        everything = bool(self.broken_reason)
        while data := self._read():
            at = 0
            while at < len(data):
                wd, mask, _, length = _EVENT.unpack_from(data, at)
                name = data[at + 16 : at + 16 + length].rstrip(b"\0")
                at += 16 + length
                everything |= self._event(wd, mask, name, dirty)
        return None if everything else dirty

    def _read(self) -> bytes:
        try:
            return os.read(self._fd, _READ)
        except BlockingIOError:
            return b""

    def _event(self, wd: int, mask: int, name: bytes, dirty: DirtyPaths) -> bool:
        """Add an event to `dirty`. Return True if it means that anything may have changed."""
        if mask & (_OVERFLOW | _UNMOUNT):
            return True
        if mask & _IGNORED:
            gone = self._paths.get(wd) == b""  # the root directory
            self._forget(wd)
            return gone
        path = self._paths.get(wd)
        if path is None:
            return False
        if not name:  # the event is about the watched file or directory itself
            if not path:
                dirty.names.setdefault(b"", set())
                return bool(mask & _MOVE_SELF)
            path, _, name = path.rpartition(b"/")
        some = dirty.names.setdefault(path, set())
        if some is not None:
            some.add(name)
        if mask & _ISDIR and mask & (_CREATE | _MOVED_TO):
            # A new directory may reuse the inode number of a removed one, so its inode proves
            # nothing.
            dirty.whole.add(join_path(path, name))
        elif mask & _MODIFY:
            self._open_for_write.add(join_path(path, name))
        elif mask & _WRITE_ENDED_EVENTS:
            self._open_for_write.discard(join_path(path, name))
        return False

    def _add(self, place: bytes, mask: int, path: bytes, watches: dict[bytes, int]) -> None:
        wd: int = self._libc.inotify_add_watch(self._fd, place, mask)
        if wd < 0:
            code = ctypes.get_errno()
            if code != errno.ENOENT or watches is self._dirs:  # a missing file already had an event
                self.broken_reason = os.strerror(code)
            return
        self._paths[wd] = path
        watches[path] = wd

    def _forget(self, wd: int) -> None:
        path = self._paths.pop(wd, None)
        for known in (self._dirs, self._files):
            if path is not None and known.get(path) == wd:
                del known[path]


def _merge_dirty(before: DirtyPaths | None, after: DirtyPaths | None) -> DirtyPaths | None:
    if before is None or after is None or not before.names:
        return after if before is not None else None
    names = dict(before.names)
    for path, some in after.names.items():
        known = names.get(path, some)
        names[path] = None if known is None or some is None else known | some
    return DirtyPaths(names, before.whole | after.whole, after.held)


def _has_state_changes(dirty: DirtyPaths, is_ignored: Callable[[bytes, bool], bool]) -> bool:
    """Return True if a path changed that is state.

    Every name is checked as a file. A change inside a directory is also reported for its names.
    """
    for path, some in dirty.names.items():
        if not some or not all(is_ignored(join_path(path, name), False) for name in some):
            return True
    return False


def is_local_filesystem(root: Path) -> bool:
    """Return True if this kernel sees every change below `root`, on all mounts there."""
    top = os.path.realpath(os.fsencode(root))
    inside = top.rstrip(b"/") + b"/"
    nearest, types = b"", [b""]
    try:
        lines = Path("/proc/self/mountinfo").read_bytes().splitlines()
    except OSError:
        return False
    for line in lines:
        fields = line.split()
        point = fields[4].decode("unicode_escape").encode("latin-1")
        kind = fields[fields.index(b"-") + 1]
        if point.startswith(inside):
            types.append(kind)
        elif inside.startswith(point.rstrip(b"/") + b"/") and len(point) >= len(nearest):
            nearest, types[0] = point, kind
    return _LOCAL_FILESYSTEMS.issuperset(types)
