"""Three-way merge of hardlink groups.

Names are one file if a side linked them, or if both sides left them linked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations, pairwise

import msgspec

from ortet._util.codec import encode
from ortet.history.records import Image, TreeEntry
from ortet.history.references import read_hardlinks
from ortet.history.tree.tree import Trees
from ortet.objects.base import Kind

LinkGroup = frozenset[bytes]
Pair = tuple[bytes, bytes]


class _HardlinkSide:
    """The hardlink groups of one image."""

    def __init__(self, trees: Trees, image: Image | None) -> None:
        self._trees = trees
        self._root = None if image is None else image.root
        links = b"" if image is None else image.links
        self.groups = {frozenset(group) for group in read_hardlinks(trees.objects, links)}
        self._group_by_path = {path: group for group in self.groups for path in group}

    def is_linked(self, pair: Pair) -> bool | None:
        """Return True if both names are one file. None if the image does not have both names."""
        group = self._group_by_path.get(pair[0])
        if group is not None and pair[1] in group:
            return True
        return False if self.entry(pair[0]) and self.entry(pair[1]) else None

    def entry(self, path: bytes) -> TreeEntry | None:
        return None if self._root is None else self._trees.resolve(self._root, path)


def merge_links(
    trees: Trees, base: Image | None, ours: Image, theirs: Image, root: TreeEntry
) -> tuple[TreeEntry, bytes]:
    """Return the merged `root`, made consistent with the groups, and the Oid of the groups.

    The groups contain only names that exist. If one side linked a name to a file and the other side
    changed that file, the name gets the changed content.
    """
    sides = [_HardlinkSide(trees, image) for image in (base, ours, theirs)]
    if not any(side.groups for side in sides):
        return root, b""
    pairs = sorted(_linked_pairs(*sides))
    found: dict[bytes, TreeEntry] = {}
    for path in {path for pair in pairs for path in pair}:
        entry = trees.resolve(root, path)
        if entry is not None and not entry.is_dir:
            found[path] = msgspec.structs.replace(entry, name=b"")
    pairs = [pair for pair in pairs if pair[0] in found and pair[1] in found]
    changes = _propagate_linked_changes(pairs, found, sides[0])
    if changes:
        root = trees.patch_paths(root, changes)
    groups = _connected_groups(pairs, found)
    oid = trees.objects.put(Kind.META, encode(groups)) if groups else b""
    return root, oid


def _linked_pairs(
    base: _HardlinkSide, ours: _HardlinkSide, theirs: _HardlinkSide
) -> Iterator[Pair]:
    for group in base.groups | ours.groups | theirs.groups:
        names = sorted(group)
        if group in ours.groups and group in theirs.groups:
            yield from pairwise(names)
            continue
        for pair in combinations(names, 2):
            before, mine, other = base.is_linked(pair), ours.is_linked(pair), theirs.is_linked(pair)
            if mine is None or (mine == before and other is not None):
                mine = other
            if mine:
                yield pair


def _propagate_linked_changes(
    pairs: list[Pair], entries: dict[bytes, TreeEntry], base: _HardlinkSide
) -> dict[bytes, TreeEntry | None]:
    """Give unchanged names the value of a linked name that changed. Also updates `entries`."""
    changes: dict[bytes, TreeEntry | None] = {}
    old = {value for path in entries if (value := base.entry(path)) is not None}
    olds = {msgspec.structs.replace(entry, name=b"") for entry in old}
    # Two passes: a chain of pairs may list a name before the name that it follows.
    for pair in pairs + pairs[::-1]:
        for path, other in (pair, pair[::-1]):
            if (
                entries[path] != entries[other]
                and entries[path] in olds
                and entries[other] not in olds
            ):
                entries[path] = entries[other]
                changes[path] = msgspec.structs.replace(
                    entries[other], name=path.rpartition(b"/")[2]
                )
    return changes


def _connected_groups(pairs: list[Pair], entries: Mapping[bytes, TreeEntry]) -> list[list[bytes]]:
    """Return groups of connected names with equal entries. Each group and the list are sorted."""
    group_of: dict[bytes, list[bytes]] = {}
    for a, b in pairs:
        if entries[a] != entries[b]:
            continue
        left, right = group_of.setdefault(a, [a]), group_of.setdefault(b, [b])
        if left is not right:
            left += right
            for path in right:
                group_of[path] = left
    distinct = {id(group): group for group in group_of.values()}
    return sorted(sorted(group) for group in distinct.values())
