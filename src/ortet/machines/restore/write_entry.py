"""Writes one entry to a directory. Metadata that cannot be applied becomes a Loss, not an error."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from ortet._util.codec import decode
from ortet.errors import Corrupt
from ortet.history.records import TreeEntry
from ortet.ids import Oid
from ortet.machines.base import Loss
from ortet.machines.capture.entry import find_holes, read_xattrs
from ortet.machines.dirfd import check_name
from ortet.objects.base import ObjectStore
from ortet.objects.blobs import read_range

Xattrs = list[tuple[bytes, bytes]]
ReportLoss = Callable[[str, str], None]
"""A function that is called with the kind of a loss and the reason."""

_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class MetadataTarget(Protocol):
    """A file or directory whose metadata is read or set."""

    xattr_target: int | bytes
    """The descriptor or path for the xattr calls; a path is not followed."""

    def stat(self) -> os.stat_result: ...

    def chown(self, uid: int, gid: int) -> None: ...

    def chmod(self, mode: int) -> None: ...

    def set_mtime(self, mtime: int) -> None: ...


class OpenTarget:
    """An open file or directory as a MetadataTarget."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.xattr_target: int | bytes = fd

    def stat(self) -> os.stat_result:
        return os.fstat(self.fd)

    def chown(self, uid: int, gid: int) -> None:
        os.fchown(self.fd, uid, gid)

    def chmod(self, mode: int) -> None:
        os.fchmod(self.fd, mode)

    def set_mtime(self, mtime: int) -> None:
        os.utime(self.fd, ns=(mtime, mtime))


class NamedTarget:
    """A file that is reached by name, because opening it may fail or have side effects."""

    def __init__(self, dir_fd: int, name: bytes) -> None:
        self.fd = dir_fd
        self.name = name
        self.xattr_target: int | bytes = b"/proc/self/fd/%d/%s" % (dir_fd, name)

    def stat(self) -> os.stat_result:
        return os.stat(self.name, dir_fd=self.fd, follow_symlinks=False)

    def chown(self, uid: int, gid: int) -> None:
        os.chown(self.name, uid, gid, dir_fd=self.fd, follow_symlinks=False)

    def chmod(self, mode: int) -> None:
        # Linux has no chmod that does not follow links. An O_PATH descriptor names only the inode.
        fd = os.open(self.name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.fd)
        try:
            os.chmod(f"/proc/self/fd/{fd}", mode)
        finally:
            os.close(fd)

    def set_mtime(self, mtime: int) -> None:
        os.utime(self.name, ns=(mtime, mtime), dir_fd=self.fd, follow_symlinks=False)


class EntryWriter:
    """Writes entries and collects losses. It may be used by several threads.

    A file is written at (directory descriptor, name). `path` is only for reports.
    """

    def __init__(self, objects: ObjectStore) -> None:
        self.losses: list[Loss] = []
        self._objects = objects

    def add_loss(self, path: bytes, what: str, why: str) -> None:
        self.losses.append(Loss(os.fsdecode(path), what, why))

    def write_file(
        self,
        dir_fd: int,
        name: bytes,
        *,
        entry: TreeEntry,
        data: Iterable[bytes],
        path: bytes,
        fill: Callable[[int], bool] | None = None,
    ) -> os.stat_result:
        """Write a regular file with the content `data`, which must have the size of the entry.

        Args:
            fill: Called with the open file. If it returns True, it has written the content.

        Raises:
            Corrupt: "bad_entry", if the content has another size.
        """
        fd = os.open(check_name(name), _CREATE, entry.mode & 0o777, dir_fd=dir_fd)
        try:
            if fill is not None and fill(fd):
                size = os.fstat(fd).st_size
            elif entry.holes:
                size = self._sparse(fd, entry, path)
            else:
                size = 0
                for chunk in data:
                    size += write_all(fd, chunk)
            if size != entry.size:
                raise _corrupt_error(path, f"has {size} bytes where its entry says {entry.size}")
            if not entry.xattrs:
                os.utime(fd, ns=(entry.mtime, entry.mtime))
                now = os.fstat(fd)
                if _matches_entry(now, entry):  # nearly always; this is the hot path of a restore
                    return now
            return self.apply_metadata(OpenTarget(fd), entry, path=path)
        finally:
            os.close(fd)

    def write_special(
        self, dir_fd: int, name: bytes, *, entry: TreeEntry, path: bytes
    ) -> os.stat_result | None:
        """Create a symlink, FIFO, socket or device. Return None, with a Loss, if not permitted."""
        check_name(name)
        kind = stat.S_IFMT(entry.mode)
        if kind == stat.S_IFLNK:
            os.symlink(entry.data, name, dir_fd=dir_fd)
        elif kind == stat.S_IFIFO:
            os.mkfifo(name, entry.mode & 0o777, dir_fd=dir_fd)
        elif kind in (stat.S_IFSOCK, stat.S_IFCHR, stat.S_IFBLK):
            what = "socket" if kind == stat.S_IFSOCK else "device"
            try:
                os.mknod(name, kind | entry.mode & 0o777, entry.rdev, dir_fd=dir_fd)
            except PermissionError as error:
                self.add_loss(path, what, f"it could not be made ({error.strerror}): run as root")
                return None
        else:
            raise _corrupt_error(path, f"has the unknown type {kind:o}")
        return self.apply_metadata(NamedTarget(dir_fd, name), entry, path=path)

    def apply_metadata(
        self, target: MetadataTarget, entry: TreeEntry, *, path: bytes, fresh: bool = True
    ) -> os.stat_result:
        """Set owner, xattrs, mode and mtime, in an order in which none undoes another.

        `fresh`: the file is new, so it has no xattrs to remove.
        """
        xattrs = self.xattrs(entry) if entry.xattrs or not fresh else None
        return set_metadata(target, entry, xattrs=xattrs, report_loss=partial(self.add_loss, path))

    def xattrs(self, entry: TreeEntry) -> Xattrs:
        return decode(Xattrs, self._objects.get(Oid(entry.xattrs))) if entry.xattrs else []

    def holes(self, entry: TreeEntry, path: bytes) -> list[tuple[int, int]]:
        """Return the holes of a file.

        Raises Corrupt unless they are ascending and inside the file.
        """
        holes = decode(list[tuple[int, int]], self._objects.get(Oid(entry.holes)))
        end = -1
        for start, length in holes:
            if start <= end or length <= 0 or start + length > entry.size:
                raise _corrupt_error(path, "has holes that overlap or lie outside")
            end = start + length
        return holes

    def _sparse(self, fd: int, entry: TreeEntry, path: bytes) -> int:
        """Write only the data between holes, so that the holes stay unallocated."""
        holes = self.holes(entry, path)
        os.ftruncate(fd, entry.size)
        offset = 0
        for start, length in [*holes, (entry.size, 0)]:
            for chunk in read_range(self._objects, entry, offset, start - offset):
                offset += write_all(fd, chunk, offset=offset)
            offset = start + length
        if find_holes(fd, os.fstat(fd)) != holes:
            self.add_loss(path, "holes", "this file system keeps other holes than the image has")
        return entry.size


def write_all(fd: int, data: bytes | memoryview, *, offset: int | None = None) -> int:
    """Write every byte, at `offset` or at the current position."""
    size = len(data)
    done = os.write(fd, data) if offset is None else os.pwrite(fd, data, offset)
    while done < size:
        rest = memoryview(data)[done:]
        done += os.write(fd, rest) if offset is None else os.pwrite(fd, rest, offset + done)
    return size


def set_metadata(
    target: MetadataTarget, entry: TreeEntry, *, xattrs: Xattrs | None, report_loss: ReportLoss
) -> os.stat_result:
    """Set the metadata to that of `entry`, and the xattrs to `xattrs` unless None."""
    now = target.stat()
    if now.st_uid != entry.uid or now.st_gid != entry.gid:
        now = _chown(target, entry)
    if xattrs is not None:
        if entry.is_file and not now.st_mode & 0o200 and os.geteuid():
            with contextlib.suppress(OSError):  # user xattrs need a writable file
                target.chmod(0o600)
        _set_xattrs(target, xattrs, report_loss)
        now = target.stat()
    mode = _mode(entry, now)
    if stat.S_IMODE(now.st_mode) != mode and not entry.is_link:
        with contextlib.suppress(OSError):
            target.chmod(mode)
    if now.st_mtime_ns != entry.mtime:
        with contextlib.suppress(OSError):
            target.set_mtime(entry.mtime)
    now = target.stat()
    if now.st_uid != entry.uid or now.st_gid != entry.gid:
        why = f"{entry.uid}:{entry.gid} became {now.st_uid}:{now.st_gid}: run as root"
        report_loss("owner", why)
    if now.st_mode != entry.mode and not entry.is_link:
        report_loss(
            "mode", f"{stat.S_IMODE(entry.mode):04o} became {stat.S_IMODE(now.st_mode):04o}"
        )
    if now.st_mtime_ns != entry.mtime:
        report_loss("mtime", f"{entry.mtime} became {now.st_mtime_ns} on this file system")
    return now


def _chown(target: MetadataTarget, entry: TreeEntry) -> os.stat_result:
    """Set owner and group, or at least the group: a user may give a file to their own groups."""
    try:
        target.chown(entry.uid, entry.gid)
    except OSError:
        with contextlib.suppress(OSError):
            target.chown(-1, entry.gid)
    return target.stat()


def _matches_entry(now: os.stat_result, entry: TreeEntry) -> bool:
    return (
        now.st_mode == entry.mode
        and now.st_uid == entry.uid
        and now.st_gid == entry.gid
        and now.st_mtime_ns == entry.mtime
    )


def _mode(entry: TreeEntry, now: os.stat_result) -> int:
    """Return the entry's mode, without set-id bits if the owner or group could not be set."""
    mode = stat.S_IMODE(entry.mode)
    if entry.is_file and now.st_uid != entry.uid:
        mode &= ~stat.S_ISUID
    if entry.is_file and now.st_gid != entry.gid:
        mode &= ~stat.S_ISGID
    return mode


def _set_xattrs(target: MetadataTarget, wanted: Xattrs, report_loss: ReportLoss) -> None:
    place, follow = target.xattr_target, isinstance(target.xattr_target, int)
    try:
        present = dict(read_xattrs(place))
    except OSError:
        present = {}
    changes: list[tuple[bytes, bytes | None]] = [
        (name, None) for name in present.keys() - dict(wanted).keys()
    ]
    changes += [(name, value) for name, value in wanted if present.get(name) != value]
    for name, value in changes:
        try:
            if value is None:
                os.removexattr(place, name, follow_symlinks=follow)
            else:
                os.setxattr(place, name, value, follow_symlinks=follow)
        except OSError as error:
            report_loss("xattr", f"{os.fsdecode(name)}: {error.strerror}")


def _corrupt_error(path: bytes, what: str) -> Corrupt:
    return Corrupt("bad_entry", f"{os.fsdecode(path)} {what}: run `ortet verify`")
