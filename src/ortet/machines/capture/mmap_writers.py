"""Files that processes write through memory: such a store raises no event, and may move no time.

The first store to a clean page moves the file's times, the next ones do not until the page was
written back. So a mapped file is synced before it is read: its stat then tells of any later store.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress

# address perms offset dev inode path: writable and shared, with an inode
_SHARED = re.compile(rb"^\S+ .w.s \S+ \S+ ([1-9]\d*) ", re.MULTILINE)
_CHUNK = 1 << 16


def mapped_inodes() -> set[int]:
    """Inodes that a process we may look at can write through memory (numbers of any filesystem)."""
    found: set[int] = set()
    with suppress(OSError):
        for name in os.listdir("/proc"):
            if name.isdigit():
                with suppress(OSError):
                    found.update(
                        int(inode) for inode in _SHARED.findall(_read(f"/proc/{name}/maps"))
                    )
    return found


def tracks_mmap_writes(dev: int) -> bool:
    """Does a store to a synced page move mtime? Not where nothing is ever written back."""
    wanted = b"%d:%d" % (os.major(dev), os.minor(dev))
    with suppress(OSError):
        for line in _read("/proc/self/mountinfo").splitlines():
            fields = line.split()
            if fields[2] == wanted:
                return fields[fields.index(b"-") + 1] not in (b"tmpfs", b"ramfs")
    return False


def flush_mapped_writes(fd: int) -> None:
    """Write back what was stored, so that the next store is noticed."""
    getattr(os, "fdatasync", os.fsync)(fd)


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(fd, _CHUNK):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(fd)
