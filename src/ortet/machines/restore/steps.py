"""The steps of a restore in a live directory, and how each is undone.

New files wait in the staging area as new.N, old ones are moved there as old.N. The state on disk
shows whether a step was applied; nothing else records it. So an undo can be interrupted and
repeated.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from ortet._util.codec import StoredRecord, decode, encode
from ortet._util.failpoints import failpoint
from ortet._util.log import get_logger
from ortet.errors import Conflict, NotFound
from ortet.history.records import TreeEntry
from ortet.machines.capture.entry import GONE_ERRNOS, read_xattrs
from ortet.machines.dirfd import (
    DirFdCache,
    open_directory,
    remove_tree,
    translate_os_error,
    writable_for_rename,
)
from ortet.machines.restore.write_entry import (
    MetadataTarget,
    NamedTarget,
    OpenTarget,
    Xattrs,
    set_metadata,
)
from ortet.objects.tail import sync_data

StatsByPath = Mapping[bytes, os.stat_result | None]


class KeepStep(StoredRecord, frozen=True, tag="keep"):
    """Keep the file at `path` as old.N: by a link if a file takes its name, else by a rename."""

    path: bytes
    slot: int
    link: bool


class PlaceStep(StoredRecord, frozen=True, tag="place"):
    """Move new.N to `path`.

    The inode, size and mtime show at an undo that the file is still ours; for a directory only the
    inode does.
    """

    path: bytes
    slot: int
    inode: int
    size: int
    mtime: int


class DropStep(StoredRecord, frozen=True, tag="drop"):
    """Remove the empty directory at `path`. A MetadataStep before it records its metadata."""

    path: bytes


class MetadataStep(StoredRecord, frozen=True, tag="meta"):
    """The metadata of `path` before the restore changes it."""

    path: bytes
    mode: int
    uid: int
    gid: int
    mtime: int
    xattrs: Xattrs


RestoreStep = KeepStep | PlaceStep | DropStep | MetadataStep


def open_target(dirs: DirFdCache, path: bytes, mode: int) -> MetadataTarget:
    """Return a live path whose metadata is read or set.

    Files are not opened: we may not have permission to.
    """
    return OpenTarget(dirs.fd(path)) if stat.S_ISDIR(mode) else NamedTarget(*dirs.open_parent(path))


def metadata_step(dirs: DirFdCache, path: bytes, mode: int) -> MetadataStep:
    target = open_target(dirs, path, mode)
    now = target.stat()
    xattrs = read_xattrs(target.xattr_target)
    return MetadataStep(path, now.st_mode, now.st_uid, now.st_gid, now.st_mtime_ns, xattrs)


def lstat_or_none(dir_fd: int, name: bytes) -> os.stat_result | None:
    """Return the stat of a name without following a link, or None if it does not exist."""
    try:
        return os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def changed_error(path: bytes) -> Conflict:
    shown = os.fsdecode(path)
    return Conflict(
        "changed_meanwhile",
        f"{shown} was changed while we looked: it was left as it is, repeat the call",
        path=shown,
    )


# Apply.


def apply_steps(
    dirs: DirFdCache, area: int, steps: Sequence[RestoreStep], stats: StatsByPath
) -> None:
    """Apply all steps. Raises Conflict if a path no longer looks as in `stats`."""
    for step in steps:
        if isinstance(step, MetadataStep):
            if stat.S_ISDIR(step.mode):
                _make_writable(dirs, step)
        elif isinstance(step, KeepStep):
            _keep_old(dirs, area, step)
            failpoint("thaw.kept")
        elif isinstance(step, DropStep):
            dirs.close_tree(step.path)
            parent_fd, name = dirs.open_parent(step.path)
            os.rmdir(name, dir_fd=parent_fd)
            failpoint("thaw.dropped")
        else:
            _place_new(dirs, area, step)
            failpoint("thaw.placed")
    for step in steps:
        if isinstance(step, KeepStep):
            _check_kept(area, step, stats)


def _make_writable(dirs: DirFdCache, meta: MetadataStep) -> None:
    """Let an ordinary user change names in their own directory, whatever its mode is."""
    if os.geteuid() and meta.mode & 0o700 != 0o700:
        target = (
            NamedTarget(*dirs.open_parent(meta.path)) if meta.path else OpenTarget(dirs.fd(b""))
        )
        target.chmod(stat.S_IMODE(meta.mode) | 0o700)


def _keep_old(dirs: DirFdCache, area: int, step: KeepStep) -> None:
    slot = b"old.%d" % step.slot
    parent_fd, name = dirs.open_parent(step.path)
    if step.link:  # so that a concurrent reader always finds the name
        with contextlib.suppress(OSError):
            os.link(name, slot, src_dir_fd=parent_fd, dst_dir_fd=area, follow_symlinks=False)
            return
    dirs.close_tree(step.path)
    with writable_for_rename(parent_fd, name):
        os.rename(name, slot, src_dir_fd=parent_fd, dst_dir_fd=area)


def _place_new(dirs: DirFdCache, area: int, step: PlaceStep) -> None:
    parent_fd, name = dirs.open_parent(step.path)
    now, old = lstat_or_none(parent_fd, name), lstat_or_none(area, b"old.%d" % step.slot)
    if now is not None and (old is None or not os.path.samestat(now, old)):
        raise changed_error(step.path)
    slot = b"new.%d" % step.slot
    with writable_for_rename(area, slot):
        os.rename(slot, name, src_dir_fd=area, dst_dir_fd=parent_fd)


def _check_kept(area: int, step: KeepStep, stats: StatsByPath) -> None:
    """Raise Conflict if a file that was moved away is not the one that was checked before.

    The inode is not compared: an overlay may give another one to a file that is linked or moved.
    """
    old, was = lstat_or_none(area, b"old.%d" % step.slot), stats.get(step.path)
    if old is None or was is None or stat.S_ISDIR(was.st_mode):
        return
    if (old.st_mode, old.st_size, old.st_mtime_ns) != (
        was.st_mode,
        was.st_size,
        was.st_mtime_ns,
    ):
        raise changed_error(step.path)


# Undo.


def undo_steps(root: int, area: int, steps: Sequence[RestoreStep]) -> None:
    """Restore the old files. Paths that another process has changed in the meantime are kept."""
    metas = [step for step in steps if isinstance(step, MetadataStep)]
    with DirFdCache(root) as dirs:
        for meta in metas:
            with _ignore_missing():
                if stat.S_ISDIR(meta.mode):
                    _make_writable(dirs, meta)
        for step in reversed(steps):
            with _ignore_missing():
                if isinstance(step, PlaceStep):
                    _unplace(dirs, area, step)
                elif isinstance(step, KeepStep):
                    _unkeep(dirs, area, step)
                elif isinstance(step, DropStep):
                    _undrop(dirs, step)
            failpoint("thaw.undo")
        for meta in reversed(metas):
            with _ignore_missing():
                _unmeta(dirs, meta)


def _unplace(dirs: DirFdCache, area: int, step: PlaceStep) -> None:
    slot = b"new.%d" % step.slot
    parent_fd, name = dirs.open_parent(step.path)
    now = lstat_or_none(parent_fd, name)
    if lstat_or_none(area, slot) is not None or now is None or now.st_ino != step.inode:
        return
    if not stat.S_ISDIR(now.st_mode) and (now.st_size, now.st_mtime_ns) != (step.size, step.mtime):
        return
    dirs.close_tree(step.path)
    with writable_for_rename(parent_fd, name):
        os.rename(name, slot, src_dir_fd=parent_fd, dst_dir_fd=area)


def _unkeep(dirs: DirFdCache, area: int, step: KeepStep) -> None:
    slot = b"old.%d" % step.slot
    if lstat_or_none(area, slot) is None:
        return
    parent_fd, name = dirs.open_parent(step.path)
    if lstat_or_none(parent_fd, name) is None:
        with writable_for_rename(area, slot):
            os.rename(slot, name, src_dir_fd=area, dst_dir_fd=parent_fd)


def _undrop(dirs: DirFdCache, step: DropStep) -> None:
    parent_fd, name = dirs.open_parent(step.path)
    if lstat_or_none(parent_fd, name) is None:
        os.mkdir(name, 0o700, dir_fd=parent_fd)


def _unmeta(dirs: DirFdCache, meta: MetadataStep) -> None:
    target = open_target(dirs, meta.path, meta.mode)
    if stat.S_IFMT(target.stat().st_mode) == stat.S_IFMT(meta.mode):
        entry = TreeEntry(b"", meta.mode, meta.mtime, meta.uid, meta.gid)
        set_metadata(target, entry, xattrs=meta.xattrs, report_loss=lambda *_: None)


@contextlib.contextmanager
def _ignore_missing() -> Iterator[None]:
    """Continue if another process has removed the path."""
    try:
        yield
    except OSError as error:
        if error.errno not in GONE_ERRNOS:
            raise


# The journal of a restore. It is complete before the first step, so every step can be undone.

T = TypeVar("T")


class RestoreBegin(StoredRecord, frozen=True):
    """The paths of a restore.

    Written before the staging area is created, to find it after a crash.
    """

    root: bytes
    area: bytes
    mtime: int | None = None  # mtime of the root, if the staging area inside it changes it


class RestoreLog(StoredRecord, frozen=True):
    """The steps of a restore."""

    steps: list[RestoreStep]
    mtime: int | None = None  # mtime of the root after success, if RestoreBegin has one


class RestoreJournal:
    """The files `begin`, `journal` and `done` in a directory of the machine.

    `begin` alone: no file was changed. `journal`: the steps must be undone. `done`: the restore is
    complete and only the cleanup is missing.
    """

    def __init__(self, home: Path) -> None:
        self._home = home

    def begin(self, begin: RestoreBegin) -> None:
        self._home.mkdir(parents=True, exist_ok=True)
        (self._home / "done").unlink(missing_ok=True)  # a killed cleanup may leave it
        self._write("begin", begin)

    def write_log(self, log: RestoreLog) -> None:
        self._write("journal", log)
        with open_directory(self._home) as fd:
            os.fsync(fd)

    def mark_done(self) -> None:
        (self._home / "journal").rename(self._home / "done")

    def recover(self) -> bool:
        """Undo an unfinished restore, or clean up after a complete one. False if there is none."""
        begin = self._read("begin", RestoreBegin)
        if begin is None:
            return False
        shown = os.fsdecode(begin.root)
        if not os.path.isdir(begin.root):
            raise NotFound(
                "no_workspace",
                f"{shown} is gone, and a restore of it is unfinished: put it back, then try again",
            )
        try:
            done = self._read("done", RestoreLog)
            self._undo(begin)
            failpoint("thaw.undone")
            self._clean(begin, begin.mtime if done is None else done.mtime)
        except OSError as error:
            raise translate_os_error(
                error, f"cannot end an unfinished restore of {shown}"
            ) from error
        get_logger(__name__).warning(
            "%s an interrupted restore of files", "undid" if done is None else "finished"
        )
        return True

    def _undo(self, begin: RestoreBegin) -> None:
        log = self._read("journal", RestoreLog)
        if log is None:
            return
        if os.path.isdir(begin.area):
            with open_directory(begin.root) as root, open_directory(begin.area) as area:
                undo_steps(root, area, log.steps)
        # Before the area is removed: half an area must not look like half a restore.
        (self._home / "journal").unlink()

    def _clean(self, begin: RestoreBegin, mtime: int | None) -> None:
        above, _, name = begin.area.rpartition(b"/")
        with contextlib.suppress(FileNotFoundError), open_directory(above or b"/") as parent_fd:
            remove_tree(parent_fd, name)
        if mtime is not None and os.stat(begin.root).st_mtime_ns != mtime:
            os.utime(begin.root, ns=(mtime, mtime))
        failpoint("thaw.cleaned")
        (self._home / "begin").unlink()
        (self._home / "done").unlink(missing_ok=True)

    def _write(self, name: str, record: StoredRecord) -> None:
        fresh = self._home / f"{name}.new"
        with fresh.open("wb") as file:
            file.write(encode(record))
            file.flush()
            sync_data(file.fileno())
        fresh.rename(self._home / name)

    def _read(self, name: str, kind: type[T]) -> T | None:
        try:
            return decode(kind, (self._home / name).read_bytes())
        except FileNotFoundError:
            return None
