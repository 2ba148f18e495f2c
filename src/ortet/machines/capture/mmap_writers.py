"""Finds files that processes write through a memory mapping, and makes such writes visible.

These writes raise no inotify event. Only the first write to a clean page changes the file's times;
later writes do not, until the page is written back. So a mapped file is synced before it is read:
any later write then changes its stat. This is a module of its own because only it reads /proc maps.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress

# The fields are: address perms offset dev inode path. Matches shared writable mappings of a file.
_SHARED = re.compile(rb"^\S+ .w.s \S+ \S+ ([1-9]\d*) ", re.MULTILINE)
_CHUNK = 1 << 16


def mapped_inodes() -> set[int]:
    """Return the inode numbers, of any file system, that a visible process can write by mmap."""
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
    """Return True if a write to a synced page changes mtime.

    It does not on file systems in memory, which never write back.
    """
    wanted = b"%d:%d" % (os.major(dev), os.minor(dev))
    with suppress(OSError):
        for line in _read("/proc/self/mountinfo").splitlines():
            fields = line.split()
            if fields[2] == wanted:
                return fields[fields.index(b"-") + 1] not in (b"tmpfs", b"ramfs")
    return False


def flush_mapped_writes(fd: int) -> None:
    """Write dirty pages back, so that the next write changes the file's times."""
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
