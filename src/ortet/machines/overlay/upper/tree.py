"""The result of scans of an upper directory: files read, directories encoded, names forgotten."""

from __future__ import annotations

import os
from pathlib import Path

from ortet.history.records import TreeEntry
from ortet.history.tree.tree import Trees
from ortet.ids import Oid
from ortet.machines.capture.entry import Unreadable
from ortet.machines.capture.hardlinks import join_path
from ortet.machines.capture.stat_index import NEVER_RACY
from ortet.machines.overlay.upper.entry import UpperEntryReader
from ortet.machines.overlay.upper.fd_cache import FdBudget, FdCache
from ortet.machines.overlay.upper.inotify import UpperWatch
from ortet.machines.overlay.upper.uppernode import (
    UpperDirectory,
    directory_entry,
    is_whiteout,
    stamp,
)
from ortet.objects.base import ObjectStore

ChangedFiles = dict[str, os.stat_result]
"""Changed names that are not directories, with their stat."""

_UNKNOWN_STAMP = (0, 0, 0, 0)  # no file has this stamp, so it is read again


class UpperTree:
    """One upper directory and what scans found in it. Only one thread may use it at a time.

    Args:
        below: The root entry of the merged lower layers.
        is_root: The overlay is mounted by root, whose marks are other xattrs than those of a user.
        view: The path of the merged directory, if it can be watched.

    A file with a ctime at or after `horizon` is racy and compared again.
    """

    def __init__(
        self,
        objects: ObjectStore,
        trees: Trees,
        directory: Path,
        *,
        below: TreeEntry,
        is_root: bool,
        fd_budget: FdBudget | None = None,
        watch: UpperWatch | None = None,
        view: bytes = b"",
        entry_reader: UpperEntryReader | None = None,
    ) -> None:
        self.horizon = NEVER_RACY
        self.name_count = 0  # names in the upper directory
        self.linked_inodes: dict[bytes, int] = {}  # files with several names -> inode
        self.root = UpperDirectory(None, "", b"")
        self.root.below, self.root.origin = below, b""
        self._objects = objects
        self._trees = trees
        self._entry_reader = entry_reader or UpperEntryReader(
            objects, trees, below, is_root=is_root
        )
        self._changed_rules: set[bytes] = set()
        self._changed_dirs = {self.root}  # directories with an event
        self._changed_files: dict[
            UpperDirectory, ChangedFiles
        ] = {}  # changed files in other directories
        self._written_fds: set[int] = set()  # descriptors of written files
        self._unwatched_dirs: set[UpperDirectory] = set()  # directories without a watch for writes
        self._view = view
        self._uncertain_dirs: set[UpperDirectory] = set()  # directories to compare at every scan
        self._watch = watch or UpperWatch()
        self._fd_cache = FdCache(directory, fd_budget or FdBudget())

    # Reading.

    def _read_file(
        self, node: UpperDirectory, name: str, st: os.stat_result, *, fd: int, mapped: bool = False
    ) -> None:
        """Read a name that is not a directory, and record the change."""
        raw = os.fsencode(name)
        path = join_path(node.path, raw)
        if name not in node.files:
            self._forget_name(node, name)
        self._entry_reader.oversize_losses.pop(path, None)
        lost, inode, before = (
            len(self._entry_reader.losses),
            st.st_ino,
            node.files.get(name, _UNKNOWN_STAMP),
        )
        try:
            entry, st = self._entry_reader.read_entry(
                node, raw, st, fd=fd, path=path, mapped=mapped
            )
        except Unreadable as error:
            self._entry_reader.losses.append(error.loss)
            node.files[name] = _UNKNOWN_STAMP  # read and reported again by the next scan
            return
        if st.st_ino != inode:
            self._fd_cache.release(node, name)
        if is_whiteout(st):
            node.whiteouts.add(name)
            node.files.pop(name, None)
        else:
            certain = st.st_ctime_ns < self.horizon and len(self._entry_reader.losses) == lost
            was = node.files[name] = stamp(st) if certain else _UNKNOWN_STAMP
            self._fd_cache.add(node, name, fd, was)
        if entry is not None and st.st_nlink > 1:
            self.linked_inodes[path] = st.st_ino
        else:
            self.linked_inodes.pop(path, None)
        moved = (
            before is not _UNKNOWN_STAMP and before[1] != st.st_mtime_ns
        )  # so the entry surely differs
        if moved or node.entry is None or self._trees.lookup(Oid(node.entry.data), raw) != entry:
            node.changes[raw] = entry
        else:
            node.changes.pop(raw, None)

    # Encoding.

    def _fold_all(self, visited: list[UpperDirectory]) -> None:
        """Encode changed directories, the deepest first, and report each to its parent."""
        levels: dict[int, set[UpperDirectory]] = {}
        for node in visited:
            levels.setdefault(node.depth, set()).add(node)
        for depth in range(max(levels), -1, -1):
            for node in levels.get(depth, ()):
                if not node.dropped and (
                    node.changes or node.metadata_changed or node.entry is None
                ):
                    self._fold(node)
                    if node.parent is not None and node.parent.changes:
                        levels.setdefault(depth - 1, set()).add(node.parent)

    def _fold(self, node: UpperDirectory) -> None:
        """Compute a directory's entry, and report it to the parent if it changed."""
        entry = self._summary(node)
        if node.parent is not None and entry != node.entry:
            node.parent.changes[entry.name] = entry
        node.entry, node.changes, node.metadata_changed = entry, {}, False

    def _summary(self, node: UpperDirectory) -> TreeEntry:
        return directory_entry(self._trees, node, keep_owners=self._entry_reader.is_root)

    # Forgetting.

    def _forget_name(self, node: UpperDirectory, name: str) -> None:
        """Forget a name and everything below it."""
        self._fd_cache.release(node, name)
        path = join_path(node.path, os.fsencode(name))
        child = node.dirs.get(name)
        if child is not None:
            self._release(child)
            self._forget_below(path)
            self._fd_cache.forget_directory(path)
            self._entry_reader.rules.remove_below(path)
        self.linked_inodes.pop(path, None)
        self._entry_reader.oversize_losses.pop(path, None)
        node.drop(name)

    def _forget_contents(self, node: UpperDirectory) -> None:
        """Forget everything in a directory."""
        self._fd_cache.release_all(node)
        for child in node.dirs.values():
            self._release(child)
        self._forget_below(node.path)
        node.clear()

    def _release(self, top: UpperDirectory) -> None:
        """Release the resources of a directory that is no longer part of the tree, and below it."""
        for node in top.walk():
            self._fd_cache.release_all(node)
            self._watch.remove(node)
            self._uncertain_dirs.discard(node)
            self._unwatched_dirs.discard(node)
            self.name_count -= node.name_count
            node.dropped = True

    def _forget_below(self, path: bytes) -> None:
        """Remove everything that is stored by path for names in a directory."""
        below = path + b"/" if path else b""
        for table in (self.linked_inodes, self._entry_reader.oversize_losses):
            for at in [at for at in table if at.startswith(below)]:
                del table[at]
        self._changed_rules = {
            at for at in self._changed_rules if not at.startswith(below) or at == path
        }
