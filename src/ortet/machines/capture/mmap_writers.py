"""Finds files that processes write through a memory mapping, and makes such writes visible.

These writes raise no inotify event. Only the first write to a clean page changes the file's times;
later writes do not, until the page is written back. So every scan asks which files are mapped, and
a mapped file is synced before it is read: any later write then changes its stat. This is a module
of its own because only it reads /proc maps.

A mapping is found only in a process that this process may inspect: one of the same user (of any
user for root) in this PID namespace or one below it. A file that was mapped, written and unmapped
between two scans is announced by the event of its close.
"""

from __future__ import annotations

import errno
import os
import re
from contextlib import suppress
from fcntl import ioctl
from struct import Struct

# The fields are: address perms offset dev inode path. Matches shared writable mappings of a file.
_SHARED = re.compile(rb"^\S+ .w.s \S+ \S+ ([1-9]\d*) ", re.MULTILINE)
_CHUNK = 1 << 16

# PROCMAP_QUERY (Linux 6.11) finds the next matching mapping without a text of all mappings, which
# is ten times as fast. The fields are: size, flags, address, start, end, flags of the mapping,
# page size, offset, inode, device (2), sizes and addresses of the name and of the build id.
_QUERY = Struct("=9Q4I2Q")
_PROCMAP_QUERY = 0xC0000000 | _QUERY.size << 16 | ord("f") << 8 | 17
_WRITABLE, _SHARED_MAPPING, _THIS_OR_NEXT, _OF_FILE = 0x02, 0x08, 0x10, 0x20
_FLAGS = _WRITABLE | _SHARED_MAPPING | _THIS_OR_NEXT | _OF_FILE
_END, _INODE = 4, 8
_REST = (0,) * 12
_NO_QUERY = frozenset({errno.ENOTTY, errno.EINVAL})


def mapped_inodes() -> set[int]:
    """Return the inode numbers, of any file system, that a visible process can write by mmap."""
    inodes: set[int] = set()
    with suppress(OSError):
        for name in os.listdir("/proc"):
            if name.isdigit():
                with suppress(OSError):
                    _add_mapped_inodes(f"/proc/{name}/maps", inodes)
    return inodes


def _add_mapped_inodes(maps: str, inodes: set[int]) -> None:
    fd = os.open(maps, os.O_RDONLY | os.O_CLOEXEC)
    try:
        address = 0
        while True:
            query = bytearray(_QUERY.pack(_QUERY.size, _FLAGS, address, *_REST))
            ioctl(fd, _PROCMAP_QUERY, query)  # raises an error after the last mapping
            answer = _QUERY.unpack(query)
            inodes.add(answer[_INODE])
            address = answer[_END]
    except OSError as error:
        if error.errno in _NO_QUERY:
            inodes.update(int(inode) for inode in _SHARED.findall(_read_fd(fd)))
    finally:
        os.close(fd)


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
        return _read_fd(fd)
    finally:
        os.close(fd)


def _read_fd(fd: int) -> bytes:
    parts = []
    while part := os.read(fd, _CHUNK):
        parts.append(part)
    return b"".join(parts)
