"""The difference of two images as an overlay layer: changed files, and whiteouts."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from ortet.history.records import TreeEntry
from ortet.history.tree.tree import Trees
from ortet.ids import Oid
from ortet.machines.base import Loss
from ortet.machines.capture.hardlinks import join_path
from ortet.machines.dirfd import open_directory
from ortet.machines.restore.plan import ImageFiles
from ortet.machines.restore.write_entry import EntryWriter, MetadataTarget
from ortet.machines.restore.write_tree import TreeItem, write_tree
from ortet.objects.base import ObjectStore


def whiteout_entry(name: bytes) -> TreeEntry:
    """Return the entry that overlayfs takes for a removed name."""
    return TreeEntry(name, stat.S_IFCHR, 0, os.geteuid(), os.getegid())


def count_changes(trees: Trees, below: TreeEntry, above: TreeEntry, *, limit: int) -> int:
    """Count the names of a layer between two trees. Counting stops above `limit`."""
    count = 0
    stack = [(below, above)]
    while stack and count <= limit:
        old, new = stack.pop()
        for was, now in trees.difference(Oid(old.data), Oid(new.data)):
            count += 1
            if was is not None and now is not None and was.is_dir and now.is_dir:
                stack.append((was, now))
            elif now is not None and now.is_dir:
                for _ in trees.walk(now):
                    count += 1
                    if count > limit:
                        break
    return count


def layer_items(
    trees: Trees, below: ImageFiles, above: ImageFiles
) -> tuple[list[TreeItem], list[list[bytes]]]:
    """Return the items to write, parents first, and their hardlink groups."""
    found: dict[bytes, TreeEntry] = {b"": above.root}
    stack = [(b"", below.root, above.root)]
    while stack:
        path, old, new = stack.pop()
        for was, now in trees.difference(Oid(old.data), Oid(new.data)):
            if now is None:
                assert was is not None
                found[join_path(path, was.name)] = whiteout_entry(was.name)
                continue
            at = join_path(path, now.name)
            found[at] = now
            if now.is_dir and was is not None and was.is_dir:
                stack.append((at, was, now))
            elif now.is_dir:
                found.update(trees.walk(now, at))
    groups = _add_relinked(trees, below, above, found)
    return [TreeItem(path, found[path], path) for path in sorted(found)], groups


def _add_relinked(
    trees: Trees, below: ImageFiles, above: ImageFiles, entries: dict[bytes, TreeEntry]
) -> list[list[bytes]]:
    """Add files whose hardlink group changes: a group is in one layer completely or not at all."""
    before = {tuple(group) for group in below.groups}
    after = {tuple(group) for group in above.groups}
    for group in before - after:
        _add_files(trees, above.root, group, entries)
    groups = []
    for names in above.groups:
        if tuple(names) not in before or any(path in entries for path in names):
            _add_files(trees, above.root, names, entries)
            groups.append(names)
    return groups


def _add_files(
    trees: Trees, root: TreeEntry, paths: Iterable[bytes], entries: dict[bytes, TreeEntry]
) -> None:
    """Add the files that exist at these paths, with the directories above them."""
    for path in paths:
        entry = trees.resolve(root, path)
        if entry is None or path in entries:
            continue
        entries[path] = entry
        above = path.rpartition(b"/")[0]
        while above not in entries:
            parent = trees.resolve(root, above)
            assert parent is not None
            entries[above] = parent
            above = above.rpartition(b"/")[0]


def hardlinked_items(trees: Trees, side: ImageFiles) -> tuple[list[TreeItem], list[list[bytes]]]:
    """Return the hardlinked files of an image, for a new upper directory.

    Overlayfs copies up only one name of a file, and the other names keep the old content. Files
    that are in the upper directory with all their names stay one file.
    """
    found: dict[bytes, TreeEntry] = {b"": side.root}
    for group in side.groups:
        _add_files(trees, side.root, group, found)
    return [TreeItem(path, found[path], path) for path in sorted(found)], list(side.groups)


def write_layer(
    objects: ObjectStore, place: Path, items: Sequence[TreeItem], groups: Sequence[Sequence[bytes]]
) -> list[Loss]:
    """Write a layer into an empty directory, and return the losses."""
    writer = EntryWriter(objects)
    with open_directory(place) as fd:
        if len(items) == 1:
            writer.apply_metadata(MetadataTarget(fd), items[0].entry, path=b"")
        else:
            write_tree(objects, fd, items, groups, writer=writer)
    return list(dict.fromkeys(writer.losses))
