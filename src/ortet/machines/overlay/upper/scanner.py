"""Scans an overlay's upper directory and applies it to the tree of the lower layers.

Overlayfs writes to an upper directory:

  - changed names, as they are now
  - a character device 0:0 for a removed name (whiteout)
  - `opaque` on a directory that hides the lower one
  - `redirect` on a renamed directory that shows the lower directory of its old name
  - `metacopy` on a file whose content is still in the lower layers
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from heapq import heapify, heappop, heappush
from pathlib import Path

from ortet.history.records import TreeEntry
from ortet.history.tree.tree import Trees
from ortet.machines.base import Loss
from ortet.machines.capture.entry import (
    GONE_ERRNOS,
    UNREADABLE_ERRNOS,
    mtime_range_loss,
    put_xattrs,
    unreadable_loss,
)
from ortet.machines.capture.ignore_rules import IGNORE_FILE, IgnoreRules
from ortet.machines.capture.stat_index import NEVER_RACY
from ortet.machines.dirfd import join_path
from ortet.machines.overlay.upper.entry import (
    DifferenceRules,
    UpperDirectory,
    UpperEntryReader,
    is_whiteout,
    read_marks,
    read_rules,
    stamp,
)
from ortet.machines.overlay.upper.fd_cache import FdBudget, FdCache
from ortet.machines.overlay.upper.inotify import UpperWatch
from ortet.machines.overlay.upper.tree import ChangedFiles, UpperTree
from ortet.objects.base import ObjectStore
from ortet.objects.blobs import get_bytes


def merge_hardlink_groups(
    root: UpperDirectory, linked: Mapping[bytes, int], below: Sequence[Sequence[bytes]]
) -> list[list[bytes]]:
    """Return the hardlink groups of the merged directory.

    `linked` maps the files of the upper directory with several names from path to inode.
    """
    paths_by_inode: dict[int, list[bytes]] = {}
    for path, inode in linked.items():
        paths_by_inode.setdefault(inode, []).append(path)
    groups = [sorted(paths) for paths in paths_by_inode.values()]
    if below:
        moved = [node for node in root.walk() if node.marks is not None and node.marks[1]]
        for names in below:
            shown = (_visible_path(path, (root, *moved)) for path in names)
            groups.append(sorted(path for path in shown if path is not None))
    return sorted(group for group in groups if len(group) > 1)


def _visible_path(path: bytes, starts: Sequence[UpperDirectory]) -> bytes | None:
    """Return the merged path of a file of the lower layers, or None if it is covered."""
    for start in starts:
        if start.origin is None or not path.startswith(start.origin):
            continue
        rest = path[len(start.origin) :].lstrip(b"/") if start.origin else path
        entry = _descend(start, rest)
        if entry is not None:
            return entry
    return None


def _descend(node: UpperDirectory, rest: bytes) -> bytes | None:
    """Return the merged path of a file below a directory, or None if it is covered."""
    while True:
        raw, _, after = rest.partition(b"/")
        name = os.fsdecode(raw)
        if name in node.files or name in node.whiteouts or name in node.skipped:
            return None
        child = node.dirs.get(name)
        if child is None:
            return join_path(node.path, rest)
        assert node.origin is not None
        if child.origin != join_path(node.origin, raw):
            return None
        node, rest = child, after


MappedFiles = Mapping[bytes, set[str]]
"""Directory -> names of files that a process has mapped for writing."""

_IGNORE_FILE_NAME = os.fsdecode(IGNORE_FILE)


class UpperScanner:
    """Scans one upper directory: the names with events, or everything.

    Only one thread may use it at a time. A file with a ctime at or after `horizon` is racy and
    compared again.

    Args:
        below: The root entry of the merged lower layers.
        is_root: The overlay is mounted by root, whose marks are other xattrs than those of a user.
        view: The path of the merged directory, if it can be watched.
        difference: The rules for a result that is a difference from a directory of the host.
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
        difference: DifferenceRules | None = None,
    ) -> None:
        self.horizon = NEVER_RACY
        self._objects = objects
        self._view = view
        self._tree = UpperTree(
            trees,
            below,
            reader=UpperEntryReader(objects, trees, below, is_root=is_root, difference=difference),
            fd_cache=FdCache(directory, fd_budget or FdBudget()),
            watch=watch or UpperWatch(),
            difference=difference,
        )
        self.root = self._tree.root
        self.linked_inodes = self._tree.linked_inodes
        self._changed_dirs = {self.root}  # directories with an event
        # changed files in other directories
        self._changed_files: dict[UpperDirectory, ChangedFiles] = {}
        self._written_fds: set[int] = set()  # descriptors of written files

    def close(self) -> None:
        self._tree.release(self.root)
        self._tree.fd_cache.close()

    @property
    def name_count(self) -> int:
        """The number of names in the upper directory."""
        return self._tree.name_count

    @property
    def losses(self) -> list[Loss]:
        """The losses of the last scan."""
        return self._tree.reader.losses

    @property
    def rules(self) -> IgnoreRules:
        return self._tree.reader.rules

    @property
    def has_ignored_files(self) -> bool:
        """True if a scan has found ignored files."""
        return self._tree.reader.has_ignored_files

    @property
    def has_changed_rules(self) -> bool:
        """True if a changed ignore file affects lower files: only a full scan can find them."""
        return bool(self._tree.changed_rules)

    def mark_changed(self, node: UpperDirectory | None) -> None:
        """Scan this directory again at the next scan; None means all directories."""
        self._changed_dirs.update(self.root.walk() if node is None else (node,))

    def mark_written(self, node: UpperDirectory, name: str) -> None:
        """Compare this file at the next scan."""
        if name in node.open_fds:
            self._written_fds.add(node.open_fds[name])

    def scan(self, mapped: MappedFiles | None = None, *, quiet: bool = False) -> TreeEntry:
        """Return the root entry of the merged directory as it is now.

        Args:
            mapped: Files that a process has mapped for writing; they are always read.
            quiet: No process of the machine runs, or ran at the last scan. So every written file
                was closed, which sent an event. Otherwise all open files are compared.
        """
        self._tree.horizon = self.horizon
        self._tree.reader.losses = []
        self._tree.watch.drain()
        self._changed_dirs |= self._tree.uncertain_dirs
        if mapped:
            self._changed_dirs |= {node for node in self.root.walk() if node.path in mapped}
        quiet = quiet and not self.linked_inodes and not self._tree.unwatched_dirs
        self._scan_changed(self._written_fds if quiet else None, mapped)
        if quiet and self.linked_inodes:  # a new hardlink: its old name got no event
            self._scan_changed(None, mapped)
        self._tree.reader.merge_losses()
        assert self.root.entry is not None
        return self.root.entry

    def _scan_changed(self, fds: set[int] | None, mapped: MappedFiles | None) -> None:
        """Scan the directories with events, and compare the open files: all, or those in `fds`."""
        for node, name, st in self._tree.fd_cache.changed_files(fds):
            if node not in self._changed_dirs:
                self._changed_files.setdefault(node, {})[name] = st
        if self._changed_dirs or self._changed_files:
            self._tree.fold_all(self._visit_all(mapped))
        # Only now, so that after a failure they are scanned again.
        self._changed_dirs, self._changed_files, self._written_fds = set(), {}, set()

    def hardlink_groups(self, below: Sequence[Sequence[bytes]]) -> list[list[bytes]]:
        """Return the hardlink groups of the merged directory.

        `below` are the groups of the lower layers.
        """
        return merge_hardlink_groups(self.root, self.linked_inodes, below)

    # Comparing.

    def _visit_all(self, mapped: MappedFiles | None) -> list[UpperDirectory]:
        """Visit the changed directories, parents first, and new directories in them."""
        visited = [
            node for node, files in self._changed_files.items() if self._reread_files(node, files)
        ]
        queue = [(node.depth, id(node), node) for node in self._changed_dirs]
        heapify(queue)
        while queue:
            _, _, node = heappop(queue)
            if node.dropped:
                continue
            visited.append(node)
            known = set(node.dirs.values())
            try:
                self._visit(node, mapped)
            except OSError as error:
                self._handle_open_error(node, error)
            for child in node.dirs.values():
                if child not in known:
                    self._changed_dirs.add(child)
                    heappush(queue, (child.depth, id(child), child))
        return visited

    def _watch_writes(self, node: UpperDirectory) -> None:
        """Watch writes in a directory, if possible."""
        if self._view:
            self._tree.watch.add_view(join_path(self._view, node.path), self, node)
        if node.view_wd < 0:
            self._tree.unwatched_dirs.add(node)
        else:
            self._tree.unwatched_dirs.discard(node)

    def _reread_files(self, node: UpperDirectory, files: ChangedFiles) -> bool:
        """Read changed files of an otherwise unchanged directory. False if it must be visited."""
        lost = len(self._tree.reader.losses)
        try:
            if _IGNORE_FILE_NAME not in files and node not in self._changed_dirs:
                fd = self._tree.fd_cache.open(node)
                for name, st in files.items():
                    self._tree.read_file(node, name, st, fd=fd)
                if node.listed and len(self._tree.reader.losses) == lost:
                    return True
        except OSError:
            pass  # it may just have been removed; the visit decides
        self._changed_dirs.add(node)
        return False

    def _visit(self, node: UpperDirectory, mapped: MappedFiles | None) -> None:
        self._tree.uncertain_dirs.add(node)  # until the visit is complete
        lost = len(self._tree.reader.losses)
        fd = self._tree.fd_cache.open(node)
        if node.wd < 0:  # before the comparison, so that no change is missed
            self._tree.watch.add(fd, self, node)
        if node.view_wd < 0:
            self._watch_writes(node)
        if node.update_stat(os.fstat(fd)) or not node.listed:
            fresh = self._list_names(node, fd)
        else:
            fresh = self._compare_known(node, fd)
        if _IGNORE_FILE_NAME in fresh and self._update_rules(node, fd):
            fresh = self._list_names(node, fd)
        for name, st in fresh.items():
            self._tree.read_file(node, name, st, fd=fd)
        for name in mapped.get(node.path, ()) if mapped else ():
            if name in node.files:
                with suppress(FileNotFoundError):
                    st = os.stat(name, dir_fd=fd, follow_symlinks=False)
                    self._tree.read_file(node, name, st, fd=fd, mapped=True)
        if node.clamped_mtime != node.mtime:
            self._tree.reader.losses.append(mtime_range_loss(node.path))
        watched = node.wd >= 0 and len(node.open_fds) == len(node.files)
        if watched and node.listed and len(self._tree.reader.losses) == lost:
            self._tree.uncertain_dirs.discard(node)
        self._tree.name_count += node.recount()

    def _compare_known(self, node: UpperDirectory, fd: int) -> ChangedFiles:
        """Compare the known names of a directory whose names have not changed."""
        held, fresh, missed = node.open_fds, {}, []
        for name, was in node.files.items():
            own = held.get(name)
            try:
                if own is not None:
                    st = os.fstat(own)
                else:
                    st = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except OSError as error:
                missed.append((name, error))
                continue
            if was != (st.st_ctime_ns, st.st_mtime_ns, st.st_size, st.st_ino):
                fresh[name] = st
        for name, why in missed:
            self._handle_stat_error(node, name, why)
        return fresh

    def _list_names(self, node: UpperDirectory, fd: int) -> ChangedFiles:
        """List a directory and compare every name, because some were added or removed."""
        if node.metadata_changed:
            self._read_attributes(node, fd)
        names = os.listdir(fd)
        if _IGNORE_FILE_NAME in names or node.rules_text is not None or node.entry is None:
            self._update_rules(node, fd)
        node.listed = node.ctime < self.horizon
        for name in node.names().difference(names):
            self._reveal_lower(node, name)
        fresh: ChangedFiles = {}
        for name in names:
            try:
                st = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except OSError as error:
                self._handle_stat_error(node, name, error)
                continue
            if stat.S_ISDIR(st.st_mode):
                self._add_directory(node, name, st)
            elif node.files.get(name) != stamp(st) and not (
                name in node.whiteouts and is_whiteout(st)
            ):
                self._tree.fd_cache.release(node, name)  # another file may have this name now
                fresh[name] = st
        return fresh

    def _add_directory(self, above: UpperDirectory, name: str, st: os.stat_result) -> None:
        """Add a directory, unless it is the known one of this name."""
        child = above.dirs.get(name)
        if name in above.skipped or (child is not None and child.ino == st.st_ino):
            return
        raw = os.fsencode(name)
        path = join_path(above.path, raw)
        self._tree.forget_name(above, name)
        if self._tree.reader.is_skipped(path, True):
            self._tree.reader.has_ignored_files = True
            above.skipped.add(name)
            above.changes[raw] = None
        else:
            above.dirs[name] = UpperDirectory(above, name, path)
            above.dirs[name].ino = st.st_ino

    def _handle_stat_error(self, node: UpperDirectory, name: str, error: OSError) -> None:
        """Handle a listed name whose stat failed: it was removed, or is not accessible."""
        node.listed = False
        if error.errno in UNREADABLE_ERRNOS:
            self._tree.reader.losses.append(
                unreadable_loss(join_path(node.path, os.fsencode(name)), error)
            )
        elif error.errno in GONE_ERRNOS:
            self._reveal_lower(node, name)
        else:
            raise error

    def _handle_open_error(self, node: UpperDirectory, error: OSError) -> None:
        """Handle a directory that cannot be opened: its last known entry stays valid."""
        if error.errno not in UNREADABLE_ERRNOS and error.errno not in GONE_ERRNOS:
            raise error
        node.listed = False
        self._tree.reader.losses.append(unreadable_loss(node.path, error))
        if node.marks is None and node.parent is not None:
            self._set_lower_directory(node, (False, b""))

    def _reveal_lower(self, node: UpperDirectory, name: str) -> None:
        """Forget a name that was removed from the upper directory, so that the lower one shows."""
        self._tree.forget_name(node, name)
        raw = os.fsencode(name)
        node.changes[raw] = self._tree.reader.lower_entry(node, raw)

    def _read_attributes(self, node: UpperDirectory, fd: int) -> None:
        """Read the xattrs of a directory. The marks of overlayfs say what is below it."""
        opaque, redirect, some = read_marks(fd, self._tree.reader.prefix)
        if node.parent is not None and node.marks != (opaque, redirect):
            self._set_lower_directory(node, (opaque, redirect))
        node.xattrs = put_xattrs(self._objects, fd) if some else b""

    def _set_lower_directory(self, node: UpperDirectory, marks: tuple[bool, bytes]) -> None:
        """Find the lower directory that shows through this one."""
        above, (opaque, redirect) = node.parent, marks
        assert above is not None
        self._tree.forget_contents(node)
        node.marks, node.below, node.origin = marks, None, None
        if opaque:
            return
        if redirect.startswith(b"/"):
            origin, lower = redirect[1:], self._tree.reader.lower_entry_at(redirect[1:])
        elif above.origin is not None:
            name = redirect or os.fsencode(node.name)
            origin, lower = (
                join_path(above.origin, name),
                self._tree.reader.lower_entry(above, name),
            )
        else:
            return
        if lower is not None and lower.is_dir:
            node.below, node.origin = lower, origin

    def _update_rules(self, node: UpperDirectory, fd: int) -> bool:
        """Read the ignore file of a directory.

        True if it changed, so that every name is read again. A difference has no ignore files:
        they are for a workspace.
        """
        if self._tree.difference is not None:
            return False
        below = self._tree.reader.lower_entry(node, IGNORE_FILE)
        ignore_text = None
        if below is not None and below.is_file:
            ignore_text = get_bytes(self._objects, below.data, below.size)
        text = read_rules(fd, ignore_text)
        if text != ignore_text and node.below is not None:
            self._tree.changed_rules.add(node.path)
        else:
            self._tree.changed_rules.discard(node.path)
        if text == node.rules_text:
            return False
        self._tree.forget_contents(node)
        node.rules_text = text
        self._tree.reader.rules.set_rules(node.path, text)
        return True
