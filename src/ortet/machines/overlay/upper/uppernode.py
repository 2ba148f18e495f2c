"""One directory of an upper directory, as the last scan found it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from ortet.history.records import TreeEntry
from ortet.history.tree.tree import TreeRef, Trees
from ortet.ids import Oid
from ortet.machines.capture.entry import clamped_mtime

Stamp = tuple[int, int, int, int]
"""ctime, mtime, size, inode. A file with an unchanged stamp is not read again."""

Marks = tuple[bool, bytes]
"""The marks of overlayfs on a directory: opaque, and the redirect."""


def stamp(st: os.stat_result) -> Stamp:
    return st.st_ctime_ns, st.st_mtime_ns, st.st_size, st.st_ino


class UpperDirectory:
    """A directory: its stat, its names, the lower directory below it, and its merged entry.

    Attributes:
        below: The lower directory that shows through, at the path `origin`; None if there is none.
        changes: Changes that `entry` does not have yet. They are kept if a scan fails.
        open_fds: Open descriptors of its files.
    """

    __slots__ = (
        "below",
        "changes",
        "clamped_mtime",
        "content_inodes",
        "ctime",
        "depth",
        "dirs",
        "dropped",
        "entry",
        "files",
        "gid",
        "ino",
        "listed",
        "marks",
        "metadata_changed",
        "mode",
        "mtime",
        "name",
        "name_count",
        "open_fds",
        "origin",
        "parent",
        "path",
        "rules_text",
        "skipped",
        "uid",
        "view_wd",
        "wd",
        "whiteouts",
        "xattrs",
    )

    def __init__(self, parent: UpperDirectory | None, name: str, path: bytes) -> None:
        self.parent = parent
        self.name = name
        self.path = path
        self.ino = self.ctime = self.mtime = self.clamped_mtime = self.mode = self.uid = (
            self.gid
        ) = 0
        self.marks: Marks | None = None
        self.below: TreeEntry | None = None
        self.origin: bytes | None = None
        self.xattrs = b""
        self.entry: TreeEntry | None = None
        self.metadata_changed = True  # its metadata is newer than `entry`
        self.rules_text: bytes | None = None  # the text of its ignore file
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.name_count = 0  # number of names at the last visit
        self.dropped = False  # no longer part of the tree
        self.wd = self.view_wd = -1  # watches on it and on its merged directory
        self.open_fds: dict[str, int] = {}
        self.content_inodes: dict[bytes, int] = {}  # files with content of their own
        self.clear()

    def clear(self) -> None:
        """Forget all names. The caller must close the descriptors first."""
        self.listed = False  # all of its names are known
        self.files: dict[str, Stamp] = {}  # everything but directories and whiteouts
        self.whiteouts: set[str] = set()
        self.dirs: dict[str, UpperDirectory] = {}
        self.skipped: set[str] = set()  # ignored directories
        self.changes: dict[bytes, TreeEntry | None] = {}
        self.entry = None

    def names(self) -> set[str]:
        return self.files.keys() | self.whiteouts | self.dirs.keys() | self.skipped

    def recount(self) -> int:
        """Return how many more names there are than at the last visit, without directories."""
        before, self.name_count = self.name_count, len(self.files) + len(self.whiteouts)
        return self.name_count - before

    def drop(self, name: str) -> None:
        self.files.pop(name, None)
        self.dirs.pop(name, None)
        self.whiteouts.discard(name)
        self.skipped.discard(name)
        self.content_inodes.pop(os.fsencode(name), None)

    def clear_watch(self, wd: int) -> None:
        self.wd = -1 if self.wd == wd else self.wd
        self.view_wd = -1 if self.view_wd == wd else self.view_wd

    def update_stat(self, st: os.stat_result) -> bool:
        """Record the stat. Return True if it changed."""
        if st.st_ctime_ns == self.ctime and st.st_ino == self.ino and st.st_mtime_ns == self.mtime:
            return False
        self.ino, self.ctime, self.mtime = st.st_ino, st.st_ctime_ns, st.st_mtime_ns
        self.mode, self.uid, self.gid = st.st_mode, st.st_uid, st.st_gid
        self.clamped_mtime = clamped_mtime(st)
        self.metadata_changed = True
        self.listed = False
        return True

    def walk(self) -> Iterator[UpperDirectory]:
        """Yield this directory and all below it, parents first."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack += node.dirs.values()


def directory_entry(trees: Trees, node: UpperDirectory, *, keep_owners: bool) -> TreeEntry:
    """Return the merged entry of a directory.

    Without `keep_owners` the owner is that of the lower directory.
    """
    base, below = node.entry or node.below, node.below
    tree = trees.empty() if base is None else TreeRef(Oid(base.data), base.cid)
    if node.changes:
        tree = trees.patch(tree.oid, node.changes)
    uid, gid = node.uid, node.gid
    if below is not None and not keep_owners:
        uid, gid = below.uid, below.gid
    name = os.fsencode(node.name)
    return TreeEntry(
        name, node.mode, node.clamped_mtime, uid, gid, 0, tree.oid, tree.cid, node.xattrs
    )


def is_whiteout(st: os.stat_result) -> bool:
    """Return True for a whiteout of overlayfs."""
    return stat.S_ISCHR(st.st_mode) and st.st_rdev == 0
