"""Files of a machine that are no state (ignored, or too large): found, and laid where another
machine, or the same one with other processes, has them too. The store has nothing of them."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ortet.history.records import Entry
from ortet.history.tree.tree import Trees
from ortet.machines.capture.hardlinks import join
from ortet.machines.capture.ignore_rules import POINTER, Rules
from ortet.machines.dirfd import STAGE, directory
from ortet.machines.overlay.upper.uppermarks import metacopy, oversize, read_marks
from ortet.machines.restore.clone import FICLONE
from ortet.machines.restore.write_entry import Target, Writer

MOST = 2 << 30
"""Bytes that are copied for a fork; what the file system can share is not copied."""

How = Callable[["Ignored", "Found", bytes], bool]
"""Puts a file at a new path; False when it did not."""


class Found(NamedTuple):
    path: bytes
    st: os.stat_result

    @property
    def is_dir(self) -> bool:
        return stat.S_ISDIR(self.st.st_mode)


class Ignored:
    """What of the merged directory `view` is no state; it lies in `places`, topmost first: nothing
    below them has such files."""

    def __init__(
        self, view: Path, places: Sequence[Path], rules: Rules, *, root: bool = True
    ) -> None:
        self._prefix = "trusted.overlay." if root else "user.overlay."
        self._view = os.fsencode(view)
        self._places = [os.fsencode(place) for place in places]
        self._rules = rules
        self.found = list(self._look(b"", False))

    def digest(self) -> str:
        """Another when any of it changed."""
        told = hashlib.blake2b(digest_size=16)
        for path, st in self.found:
            told.update(b"%b\0%d %d %d %d\n" % (path, st.st_ino, *_version(st)))
        return told.hexdigest()

    def _look(self, at: bytes, everything: bool) -> Iterator[Found]:
        for path, st in _names(self._view, at):
            is_dir = stat.S_ISDIR(st.st_mode)
            if path.rpartition(b"/")[2].startswith((STAGE, POINTER)):
                continue
            if self._rules.ignored(path, is_dir) or oversize(self._rules, path, st) is not None:
                yield Found(path, st)
                yield from self._all(path) if is_dir else ()
            elif is_dir and (everything or self._is_here(path)):
                yield from self._look(path, everything or self._is_moved(path))

    def _all(self, at: bytes) -> Iterator[Found]:
        for path, st in _names(self._view, at):
            yield Found(path, st)
            if stat.S_ISDIR(st.st_mode):
                yield from self._all(path)

    def _is_here(self, path: bytes) -> bool:
        return any(os.path.isdir(join(place, path)) for place in self._places)

    def _is_moved(self, path: bytes) -> bool:
        """A directory that was renamed shows what lies below at another name."""
        for place in self._places:
            with suppress(OSError), directory(Path(os.fsdecode(join(place, path)))) as fd:
                if read_marks(fd, self._prefix)[1]:
                    return True
        return False

    def lay(self, to: Path, root: Entry, trees: Trees, *, writer: Writer, how: How) -> None:
        """Write it into the upper directory, or layer, `to`, where it is over the files of `root`:
        what those have, and what is there, stays. `how` is `link` or a `Copier`."""
        _Layer(self, os.fsencode(to), root, trees=trees, writer=writer, how=how).write()

    def source(self, found: Found) -> bytes | None:
        """Where a file itself lies; None when only the merged directory can tell."""
        for place in self._places:
            path = join(place, found.path)
            with suppress(OSError):
                st = os.lstat(path)
                whole = metacopy(path, self._prefix) is None and st.st_size == found.st.st_size
                return path if stat.S_ISREG(st.st_mode) and whole else None
        return None

    def merged(self, path: bytes) -> bytes:
        return join(self._view, path)


class _Layer:
    def __init__(
        self,
        ignored: Ignored,
        to: bytes,
        root: Entry,
        *,
        trees: Trees,
        writer: Writer,
        how: How,
    ) -> None:
        self._ignored = ignored
        self._to = to
        self._root = root
        self._trees = trees
        self._writer = writer
        self._how = how
        self._known: dict[bytes, Entry | None] = {b"": root}
        self._times: dict[bytes, int] = {}  # of directories that are written to
        self._linked: dict[int, bytes] = {}

    def write(self) -> None:
        self._open(b"")
        for found in self._ignored.found:
            with suppress(FileNotFoundError):  # it is gone
                self._lay(found)
        for path, mtime in reversed(self._times.items()):
            os.utime(join(self._to, path), ns=(mtime, mtime))

    def _lay(self, found: Found) -> None:
        if found.is_dir:
            self._open(found.path)
            return
        to, known = join(self._to, found.path), self._entry(found.path)
        above = found.path.rpartition(b"/")[0]
        if known is not None or not self._open(above) or os.path.lexists(to):
            return
        several = found.st.st_nlink > 1
        if several and found.st.st_ino in self._linked:
            os.link(self._linked[found.st.st_ino], to, follow_symlinks=False)
        elif self._how(self._ignored, found, to) and several:
            self._linked[found.st.st_ino] = to

    def _entry(self, path: bytes) -> Entry | None:
        """What the files below have there."""
        if path not in self._known:
            above, _, name = path.rpartition(b"/")
            parent = self._entry(above)
            is_dir = parent is not None and stat.S_ISDIR(parent.mode)
            entry = self._trees.resolve(self._root, path) if is_dir and name else None
            self._known[path] = entry
        return self._known[path]

    def _open(self, path: bytes) -> bool:
        """Have a directory to write to; False when something else has its name."""
        if path in self._times:
            return True
        entry = self._entry(path)
        if entry is not None and not stat.S_ISDIR(entry.mode):
            return False
        if path and not self._open(path.rpartition(b"/")[0]):
            return False
        place = join(self._to, path)
        if os.path.lexists(place):
            st = os.lstat(place)
            if not stat.S_ISDIR(st.st_mode):
                return False
            self._times[path] = st.st_mtime_ns
        else:
            self._make(path, place, entry)
        return True

    def _make(self, path: bytes, place: bytes, entry: Entry | None) -> None:
        os.mkdir(place, 0o700)
        if entry is None:
            shown = self._ignored.merged(path)
            st = os.lstat(shown)
            with suppress(PermissionError):  # without root all is its maker's
                os.chown(place, st.st_uid, st.st_gid)
            shutil.copystat(shown, place)
            self._times[path] = st.st_mtime_ns
        else:
            with directory(Path(os.fsdecode(place))) as fd:
                self._writer.settle(Target(fd), entry, path=path)
            self._times[path] = entry.mtime


# how a file gets there


def link(ignored: Ignored, found: Found, to: bytes) -> bool:
    """For who has no use for it in its old place."""
    source = ignored.source(found)
    if source is not None:
        try:
            os.link(source, to, follow_symlinks=False)
            return True
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EMLINK, errno.EPERM):
                raise
    return Copier(most=None)(ignored, found, to)


class Copier:
    """At most so many bytes, but for what can be shared."""

    def __init__(self, *, most: int | None) -> None:
        self._left = most
        self._clones = True

    def __call__(self, ignored: Ignored, found: Found, to: bytes) -> bool:
        st, source = found.st, ignored.source(found)
        if stat.S_ISREG(st.st_mode):
            if source is None or not self._clone(source, to):
                if self._left is not None:
                    if st.st_size > self._left:
                        return False
                    self._left -= st.st_size
                shutil.copyfile(ignored.merged(found.path), to, follow_symlinks=False)
        elif stat.S_ISLNK(st.st_mode):
            target = os.readlink(ignored.merged(found.path))
            Path(os.fsdecode(to)).symlink_to(os.fsdecode(target))
        elif stat.S_ISFIFO(st.st_mode):
            os.mkfifo(to)
        else:  # sockets and devices are made by programs
            return False
        with suppress(PermissionError):
            os.chown(to, st.st_uid, st.st_gid, follow_symlinks=False)
        shutil.copystat(ignored.merged(found.path), to, follow_symlinks=False)
        return True

    def _clone(self, source: bytes, to: bytes) -> bool:
        if not self._clones:
            return False
        with open(source, "rb") as old, open(to, "wb") as new:
            try:
                fcntl.ioctl(new.fileno(), FICLONE, old.fileno())
                return True
            except OSError:
                self._clones = False
                return False


def _names(view: bytes, at: bytes) -> Iterator[Found]:
    try:
        names = sorted(os.listdir(join(view, at)))
    except (FileNotFoundError, NotADirectoryError):  # just gone
        return
    for name in names:
        path = join(at, name)
        with suppress(FileNotFoundError):
            yield Found(path, os.lstat(join(view, path)))


def _version(st: os.stat_result) -> tuple[int, int, int]:
    return st.st_size, st.st_mtime_ns, st.st_ctime_ns
