"""What was seen in one directory of an overlay's upper layer."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from ortet.history.records import TreeEntry
from ortet.history.tree.tree import TreeRef, Trees
from ortet.ids import Oid
from ortet.machines.capture.entry import clamped_mtime

Stamp = tuple[int, int, int, int]
"""ctime, mtime, size, inode: a file whose stamp is as it was is not read again."""

Marks = tuple[bool, bytes]
"""Opaque, and the redirect: what the kernel noted on a directory."""


def stamp(st: os.stat_result) -> Stamp:
    return st.st_ctime_ns, st.st_mtime_ns, st.st_size, st.st_ino


class UpperDirectory:
    """A directory: its stat, what lies below it, its names, and the Entry they add up to.

    `below` is the directory that shows through, at `origin` in the layers below; None: none does.
    `changes` are what `entry` does not hold yet; they outlive a scan that failed. `held` are open
    descriptors of its files.
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
        self.metadata_changed = True  # its own metadata is newer than `entry`
        self.rules_text: bytes | None = None  # the ignore rules said here
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.name_count = 0  # names when it was last visited
        self.dropped = False  # it is no longer part of the tree
        self.wd = self.view_wd = -1  # watches on it and on what it is merged into
        self.open_fds: dict[str, int] = {}
        self.content_inodes: dict[bytes, int] = {}  # inodes of files that have content of their own
        self.clear()

    def clear(self) -> None:
        """Know nothing of its names; descriptors are the caller's to close first."""
        self.listed = False  # all its names are below
        self.files: dict[str, Stamp] = {}  # files and the like
        self.whiteouts: set[str] = set()  # whiteouts
        self.dirs: dict[str, UpperDirectory] = {}
        self.skipped: set[str] = set()  # directories that are no state
        self.changes: dict[bytes, TreeEntry | None] = {}
        self.entry = None

    def names(self) -> set[str]:
        return self.files.keys() | self.whiteouts | self.dirs.keys() | self.skipped

    def recount(self) -> int:
        """How many names there are more than at the last visit; directories are not counted."""
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
        """Take in its stat; True when it is not as it was."""
        if st.st_ctime_ns == self.ctime and st.st_ino == self.ino and st.st_mtime_ns == self.mtime:
            return False
        self.ino, self.ctime, self.mtime = st.st_ino, st.st_ctime_ns, st.st_mtime_ns
        self.mode, self.uid, self.gid = st.st_mode, st.st_uid, st.st_gid
        self.clamped_mtime = clamped_mtime(st)
        self.metadata_changed = True
        self.listed = False
        return True

    def walk(self) -> Iterator[UpperDirectory]:
        """This directory and all below it, parents first."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack += node.dirs.values()


def directory_entry(trees: Trees, node: UpperDirectory, *, keep_owners: bool) -> TreeEntry:
    """What its names add up to; without `owners` that of the directory below stands."""
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
    """A whiteout."""
    return stat.S_ISCHR(st.st_mode) and st.st_rdev == 0
