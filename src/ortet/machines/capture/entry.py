"""Capture of one name as a TreeEntry: content, xattrs and holes.

The name may change or disappear during the capture. Names are captured one after the other, without
threads. With warm caches most of the work needs the interpreter lock, and two threads cost 25 %
more CPU time. Hashing of large files and compression do not need the lock; the object store has
threads for them.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import NamedTuple

from ortet._util.codec import encode
from ortet.history.records import TreeEntry
from ortet.machines.base import Loss
from ortet.machines.capture.mmap_writers import flush_mapped_writes
from ortet.machines.capture.stat_index import stat_record
from ortet.objects.base import Kind, ObjectStore
from ortet.objects.blobs import put_file

MAX_READ_ATTEMPTS = 4
"""How often a file is read that changes during the read."""

GONE_ERRNOS = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ESTALE})
_NO_FILE = frozenset({errno.ESPIPE, errno.EISDIR})  # it was opened as a file and is none any more
UNREADABLE_ERRNOS = frozenset({errno.EACCES, errno.EPERM, errno.EIO, errno.EBUSY, errno.ETXTBSY})

_NOATIME = getattr(os, "O_NOATIME", 0)
# NONBLOCK: if a FIFO has just replaced the file, open must not wait for a writer.
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_OVERLAY_XATTR_PREFIXES = ("trusted.overlay.", "user.overlay.")
_EARLIEST, _LATEST = -(1 << 63), (1 << 64) - 1  # the range of a msgpack integer
_NO_XATTRS = frozenset({errno.ENOTSUP, errno.ENOSYS, errno.ENOENT, errno.EINVAL})


class Unreadable(Exception):
    """The name exists and cannot be read: the entry from the last scan stays valid."""

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
    """Capture a name that is not a directory.

    Returns:
        None if the name is gone or unreadable. An unreadable name is added to `losses`.
    """
    try:
        captured = capture_with_stat(objects, dirfd, name, st, path=path, losses=losses)
    except Unreadable as error:
        losses.append(error.loss)
        return None
    return None if captured is None else captured[0]


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
    """Capture a name that is not a directory, with the stat that belongs to the entry.

    Args:
        mapped: Flush memory-mapped writes before the read (see `mmap_writers.py`).

    Returns:
        None if the name is gone or has become a directory.

    Raises:
        Unreadable: If the name exists and cannot be read.
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
    """Capture the file of another type that has taken the name since `st`, or return None."""
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
    """Open for reading without following a symlink, and without changing atime if permitted."""
    if _NOATIME:
        try:
            return os.open(name, flags | _NOATIME, dir_fd=dirfd)
        except PermissionError:
            pass  # only the owner of a file may use O_NOATIME
    return os.open(name, flags, dir_fd=dirfd)


def find_holes(fd: int, st: os.stat_result) -> list[tuple[int, int]]:
    """Return (start, length) of each hole in a file. Files with all blocks allocated have none."""
    holes: list[tuple[int, int]] = []
    offset, size = 0, st.st_size
    if st.st_blocks * 512 >= size:
        return holes
    while offset < size:
        try:
            start = os.lseek(fd, offset, os.SEEK_HOLE)
            if start >= size:
                break
            offset = os.lseek(fd, start, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                return []  # the file system does not support SEEK_HOLE
            offset = size
        holes.append((start, min(offset, size) - start))
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
    """Capture a symlink, FIFO, socket or device. These are never opened."""
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
    """Return the mtime, limited to the range that a record can hold: from 1677 to 2554."""
    mtime = st.st_mtime_ns
    if _EARLIEST <= mtime <= _LATEST:
        return mtime
    return _EARLIEST if mtime < 0 else _LATEST


def mtime_range_loss(path: bytes) -> Loss:
    """Return the loss for a file whose mtime had to be clamped."""
    return Loss(os.fsdecode(path), "time", "its mtime is not between the years 1677 and 2554")


def put_xattrs(objects: ObjectStore, target: int | bytes) -> bytes:
    """Store the extended attributes of a descriptor or path, and return their Oid.

    A path is not followed if it is a symlink. Returns b"" for no attributes.
    """
    xattrs = read_xattrs(target)
    return objects.put(Kind.META, encode(xattrs)) if xattrs else b""


def read_xattrs(target: int | bytes) -> list[tuple[bytes, bytes]]:
    """Return the extended attributes, sorted.

    Attributes of this host's overlay mounts and SELinux policy are left out.
    """
    if not hasattr(os, "listxattr"):
        return []
    follow = isinstance(target, int)
    try:
        names = os.listxattr(target, follow_symlinks=follow)
    except OSError as error:
        if error.errno in _NO_XATTRS:
            return []
        raise
    xattrs = []
    for name in names:
        if name != "security.selinux" and not name.startswith(_OVERLAY_XATTR_PREFIXES):
            try:
                xattrs.append(
                    (os.fsencode(name), os.getxattr(target, name, follow_symlinks=follow))
                )
            except OSError as error:
                if error.errno not in _NO_XATTRS and error.errno != errno.ENODATA:
                    raise
    return sorted(xattrs)


def unreadable_loss(path: bytes, error: OSError) -> Loss:
    return Loss(os.fsdecode(path), "unreadable", error.strerror or str(error))


class ReadJob(NamedTuple):
    """One name to read."""

    name: str
    raw: bytes
    st: os.stat_result
    path: bytes
    mapped: bool = False


class ReadOutcome(NamedTuple):
    """The result of a read.

    `captured` is None for a file that is gone. If `unreadable` is True, the known entry stays
    valid.
    """

    job: ReadJob
    captured: tuple[TreeEntry, os.stat_result] | None
    unreadable: bool
    losses: list[Loss]


def read_file_entry(objects: ObjectStore, fd: int, job: ReadJob) -> ReadOutcome:
    """Capture a name in an open directory and store its content."""
    losses: list[Loss] = []
    try:
        captured = capture_with_stat(
            objects, fd, job.raw, job.st, path=job.path, losses=losses, mapped=job.mapped
        )
    except Unreadable as error:
        return ReadOutcome(job, None, True, [*losses, error.loss])
    return ReadOutcome(job, captured, False, losses)
