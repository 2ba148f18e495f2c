"""Finds the names of a workspace that are hardlinks of one file, and directories that moved."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ortet._util.codec import encode
from ortet.machines.capture.stat_index import RACY, DirectoryNode, StatIndex
from ortet.machines.dirfd import join_path
from ortet.objects.base import Kind, ObjectStore

Inode = tuple[int, ...]
"""ino and dev, as in a StatRecord."""


def walk_index(index: StatIndex) -> Iterator[tuple[bytes, DirectoryNode]]:
    """Yield every directory of the index with its path."""
    stack = [(b"", index.root)]
    while stack:
        path, node = stack.pop()
        yield path, node
        for name, child in node.dirs.items():
            stack.append((join_path(path, os.fsencode(name)), child))


def put_links(objects: ObjectStore, index: StatIndex) -> bytes:
    """Store the hardlink groups of an index as a list of paths each, and return the Oid.

    Return b"" if every file has one name in the workspace.
    """
    groups: dict[Inode, list[bytes]] = {}
    for path, node in walk_index(index):
        for name in node.linked:
            inode = node.stats[name][1:3]
            groups.setdefault(inode, []).append(join_path(path, os.fsencode(name)))
    link_groups = sorted(sorted(paths) for paths in groups.values() if len(paths) > 1)
    return objects.put(Kind.META, encode(link_groups)) if link_groups else b""


def names_of_inodes(index: StatIndex, inodes: set[Inode]) -> dict[bytes, set[bytes]]:
    """Return all names of these inodes, by directory.

    A write through one name changes the file under all of its names.
    """
    names: dict[bytes, set[bytes]] = {}
    for path, node in walk_index(index):
        for name, was in node.stats.items():
            if was[1:3] in inodes:
                names.setdefault(path, set()).add(os.fsencode(name))
    return names


def linked_inodes_below(top: DirectoryNode) -> set[Inode]:
    """Return the inodes in and below a directory that have more than one name."""
    inodes: set[Inode] = set()
    stack = [top]
    while stack:
        node = stack.pop()
        inodes.update(node.stats[name][1:3] for name in node.linked)
        stack += node.dirs.values()
    return inodes


class MovedDirectories:
    """Finds directories that were moved between two scans, so that their files are not read.

    The index node of a moved directory may be used under the new name, because the scan compares
    every file in it with its stat.
    """

    def __init__(self, index: StatIndex) -> None:
        self._index = index
        self._vanished: dict[Inode, DirectoryNode] = {}
        self._known_directories: dict[Inode, tuple[DirectoryNode, str]] | None = (
            None if index.root.dirs else {}
        )

    def add_vanished(self, inode: Inode, node: DirectoryNode) -> None:
        """Remember the node of a directory that is no longer at its old path."""
        self._vanished[inode] = node

    def pop_moved(self, inode: Inode) -> DirectoryNode | None:
        """Return the node of the directory with this inode, or None.

        The node is removed from its old path in the index.
        """
        if self._index.pending:
            return None  # pending changes below it are known only by the old path
        if inode in self._vanished:
            return self._vanished.pop(inode)
        if self._known_directories is None:
            self._known_directories = {
                node.stats[name][1:3]: (node, name)
                for _, node in walk_index(self._index)
                for name in node.dirs
                if name in node.stats
            }
        above, name = self._known_directories.pop(inode, (None, ""))
        node = above.dirs.pop(name, None) if above is not None else None
        if above is None or node is None:
            return None
        above.put(name, (*above.stats[name][:9], RACY))  # so that the old path is compared
        self._index.links = None
        return node
