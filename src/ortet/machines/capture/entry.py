"""One name in a directory -> Entry: content, xattrs, holes; also while it changes or goes away."""

from __future__ import annotations

import errno
import os
import stat

from ortet._util.codec import encode
from ortet.history.records import TreeEntry
from ortet.machines.base import Loss
from ortet.machines.capture.mmap_writers import flush_mapped_writes
from ortet.machines.capture.seen import stat_record
from ortet.objects.base import Kind, ObjectStore
from ortet.objects.blobs import put_file

MAX_READ_ATTEMPTS = 4
"""How often a file that changes while it is read is read again."""

GONE_ERRNOS = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ESTALE})
_NO_FILE = frozenset({errno.ESPIPE, errno.EISDIR})  # read as a file, and it is none by now
UNREADABLE_ERRNOS = frozenset({errno.EACCES, errno.EPERM, errno.EIO, errno.EBUSY, errno.ETXTBSY})

_NOATIME = getattr(os, "O_NOATIME", 0)
# NONBLOCK: should a FIFO take the file's place just now, opening it must not wait for a writer
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_OVERLAY_XATTR_PREFIXES = ("trusted.overlay.", "user.overlay.")
_EARLIEST, _LATEST = -(1 << 63), (1 << 64) - 1  # what msgpack has room for
_NO_XATTRS = frozenset({errno.ENOTSUP, errno.ENOSYS, errno.ENOENT, errno.EINVAL})


class Unreadable(Exception):
    """The name is there and may not be read: what was known of it before still stands."""

    def __init__(self, loss: Loss) -> None:
        super().__init__(loss.why)
        self.loss = loss


def capture_entry(
    objects: ObjectStore,
    dirfd: int,
    name: bytes,
    st: os.stat_result,
    *,
    path: bytes,
    losses: list[Loss],
) -> TreeEntry | None:
    """Anything but a directory. None: it is gone, or it cannot be read, which then is a Loss."""
    try:
        found = capture_with_stat(objects, dirfd, name, st, path=path, losses=losses)
    except Unreadable as error:
        losses.append(error.loss)
        return None
    return None if found is None else found[0]


def capture_with_stat(
    objects: ObjectStore,
    dirfd: int,
    name: bytes,
    st: os.stat_result,
    *,
    path: bytes,
    losses: list[Loss],
    mapped: bool = False,
) -> tuple[TreeEntry, os.stat_result] | None:
    """As `capture`, with the stat that belongs to the Entry; None: gone, or a directory by now.

    Raises Unreadable where the name is there and cannot be read. `mapped`: see mapped.py.
    """
    try:
        if clamped_mtime(st) != st.st_mtime_ns:
            losses.append(mtime_range_loss(path))
        if stat.S_ISREG(st.st_mode):
            return _file(objects, dirfd, name, st, path=path, losses=losses, mapped=mapped)
        return _other(objects, dirfd, name, st)
    except OSError as error:
        if error.errno in UNREADABLE_ERRNOS:
            raise Unreadable(unreadable_loss(path, error)) from error
        if error.errno not in GONE_ERRNOS and error.errno not in _NO_FILE:
            raise
    return _capture_replacement(objects, dirfd, name, st, path=path, losses=losses)


def _capture_replacement(
    objects: ObjectStore,
    dirfd: int,
    name: bytes,
    st: os.stat_result,
    *,
    path: bytes,
    losses: list[Loss],
) -> tuple[TreeEntry, os.stat_result] | None:
    """The name did not lead to what `st` said: it is gone, or something else took its place."""
    try:
        now = os.stat(name, dir_fd=dirfd, follow_symlinks=False)
    except OSError:
        return None
    if stat.S_ISDIR(now.st_mode) or stat.S_IFMT(now.st_mode) == stat.S_IFMT(st.st_mode):
        return None
    return capture_with_stat(objects, dirfd, name, now, path=path, losses=losses)


def _file(
    objects: ObjectStore,
    dirfd: int,
    name: bytes,
    st: os.stat_result,
    *,
    path: bytes,
    losses: list[Loss],
    mapped: bool,
) -> tuple[TreeEntry, os.stat_result] | None:
    fd = open_noatime(name, dirfd)
    try:
        for _ in range(MAX_READ_ATTEMPTS):
            if mapped:
                flush_mapped_writes(fd)
                st = os.fstat(fd)
            holes = find_holes(fd, st)
            if objects.scanner is not None:
                objects.scanner.file(fd, st.st_size, path)
            data = put_file(objects, fd, st.st_size, holes) if st.st_size else b""
            xattrs = put_xattrs(objects, fd)
            now = os.fstat(fd)
            if stat_record(now) == stat_record(st):
                return _entry(objects, name, st, data=data, xattrs=xattrs, holes=holes), st
            if not stat.S_ISREG(now.st_mode):
                return _capture_replacement(objects, dirfd, name, st, path=path, losses=losses)
            was, st = st, now
    finally:
        os.close(fd)
    loss = Loss(os.fsdecode(path), "changing", "it was written to during each of our reads")
    if now.st_size < was.st_size:
        raise Unreadable(loss)
    losses.append(loss)
    return _entry(objects, name, was, data=data, xattrs=xattrs, holes=holes), was


def open_noatime(name: bytes | str, dirfd: int, flags: int = _OPEN) -> int:
    """Open for reading without following a link, and without moving atime where we may."""
    if _NOATIME:
        try:
            return os.open(name, flags | _NOATIME, dir_fd=dirfd)
        except PermissionError:
            pass  # only a file's owner may ask for it
    return os.open(name, flags, dir_fd=dirfd)


def find_holes(fd: int, st: os.stat_result) -> list[tuple[int, int]]:
    """(start, length) of what was never written; looked for only where blocks are missing."""
    holes: list[tuple[int, int]] = []
    at, size = 0, st.st_size
    if st.st_blocks * 512 >= size:
        return holes
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_HOLE)
            if start >= size:
                break
            at = os.lseek(fd, start, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                return []  # this filesystem does not tell
            at = size
        holes.append((start, min(at, size) - start))
    return holes


def _entry(
    objects: ObjectStore,
    name: bytes,
    st: os.stat_result,
    *,
    data: bytes,
    xattrs: bytes,
    holes: list[tuple[int, int]],
) -> TreeEntry:
    where = objects.put(Kind.META, encode(holes)) if holes else b""
    return TreeEntry(
        name,
        st.st_mode,
        clamped_mtime(st),
        st.st_uid,
        st.st_gid,
        st.st_size,
        data,
        b"",
        xattrs,
        where,
    )


def _other(
    objects: ObjectStore, dirfd: int, name: bytes, st: os.stat_result
) -> tuple[TreeEntry, os.stat_result]:
    """Symlinks, FIFOs, sockets and devices: never opened."""
    target, rdev = b"", 0
    if stat.S_ISLNK(st.st_mode):
        target = os.readlink(name, dir_fd=dirfd)
        if objects.scanner is not None:
            objects.scanner.data(target, f"link {os.fsdecode(name)}")
    elif stat.S_ISCHR(st.st_mode) or stat.S_ISBLK(st.st_mode):
        rdev = st.st_rdev
    xattrs = put_xattrs(objects, b"/proc/self/fd/%d/%s" % (dirfd, name))
    entry = TreeEntry(
        name,
        st.st_mode,
        clamped_mtime(st),
        st.st_uid,
        st.st_gid,
        data=target,
        xattrs=xattrs,
        rdev=rdev,
    )
    return entry, st


def clamped_mtime(st: os.stat_result) -> int:
    """mtime, or the nearest that a record can hold: from 1677 to 2554."""
    mtime = st.st_mtime_ns
    if _EARLIEST <= mtime <= _LATEST:
        return mtime
    return _EARLIEST if mtime < 0 else _LATEST


def mtime_range_loss(path: bytes) -> Loss:
    """For an Entry whose mtime is not that of its stat."""
    return Loss(os.fsdecode(path), "time", "its mtime is not between the years 1677 and 2554")


def put_xattrs(objects: ObjectStore, at: int | bytes) -> bytes:
    """Oid of the extended attributes of a descriptor, or of a path that is not followed."""
    found = read_xattrs(at)
    return objects.put(Kind.META, encode(found)) if found else b""


def read_xattrs(at: int | bytes) -> list[tuple[bytes, bytes]]:
    """Sorted; without those that belong to this host's overlay mounts and SELinux policy."""
    if not hasattr(os, "listxattr"):
        return []
    follow = isinstance(at, int)
    try:
        names = os.listxattr(at, follow_symlinks=follow)
    except OSError as error:
        if error.errno in _NO_XATTRS:
            return []
        raise
    found = []
    for name in names:
        if name != "security.selinux" and not name.startswith(_OVERLAY_XATTR_PREFIXES):
            try:
                found.append((os.fsencode(name), os.getxattr(at, name, follow_symlinks=follow)))
            except OSError as error:
                if error.errno not in _NO_XATTRS and error.errno != errno.ENODATA:
                    raise
    return sorted(found)


def unreadable_loss(path: bytes, error: OSError) -> Loss:
    return Loss(os.fsdecode(path), "unreadable", error.strerror or str(error))
