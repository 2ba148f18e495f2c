"""The difference of two images as an overlay layer: what changed, and whiteouts for what went."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from ortet.history.records import Entry
from ortet.history.tree.tree import Trees
from ortet.ids import Oid
from ortet.machines.base import Loss
from ortet.machines.capture.hardlinks import join
from ortet.machines.dirfd import directory
from ortet.machines.restore.plan import Side
from ortet.machines.restore.write_entry import Target, Writer
from ortet.machines.restore.write_tree import Item, build
from ortet.objects.base import Objects


def whiteout(name: bytes) -> Entry:
    """What the kernel takes for "gone from the layer below"."""
    return Entry(name, stat.S_IFCHR, 0, os.geteuid(), os.getegid())


def distance(trees: Trees, below: Entry, above: Entry, *, most: int) -> int:
    """How many names a layer between them would hold; counting ends beyond `most`."""
    count = 0
    stack = [(below, above)]
    while stack and count <= most:
        old, new = stack.pop()
        for was, now in trees.difference(Oid(old.data), Oid(new.data)):
            count += 1
            if was is not None and now is not None and was.is_dir and now.is_dir:
                stack.append((was, now))
            elif now is not None and now.is_dir:
                for _ in trees.walk(now):
                    count += 1
                    if count > most:
                        break
    return count


def difference(trees: Trees, below: Side, above: Side) -> tuple[list[Item], list[list[bytes]]]:
    """What to write, parents first, and the hardlink groups among it."""
    found: dict[bytes, Entry] = {b"": above.root}
    stack = [(b"", below.root, above.root)]
    while stack:
        path, old, new = stack.pop()
        for was, now in trees.difference(Oid(old.data), Oid(new.data)):
            if now is None:
                assert was is not None
                found[join(path, was.name)] = whiteout(was.name)
                continue
            at = join(path, now.name)
            found[at] = now
            if now.is_dir and was is not None and was.is_dir:
                stack.append((at, was, now))
            elif now.is_dir:
                found.update(trees.walk(now, at))
    groups = _relinked(trees, below, above, found)
    return [Item(path, found[path], path) for path in sorted(found)], groups


def _relinked(
    trees: Trees, below: Side, above: Side, found: dict[bytes, Entry]
) -> list[list[bytes]]:
    """Add files whose other names change: a group is in one layer whole, or not at all."""
    before = {tuple(group) for group in below.groups}
    after = {tuple(group) for group in above.groups}
    for group in before - after:
        _include(trees, above.root, group, found)
    groups = []
    for names in above.groups:
        if tuple(names) not in before or any(path in found for path in names):
            _include(trees, above.root, names, found)
            groups.append(names)
    return groups


def _include(trees: Trees, root: Entry, paths: Iterable[bytes], found: dict[bytes, Entry]) -> None:
    """These files, as far as they are there, with the directories above them."""
    for path in paths:
        entry = trees.resolve(root, path)
        if entry is None or path in found:
            continue
        found[path] = entry
        above = path.rpartition(b"/")[0]
        while above not in found:
            parent = trees.resolve(root, above)
            assert parent is not None
            found[above] = parent
            above = above.rpartition(b"/")[0]


def carried(trees: Trees, side: Side) -> tuple[list[Item], list[list[bytes]]]:
    """The hardlinked files of a side, for a fresh upper directory.

    The kernel copies one name of a file up, and the others stay behind: a write through one would
    no longer be seen through the others. Files that are up with all their names stay one file.
    """
    found: dict[bytes, Entry] = {b"": side.root}
    for group in side.groups:
        _include(trees, side.root, group, found)
    return [Item(path, found[path], path) for path in sorted(found)], list(side.groups)


def write(
    objects: Objects, place: Path, items: Sequence[Item], groups: Sequence[Sequence[bytes]]
) -> list[Loss]:
    """Write a layer into an empty directory; what could not be written as it is comes back."""
    writer = Writer(objects)
    with directory(place) as fd:
        if len(items) == 1:
            writer.settle(Target(fd), items[0].entry, path=b"")
        else:
            build(objects, fd, items, groups, writer=writer)
    return list(dict.fromkeys(writer.losses))
