"""Finds the ignored files of a machine, and writes them where another machine needs them.

Ignored files (by rule, or too large) are not in the store. The other machine is a fork, or the same
machine after a restore of its processes.
"""

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

from msgspec.structs import replace

from ortet.history.records import TreeEntry
from ortet.history.tree.tree import Trees
from ortet.machines.base import Loss
from ortet.machines.capture.ignore_rules import POINTER_FILE, IgnoreRules
from ortet.machines.dirfd import STAGE_PREFIX, join_path, open_directory
from ortet.machines.overlay.context import EngineContext
from ortet.machines.overlay.layers.store import IGNORED_LAYER_PREFIX, LayerStack
from ortet.machines.overlay.upper.entry import metacopy_redirect, oversize_loss, read_marks
from ortet.machines.restore.write_entry import EntryWriter, OpenTarget
from ortet.machines.restore.write_tree import FICLONE

MAX_COPIED_BYTES = 2 << 30
"""The most bytes to copy for a fork. Data that the file system can share does not count."""

PutFile = Callable[["IgnoredFiles", "IgnoredFile", bytes], bool]
"""A function that creates a file at a new path. It returns False if it did not."""


class IgnoredFile(NamedTuple):
    path: bytes
    st: os.stat_result

    @property
    def is_dir(self) -> bool:
        return stat.S_ISDIR(self.st.st_mode)


class IgnoredFiles:
    """The ignored files of the merged directory `view`.

    Only `layer_dirs`, topmost first, contain ignored files; the layers below them do not.
    """

    def __init__(
        self, view: Path, layer_dirs: Sequence[Path], rules: IgnoreRules, *, is_root: bool = True
    ) -> None:
        self._prefix = "trusted.overlay." if is_root else "user.overlay."
        self._view = os.fsencode(view)
        self._layer_dirs = [os.fsencode(place) for place in layer_dirs]
        self._rules = rules
        self.files = list(self._find(b"", False))

    def digest(self) -> str:
        """Return a digest that changes with any of the files."""
        digest = hashlib.blake2b(digest_size=16)
        for path, st in self.files:
            digest.update(b"%b\0%d %d %d %d\n" % (path, st.st_ino, *_version(st)))
        return digest.hexdigest()

    def _find(self, directory: bytes, everything: bool) -> Iterator[IgnoredFile]:
        for path, st in _names(self._view, directory):
            is_dir = stat.S_ISDIR(st.st_mode)
            if path.rpartition(b"/")[2].startswith((STAGE_PREFIX, POINTER_FILE)):
                continue
            if (
                self._rules.is_ignored(path, is_dir)
                or oversize_loss(self._rules, path, st) is not None
            ):
                yield IgnoredFile(path, st)
                yield from self._all(path) if is_dir else ()
            elif is_dir and (everything or self._is_in_layers(path)):
                yield from self._find(path, everything or self._is_moved(path))

    def _all(self, directory: bytes) -> Iterator[IgnoredFile]:
        for path, st in _names(self._view, directory):
            yield IgnoredFile(path, st)
            if stat.S_ISDIR(st.st_mode):
                yield from self._all(path)

    def _is_in_layers(self, path: bytes) -> bool:
        return any(os.path.isdir(join_path(place, path)) for place in self._layer_dirs)

    def _is_moved(self, path: bytes) -> bool:
        """Return True for a renamed directory, which shows lower files under another name."""
        for place in self._layer_dirs:
            with suppress(OSError), open_directory(Path(os.fsdecode(join_path(place, path)))) as fd:
                if read_marks(fd, self._prefix)[1]:
                    return True
        return False

    def write_to(
        self, target: Path, root: TreeEntry, trees: Trees, *, writer: EntryWriter, put_file: PutFile
    ) -> None:
        """Write the files into the upper directory or layer `target`, above the files of `root`.

        Files of `root` and files that exist in `target` are kept. `put_file` is `link_file` or a
        `Copier`.
        """
        _IgnoredFilesWriter(
            self, os.fsencode(target), root, trees=trees, writer=writer, put_file=put_file
        ).write()

    def source_path(self, file: IgnoredFile) -> bytes | None:
        """Return the path of a file in its layer, or None if only the merged view has it."""
        for place in self._layer_dirs:
            path = join_path(place, file.path)
            with suppress(OSError):
                st = os.lstat(path)
                whole = (
                    metacopy_redirect(path, self._prefix) is None and st.st_size == file.st.st_size
                )
                return path if stat.S_ISREG(st.st_mode) and whole else None
        return None

    def merged_path(self, path: bytes) -> bytes:
        return join_path(self._view, path)


class _IgnoredFilesWriter:
    def __init__(
        self,
        ignored: IgnoredFiles,
        target: bytes,
        root: TreeEntry,
        *,
        trees: Trees,
        writer: EntryWriter,
        put_file: PutFile,
    ) -> None:
        self._ignored = ignored
        self._target = target
        self._root = root
        self._trees = trees
        self._writer = writer
        self._put_file = put_file
        self._lower_entries: dict[bytes, TreeEntry | None] = {b"": root}
        self._dir_mtimes: dict[bytes, int] = {}  # mtimes to set after all files are written
        self._linked: dict[int, bytes] = {}

    def write(self) -> None:
        self._ensure_directory(b"")
        for ignored in self._ignored.files:
            with suppress(FileNotFoundError):  # the file is gone
                self._write_file(ignored)
        for path, mtime in reversed(self._dir_mtimes.items()):
            os.utime(join_path(self._target, path), ns=(mtime, mtime))

    def _write_file(self, file: IgnoredFile) -> None:
        if file.is_dir:
            self._ensure_directory(file.path)
            return
        to, known = join_path(self._target, file.path), self._lower_entry(file.path)
        above = file.path.rpartition(b"/")[0]
        if known is not None or not self._ensure_directory(above) or os.path.lexists(to):
            return
        several = file.st.st_nlink > 1
        if several and file.st.st_ino in self._linked:
            os.link(self._linked[file.st.st_ino], to, follow_symlinks=False)
        elif self._put_file(self._ignored, file, to) and several:
            self._linked[file.st.st_ino] = to

    def _lower_entry(self, path: bytes) -> TreeEntry | None:
        """Return the entry of a path in the layers below."""
        if path not in self._lower_entries:
            above, _, name = path.rpartition(b"/")
            parent = self._lower_entry(above)
            is_dir = parent is not None and stat.S_ISDIR(parent.mode)
            entry = self._trees.resolve(self._root, path) if is_dir and name else None
            self._lower_entries[path] = entry
        return self._lower_entries[path]

    def _ensure_directory(self, path: bytes) -> bool:
        """Create a directory if needed. Return False if another file has its name."""
        if path in self._dir_mtimes:
            return True
        entry = self._lower_entry(path)
        if entry is not None and not stat.S_ISDIR(entry.mode):
            return False
        if path and not self._ensure_directory(path.rpartition(b"/")[0]):
            return False
        place = join_path(self._target, path)
        if os.path.lexists(place):
            st = os.lstat(place)
            if not stat.S_ISDIR(st.st_mode):
                return False
            self._dir_mtimes[path] = st.st_mtime_ns
        else:
            self._make_directory(path, place, entry)
        return True

    def _make_directory(self, path: bytes, place: bytes, entry: TreeEntry | None) -> None:
        os.mkdir(place, 0o700)
        if entry is None:
            shown = self._ignored.merged_path(path)
            st = os.lstat(shown)
            with suppress(PermissionError):  # without root, all files belong to the user
                os.chown(place, st.st_uid, st.st_gid)
            shutil.copystat(shown, place)
            self._dir_mtimes[path] = st.st_mtime_ns
        else:
            with open_directory(Path(os.fsdecode(place))) as fd:
                self._writer.apply_metadata(OpenTarget(fd), entry, path=path)
            self._dir_mtimes[path] = entry.mtime


# Functions that create one file.


def link_file(ignored: IgnoredFiles, file: IgnoredFile, target: bytes) -> bool:
    """Create a hardlink to the file, or a copy. For a machine that no longer needs the original."""
    source = ignored.source_path(file)
    if source is not None:
        try:
            os.link(source, target, follow_symlinks=False)
            return True
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EMLINK, errno.EPERM):
                raise
    return Copier(max_bytes=None)(ignored, file, target)


class Copier:
    """Clones files, or copies up to `max_bytes` bytes."""

    def __init__(self, *, max_bytes: int | None) -> None:
        self._bytes_left = max_bytes
        self._clones = True

    def __call__(self, ignored: IgnoredFiles, file: IgnoredFile, to: bytes) -> bool:
        st, source = file.st, ignored.source_path(file)
        if stat.S_ISREG(st.st_mode):
            if source is None or not self._clone(source, to):
                if self._bytes_left is not None:
                    if st.st_size > self._bytes_left:
                        return False
                    self._bytes_left -= st.st_size
                shutil.copyfile(ignored.merged_path(file.path), to, follow_symlinks=False)
        elif stat.S_ISLNK(st.st_mode):
            target = os.readlink(ignored.merged_path(file.path))
            Path(os.fsdecode(to)).symlink_to(os.fsdecode(target))
        elif stat.S_ISFIFO(st.st_mode):
            os.mkfifo(to)
        else:  # programs create sockets and devices themselves
            return False
        with suppress(PermissionError):
            os.chown(to, st.st_uid, st.st_gid, follow_symlinks=False)
        shutil.copystat(ignored.merged_path(file.path), to, follow_symlinks=False)
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


def _names(view: bytes, directory: bytes) -> Iterator[IgnoredFile]:
    try:
        names = sorted(os.listdir(join_path(view, directory)))
    except (FileNotFoundError, NotADirectoryError):  # removed in the meantime
        return
    for name in names:
        path = join_path(directory, name)
        with suppress(FileNotFoundError):
            yield IgnoredFile(path, os.lstat(join_path(view, path)))


def _version(st: os.stat_result) -> tuple[int, int, int]:
    return st.st_size, st.st_mtime_ns, st.st_ctime_ns


# Gives ignored files to the forks of a machine, and keeps them when a machine is restored.

_MAX_REPORTED_LOSSES = 20


def add_ignored_layer(
    context: EngineContext, stack: LayerStack, ignored: IgnoredFiles | None
) -> tuple[LayerStack, list[Loss]]:
    """Return a stack for forks, with a layer of copies of the ignored files on top.

    The layer is built once, as long as the files do not change. Forks of an idle overlay machine
    need no copies, because its upper directory becomes a layer.
    """
    if ignored is None or not ignored.files:
        return stack, []
    root, empty = stack.root, context.trees.empty()

    def fill(place: Path) -> None:
        writer = EntryWriter(context.objects)
        with open_directory(place) as fd:
            writer.apply_metadata(OpenTarget(fd), root, path=b"")
        ignored.write_to(
            place, root, context.trees, writer=writer, put_file=Copier(max_bytes=MAX_COPIED_BYTES)
        )

    name = (
        f"{IGNORED_LAYER_PREFIX}{ignored.digest()}-"
        f"{context.objects.hasher.oid(root.data).hex()[:16]}"
    )
    try:
        nothing = replace(root, data=empty.oid, cid=empty.cid)
        place = context.layer_store.ensure_layer(name, nothing, fill, shared=False)
    except OSError as error:  # a fork without these files is better than none
        why = f"files that commits leave out did not come along: {error.strerror}"
        return stack, [Loss("", "ignored", why)]
    losses = [
        _not_copied_loss(found)
        for found in ignored.files
        if _was_not_copied(context, found, place, root)
    ]
    return replace(stack, layers=[name, *stack.layers]), losses[:_MAX_REPORTED_LOSSES]


def link_ignored_files(
    context: EngineContext, ignored: IgnoredFiles, upper: Path, root: TreeEntry
) -> None:
    """Link the ignored files into the upper directory of the machine that replaces the old one.

    The old machine ends, so the files themselves can be used.
    """
    ignored.write_to(
        upper, root, context.trees, writer=EntryWriter(context.objects), put_file=link_file
    )


def _was_not_copied(
    context: EngineContext, file: IgnoredFile, place: Path, root: TreeEntry
) -> bool:
    return (
        stat.S_ISREG(file.st.st_mode)
        and not os.path.lexists(place / os.fsdecode(file.path))
        and context.trees.resolve(root, file.path) is None
    )


def _not_copied_loss(file: IgnoredFile) -> Loss:
    why = (
        f"commits leave it out, and with it forks would get more than {MAX_COPIED_BYTES} bytes of "
        "such files: "
        "copy it where it is needed"
    )
    return Loss(os.fsdecode(file.path), "ignored", why)
