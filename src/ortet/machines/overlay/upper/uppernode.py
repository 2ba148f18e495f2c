"""What was seen in one directory of an overlay's upper layer."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from ortet.history.records import Entry
from ortet.history.tree.tree import TreeRef, Trees
from ortet.ids import Oid
from ortet.machines.capture.entry import state_time

Stamp = tuple[int, int, int, int]
"""ctime, mtime, size, inode: a file whose stamp is as it was is not read again."""

Marks = tuple[bool, bytes]
"""Opaque, and the redirect: what the kernel noted on a directory."""


def stamp(st: os.stat_result) -> Stamp:
    return st.st_ctime_ns, st.st_mtime_ns, st.st_size, st.st_ino


class Node:
    """A directory: its stat, what lies below it, its names, and the Entry they add up to.

    `below` is the directory that shows through, at `origin` in the layers below; None: none does.
    `changes` are what `entry` does not hold yet; they outlive a scan that failed. `held` are open
    descriptors of its files.
    """

    __slots__ = (
        "below",
        "changes",
        "counted",
        "ctime",
        "depth",
        "dirs",
        "dropped",
        "entry",
        "fresh",
        "full",
        "gid",
        "gone",
        "held",
        "ino",
        "known",
        "listed",
        "marks",
        "mode",
        "mtime",
        "name",
        "origin",
        "parent",
        "path",
        "skipped",
        "text",
        "time",
        "uid",
        "view",
        "wd",
        "xattrs",
    )

    def __init__(self, parent: Node | None, name: str, path: bytes) -> None:
        self.parent = parent
        self.name = name
        self.path = path
        self.ino = self.ctime = self.mtime = self.time = self.mode = self.uid = self.gid = 0
        self.marks: Marks | None = None
        self.below: Entry | None = None
        self.origin: bytes | None = None
        self.xattrs = b""
        self.entry: Entry | None = None
        self.fresh = True  # its own metadata is newer than `entry`
        self.text: bytes | None = None  # the ignore rules said here
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.counted = 0  # names when it was last visited
        self.dropped = False  # it is no longer part of the tree
        self.wd = self.view = -1  # watches on it and on what it is merged into
        self.held: dict[str, int] = {}
        self.full: dict[bytes, int] = {}  # inodes of files that have content of their own
        self.clear()

    def clear(self) -> None:
        """Know nothing of its names; descriptors are the caller's to close first."""
        self.listed = False  # all its names are below
        self.known: dict[str, Stamp] = {}  # files and the like
        self.gone: set[str] = set()  # whiteouts
        self.dirs: dict[str, Node] = {}
        self.skipped: set[str] = set()  # directories that are no state
        self.changes: dict[bytes, Entry | None] = {}
        self.entry = None

    def names(self) -> set[str]:
        return self.known.keys() | self.gone | self.dirs.keys() | self.skipped

    def recount(self) -> int:
        """How many names there are more than at the last visit; directories are not counted."""
        before, self.counted = self.counted, len(self.known) + len(self.gone)
        return self.counted - before

    def drop(self, name: str) -> None:
        self.known.pop(name, None)
        self.dirs.pop(name, None)
        self.gone.discard(name)
        self.skipped.discard(name)
        self.full.pop(os.fsencode(name), None)

    def lose_watch(self, wd: int) -> None:
        self.wd = -1 if self.wd == wd else self.wd
        self.view = -1 if self.view == wd else self.view

    def arrive(self, st: os.stat_result) -> bool:
        """Take in its stat; True when it is not as it was."""
        if st.st_ctime_ns == self.ctime and st.st_ino == self.ino and st.st_mtime_ns == self.mtime:
            return False
        self.ino, self.ctime, self.mtime = st.st_ino, st.st_ctime_ns, st.st_mtime_ns
        self.mode, self.uid, self.gid = st.st_mode, st.st_uid, st.st_gid
        self.time = state_time(st)
        self.fresh = True
        self.listed = False
        return True

    def walk(self) -> Iterator[Node]:
        """This directory and all below it, parents first."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack += node.dirs.values()


def summary(trees: Trees, node: Node, *, owners: bool) -> Entry:
    """What its names add up to; without `owners` that of the directory below stands."""
    base, below = node.entry or node.below, node.below
    tree = trees.empty() if base is None else TreeRef(Oid(base.data), base.cid)
    if node.changes:
        tree = trees.patch(tree.oid, node.changes)
    uid, gid = node.uid, node.gid
    if below is not None and not owners:
        uid, gid = below.uid, below.gid
    name = os.fsencode(node.name)
    return Entry(name, node.mode, node.time, uid, gid, 0, tree.oid, tree.cid, node.xattrs)


def is_gone(st: os.stat_result) -> bool:
    """A whiteout."""
    return stat.S_ISCHR(st.st_mode) and st.st_rdev == 0
