"""The result of scans of an upper directory: files read, directories encoded, names forgotten."""

from __future__ import annotations

import os

from ortet.history.records import TreeEntry
from ortet.history.tree.tree import Trees
from ortet.ids import Oid
from ortet.machines.capture.entry import Unreadable
from ortet.machines.capture.stat_index import NEVER_RACY
from ortet.machines.dirfd import join_path
from ortet.machines.overlay.upper.entry import (
    DifferenceRules,
    UpperDirectory,
    UpperEntryReader,
    directory_entry,
    is_whiteout,
    stamp,
)
from ortet.machines.overlay.upper.fd_cache import FdCache
from ortet.machines.overlay.upper.inotify import UpperWatch

ChangedFiles = dict[str, os.stat_result]
"""Changed names that are not directories, with their stat."""

_UNKNOWN_STAMP = (0, 0, 0, 0)  # no file has this stamp, so it is read again


class UpperTree:
    """The results of scans of one upper directory. `UpperScanner` scans.

    Args:
        reader: Captures the names.
        difference: If the result is a difference from a directory of the host: its rules.

    Attributes:
        horizon: A file with a ctime at or after it is racy and compared again.
        name_count: The number of names in the upper directory.
        linked_inodes: The files with several names, with their inode.
        changed_rules: The directories whose ignore file affects lower files.
        uncertain_dirs: The directories to compare at every scan.
        unwatched_dirs: The directories without a watch for writes.
    """

    def __init__(
        self,
        trees: Trees,
        below: TreeEntry,
        *,
        reader: UpperEntryReader,
        fd_cache: FdCache,
        watch: UpperWatch,
        difference: DifferenceRules | None,
    ) -> None:
        self.reader = reader
        self.fd_cache = fd_cache
        self.watch = watch
        self.difference = difference
        self.horizon = NEVER_RACY
        self.name_count = 0
        self.linked_inodes: dict[bytes, int] = {}
        self.root = UpperDirectory(None, "", b"")
        self.root.below, self.root.origin = below, b""
        self.changed_rules: set[bytes] = set()
        self.uncertain_dirs: set[UpperDirectory] = set()
        self.unwatched_dirs: set[UpperDirectory] = set()
        self._trees = trees

    # Reading.

    def read_file(
        self, node: UpperDirectory, name: str, st: os.stat_result, *, fd: int, mapped: bool = False
    ) -> None:
        """Read a name that is not a directory, and record the change."""
        raw = os.fsencode(name)
        path = join_path(node.path, raw)
        if name not in node.files:
            self.forget_name(node, name)
        self.reader.oversize_losses.pop(path, None)
        lost, inode, before = (
            len(self.reader.losses),
            st.st_ino,
            node.files.get(name, _UNKNOWN_STAMP),
        )
        try:
            entry, st = self.reader.read_entry(node, raw, st, fd=fd, path=path, mapped=mapped)
        except Unreadable as error:
            self.reader.losses.append(error.loss)
            node.files[name] = _UNKNOWN_STAMP  # read and reported again by the next scan
            return
        if st.st_ino != inode:
            self.fd_cache.release(node, name)
        if is_whiteout(st):
            node.whiteouts.add(name)
            node.files.pop(name, None)
        else:
            certain = st.st_ctime_ns < self.horizon and len(self.reader.losses) == lost
            was = node.files[name] = stamp(st) if certain else _UNKNOWN_STAMP
            self.fd_cache.add(node, name, fd, was)
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

    def fold_all(self, visited: list[UpperDirectory]) -> None:
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
        entry = directory_entry(self._trees, node, keep_owners=self.reader.is_root)
        if self.difference is not None:
            entry = self.difference.directory_entry(node, entry)
        if node.parent is not None and entry != node.entry:
            node.parent.changes[entry.name] = entry if self._is_change(node, entry) else None
        node.entry, node.changes, node.metadata_changed = entry, {}, False

    def _is_change(self, node: UpperDirectory, entry: TreeEntry) -> bool:
        """Return False for a directory that is no part of a difference."""
        if self.difference is None or entry.data != self._trees.empty().oid:
            return True
        return self.difference.has_own_changes(node, entry)

    # Forgetting.

    def forget_name(self, node: UpperDirectory, name: str) -> None:
        """Forget a name and everything below it."""
        self.fd_cache.release(node, name)
        path = join_path(node.path, os.fsencode(name))
        child = node.dirs.get(name)
        if child is not None:
            self.release(child)
            self._forget_below(path)
            self.fd_cache.forget_directory(path)
            self.reader.rules.remove_below(path)
        self.linked_inodes.pop(path, None)
        self.reader.oversize_losses.pop(path, None)
        node.drop(name)

    def forget_contents(self, node: UpperDirectory) -> None:
        """Forget everything in a directory."""
        self.fd_cache.release_all(node)
        for child in node.dirs.values():
            self.release(child)
        self._forget_below(node.path)
        node.clear()

    def release(self, top: UpperDirectory) -> None:
        """Release the resources of a directory that is no longer part of the tree, and below it."""
        for node in top.walk():
            self.fd_cache.release_all(node)
            self.watch.remove(node)
            self.uncertain_dirs.discard(node)
            self.unwatched_dirs.discard(node)
            self.name_count -= node.name_count
            node.dropped = True

    def _forget_below(self, path: bytes) -> None:
        """Remove everything that is stored by path for names in a directory."""
        below = path + b"/" if path else b""
        for table in (self.linked_inodes, self.reader.oversize_losses):
            for name in [name for name in table if name.startswith(below)]:
                del table[name]
        self.changed_rules = {
            name for name in self.changed_rules if not name.startswith(below) or name == path
        }
