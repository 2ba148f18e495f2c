"""What a thaw does to a live directory, step by step, each with its undoing.

New things wait in the area as new.N, old ones go there as old.N. Whether a step was done is seen
from where things are, never remembered: so undoing may be interrupted and repeated.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Mapping, Sequence

from ortet._util.codec import Record
from ortet._util.failpoints import reach
from ortet.errors import Conflict
from ortet.history.records import Entry
from ortet.machines.capture.entry import GONE, read_xattrs
from ortet.machines.dirfd import Dirs, movable
from ortet.machines.restore.write_entry import NameTarget, Target, Xattrs, impose

Stats = Mapping[bytes, os.stat_result | None]


class Keep(Record, frozen=True, tag="keep"):
    """What is at `path` goes to old.N: by a link if a file takes its name, else by a rename."""

    path: bytes
    slot: int
    link: bool


class Place(Record, frozen=True, tag="place"):
    """new.N goes to `path`. Of a directory only the inode tells whether it is still ours."""

    path: bytes
    slot: int
    inode: int
    size: int
    mtime: int


class Drop(Record, frozen=True, tag="drop"):
    """The directory at `path`, empty by now, is removed; a Meta before it knows how it was."""

    path: bytes


class Meta(Record, frozen=True, tag="meta"):
    """How the metadata at `path` is before anything of it is changed."""

    path: bytes
    mode: int
    uid: int
    gid: int
    mtime: int
    xattrs: Xattrs


Step = Keep | Place | Drop | Meta


def target_at(dirs: Dirs, path: bytes, mode: int) -> Target:
    """A live path whose metadata is read or set; files are not opened: they may be closed to us."""
    return Target(dirs.fd(path)) if stat.S_ISDIR(mode) else NameTarget(*dirs.parent(path))


def meta_of(dirs: Dirs, path: bytes, mode: int) -> Meta:
    target = target_at(dirs, path, mode)
    now = target.stat()
    xattrs = read_xattrs(target.place)
    return Meta(path, now.st_mode, now.st_uid, now.st_gid, now.st_mtime_ns, xattrs)


def lstat(at: int, name: bytes) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=at, follow_symlinks=False)
    except FileNotFoundError:
        return None


def changed(path: bytes) -> Conflict:
    shown = os.fsdecode(path)
    return Conflict(
        "changed_meanwhile",
        f"{shown} was changed while we looked: it was left as it is, repeat the call",
        path=shown,
    )


# doing


def act(dirs: Dirs, area: int, steps: Sequence[Step], stats: Stats) -> None:
    """Do all steps; Conflict when a path does not look any more as it did in `stats`."""
    for step in steps:
        if isinstance(step, Meta):
            if stat.S_ISDIR(step.mode):
                _open_up(dirs, step)
        elif isinstance(step, Keep):
            _keep(dirs, area, step)
            reach("thaw.kept")
        elif isinstance(step, Drop):
            dirs.forget(step.path)
            at, name = dirs.parent(step.path)
            os.rmdir(name, dir_fd=at)
            reach("thaw.dropped")
        else:
            _put(dirs, area, step)
            reach("thaw.placed")
    for step in steps:
        if isinstance(step, Keep):
            _confirm(area, step, stats)


def _open_up(dirs: Dirs, meta: Meta) -> None:
    """Let an ordinary user change names in a directory of its own, whatever its mode says."""
    if os.geteuid() and meta.mode & 0o700 != 0o700:
        target = NameTarget(*dirs.parent(meta.path)) if meta.path else Target(dirs.fd(b""))
        target.chmod(stat.S_IMODE(meta.mode) | 0o700)


def _keep(dirs: Dirs, area: int, step: Keep) -> None:
    slot = b"old.%d" % step.slot
    at, name = dirs.parent(step.path)
    if step.link:  # so that the name never misses, for whoever reads it now
        with contextlib.suppress(OSError):
            os.link(name, slot, src_dir_fd=at, dst_dir_fd=area, follow_symlinks=False)
            return
    dirs.forget(step.path)
    with movable(at, name):
        os.rename(name, slot, src_dir_fd=at, dst_dir_fd=area)


def _put(dirs: Dirs, area: int, step: Place) -> None:
    at, name = dirs.parent(step.path)
    now, kept = lstat(at, name), lstat(area, b"old.%d" % step.slot)
    if now is not None and (kept is None or not os.path.samestat(now, kept)):
        raise changed(step.path)
    slot = b"new.%d" % step.slot
    with movable(area, slot):
        os.rename(slot, name, src_dir_fd=area, dst_dir_fd=at)


def _confirm(area: int, step: Keep, stats: Stats) -> None:
    """What we took away is what we had looked at: nobody wrote to it between the two.

    The inode is not asked: an overlay may give another one to a file that is linked or moved.
    """
    kept, was = lstat(area, b"old.%d" % step.slot), stats.get(step.path)
    if kept is None or was is None or stat.S_ISDIR(was.st_mode):
        return
    if (kept.st_mode, kept.st_size, kept.st_mtime_ns) != (
        was.st_mode,
        was.st_size,
        was.st_mtime_ns,
    ):
        raise changed(step.path)


# undoing


def undo(root: int, area: int, steps: Sequence[Step]) -> None:
    """Bring back what was there. What somebody put or changed at a path meanwhile is left alone."""
    metas = [step for step in steps if isinstance(step, Meta)]
    with Dirs(root) as dirs:
        for meta in metas:
            with _if_there():
                if stat.S_ISDIR(meta.mode):
                    _open_up(dirs, meta)
        for step in reversed(steps):
            with _if_there():
                if isinstance(step, Place):
                    _unplace(dirs, area, step)
                elif isinstance(step, Keep):
                    _unkeep(dirs, area, step)
                elif isinstance(step, Drop):
                    _undrop(dirs, step)
            reach("thaw.undo")
        for meta in reversed(metas):
            with _if_there():
                _unmeta(dirs, meta)


def _unplace(dirs: Dirs, area: int, step: Place) -> None:
    slot = b"new.%d" % step.slot
    at, name = dirs.parent(step.path)
    now = lstat(at, name)
    if lstat(area, slot) is not None or now is None or now.st_ino != step.inode:
        return
    if not stat.S_ISDIR(now.st_mode) and (now.st_size, now.st_mtime_ns) != (step.size, step.mtime):
        return
    dirs.forget(step.path)
    with movable(at, name):
        os.rename(name, slot, src_dir_fd=at, dst_dir_fd=area)


def _unkeep(dirs: Dirs, area: int, step: Keep) -> None:
    slot = b"old.%d" % step.slot
    if lstat(area, slot) is None:
        return
    at, name = dirs.parent(step.path)
    if lstat(at, name) is None:
        with movable(area, slot):
            os.rename(slot, name, src_dir_fd=area, dst_dir_fd=at)


def _undrop(dirs: Dirs, step: Drop) -> None:
    at, name = dirs.parent(step.path)
    if lstat(at, name) is None:
        os.mkdir(name, 0o700, dir_fd=at)


def _unmeta(dirs: Dirs, meta: Meta) -> None:
    target = target_at(dirs, meta.path, meta.mode)
    if stat.S_IFMT(target.stat().st_mode) == stat.S_IFMT(meta.mode):
        entry = Entry(b"", meta.mode, meta.mtime, meta.uid, meta.gid)
        impose(target, entry, xattrs=meta.xattrs, lose=lambda *_: None)


@contextlib.contextmanager
def _if_there() -> Iterator[None]:
    """Go on without what somebody else has taken away."""
    try:
        yield
    except OSError as error:
        if error.errno not in GONE:
            raise
