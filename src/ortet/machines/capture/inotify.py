"""inotify watches: which names changed since the last scan.

inotify only makes scans faster; the stat index is the truth. There is no thread: the kernel queues
events, and a scan drains them. A scan adds a directory before it lists it. A name created before
the watch is found by the listing, a later one by an event.

Some writes send no event to the directory of a file:

- Writes through a memory mapping. `mmap_writers.py` finds files that are mapped. A file that is no
  longer mapped was closed, which sends an event.
- Writes by another hardlink, outside of the workspace or ignored. Each file has a watch of its own
  that tells of a new link (`watch_files`); a file with links has one that tells of writes.

Writes that no event and no mapping tells of are found by the next full scan: those of a process
that unmapped a file and has it still open, and those by a new link of a file that has no watch,
because there are more files than a quarter of the user's watches.
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
_LINKED_FILE = _MODIFY | _ATTRIB | _CLOSE_WRITE | _DONT_FOLLOW
_FILE = _ATTRIB | _DONT_FOLLOW  # tells of a new link; the directory tells of writes

_EVENT = Struct("iIII")
_READ = 1 << 16

_LOCAL_FILESYSTEMS = frozenset(
    b"bcachefs btrfs exfat ext2 ext3 ext4 f2fs jfs nilfs2 ntfs3 overlay tmpfs vfat xfs zfs".split()
)
"""File systems on which this kernel sees every change."""

_WATCH_LIMIT_FILE = "/proc/sys/fs/inotify/max_user_watches"
_FILE_WATCH_SHARE = 4
"""A workspace takes at most this part of the user's watches for files: editors need watches too."""


class InotifyWatch:
    """The watches of one workspace.

    `broken_reason` says why the watches do not cover everything; it is empty if they do.

    `watch_files`: watch files with one name too. A scan of everything must follow. These watches
    take twice the time of a scan, so a workspace that is opened for one commit does without.
    """

    def __init__(self, fd: int, libc: ctypes.CDLL) -> None:
        self.watch_files = False
        self._fd = fd
        self._libc = libc
        self._paths: dict[int, bytes] = {}
        self._dirs: dict[bytes, int] = {}
        self._files: dict[bytes, dict[bytes, int]] = {}  # by directory and name
        self._free_file_watches = _max_file_watches()
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
        if path in self._dirs:
            return
        wd = self._add(b"/proc/self/fd/%d" % fd, _DIRECTORY)
        if wd < 0:
            self._note_failure(missing_is_known=False)
        else:
            self._paths[wd] = path
            self._dirs[path] = wd

    def add_file(self, fd: int, path: bytes, *, linked: bool) -> None:
        """Watch one file in an open directory, so that a write by any of its names is seen.

        A file with one name gets a watch if `watch_files` is set and the limit is not reached.
        """
        if not linked and not (self.watch_files and self._free_file_watches > 0):
            return
        above, _, name = path.rpartition(b"/")
        wd = self._add(b"/proc/self/fd/%d/%s" % (fd, name), _LINKED_FILE if linked else _FILE)
        if wd >= 0:
            self._free_file_watches -= wd not in self._paths
            self._paths[wd] = path
            self._files.setdefault(above, {})[name] = wd
        elif linked:
            self._note_failure(missing_is_known=True)
        elif ctypes.get_errno() == errno.ENOSPC:
            self._free_file_watches = 0

    def remove(self, path: bytes) -> None:
        """Remove the watches of a deleted directory and of everything below it."""
        below = path + b"/"
        for watched in [
            watched for watched in self._dirs if watched == path or watched.startswith(below)
        ]:
            self._remove_one(self._dirs.pop(watched), watched)
        for above in [
            watched for watched in self._files if watched == path or watched.startswith(below)
        ]:
            for name, wd in self._files.pop(above).items():
                self._free_file_watches += self._remove_one(wd, join_path(above, name))

    def _remove_one(self, wd: int, path: bytes) -> bool:
        """Remove a watch, unless it is known by another path by now."""
        if self._paths.get(wd) != path:
            return False
        self._libc.inotify_rm_watch(self._fd, wd)
        del self._paths[wd]
        return True

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
        dirty = DirtyPaths({}, set(), set())
        written: set[bytes] = set()
        everything = bool(self.broken_reason)
        while data := self._read():
            offset = 0
            while offset < len(data):
                wd, mask, _, length = _EVENT.unpack_from(data, offset)
                name = data[offset + 16 : offset + 16 + length].rstrip(b"\0")
                offset += 16 + length
                everything |= self._event(wd, mask, name, dirty, written)
        return None if everything else dirty

    def _read(self) -> bytes:
        try:
            return os.read(self._fd, _READ)
        except BlockingIOError:
            return b""

    def _event(
        self, wd: int, mask: int, name: bytes, dirty: DirtyPaths, written: set[bytes]
    ) -> bool:
        """Add an event to `dirty`. Return True if it means that anything may have changed.

        `written` collects the files that were written by a call, which changes their times.
        """
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
            written.add(join_path(path, name))
        elif mask & _CLOSE_WRITE and (closed := join_path(path, name)) not in written:
            dirty.closed.add(closed)
        return False

    def _add(self, place: bytes, mask: int) -> int:
        wd: int = self._libc.inotify_add_watch(self._fd, place, mask)
        return wd

    def _note_failure(self, *, missing_is_known: bool) -> None:
        """Record that a watch could not be added. A missing file already had an event."""
        code = ctypes.get_errno()
        if code != errno.ENOENT or not missing_is_known:
            self.broken_reason = os.strerror(code)

    def _forget(self, wd: int) -> None:
        path = self._paths.pop(wd, None)
        if path is None:
            return
        if self._dirs.get(path) == wd:
            del self._dirs[path]
            return
        above, _, name = path.rpartition(b"/")
        names = self._files.get(above, {})
        self._free_file_watches += 1
        if names.get(name) == wd:
            del names[name]


def _max_file_watches() -> int:
    """Return how many files with one name a workspace may watch."""
    try:
        return int(Path(_WATCH_LIMIT_FILE).read_bytes()) // _FILE_WATCH_SHARE
    except (OSError, ValueError):
        return 0


def _merge_dirty(before: DirtyPaths | None, after: DirtyPaths | None) -> DirtyPaths | None:
    if before is None or after is None or not before.names:
        return after if before is not None else None
    names = dict(before.names)
    for path, some in after.names.items():
        known = names.get(path, some)
        names[path] = None if known is None or some is None else known | some
    return DirtyPaths(names, before.whole | after.whole, before.closed | after.closed)


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
