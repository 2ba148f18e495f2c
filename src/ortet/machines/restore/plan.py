"""What has to change on disk to come from one image to another. Looks at trees only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from ortet.errors import Corrupt, Invalid, NotFound
from ortet.history.records import Entry
from ortet.history.tree.tree import Trees
from ortet.ids import Oid
from ortet.machines.capture.ignore_rules import FILE
from ortet.machines.dirfd import check_name

Groups = list[list[bytes]]
"""Hardlinks: the paths of one file, for each file with several."""


class Side(NamedTuple):
    """The files of an image."""

    root: Entry
    groups: Groups


class Change(NamedTuple):
    """A path with its entry before and after; None: nothing is there."""

    path: bytes
    old: Entry | None
    new: Entry | None


class Plan(msgspec.Struct, frozen=True):
    """Changes by kind. Of a directory that comes or goes only the topmost is named."""

    swaps: list[Change]  # comes, goes, or is replaced by another file
    altered: list[Change]  # the same file, no directory, with other metadata
    dirs: list[Change]  # directories before and after that differ in anything, parents first
    touched: set[bytes]  # those of them in which a name comes, goes or is replaced

    @property
    def new_rules(self) -> bool:
        """Whether an ignore file comes or changes, so that what was state may be none any more."""
        return any(
            change.new is not None and change.path.rpartition(b"/")[2] == FILE
            for change in self.swaps
        )


def make_plan(trees: Trees, current: Side, target: Side) -> Plan:
    """Compare two sides; equal subtrees are not read."""
    swaps: dict[bytes, Change] = {}
    altered: dict[bytes, Change] = {}
    dirs: dict[bytes, Change] = {}
    touched: set[bytes] = set()
    stack = [(b"", current.root, target.root)] if current.root != target.root else []
    while stack:
        path, before, after = stack.pop()
        dirs[path] = Change(path, before, after)
        for old, new in trees.difference(Oid(before.data), Oid(after.data)):
            at = join(path, check_name((old or new).name))  # type: ignore[union-attr]
            if old and new and old.is_dir and new.is_dir:
                stack.append((at, old, new))
            elif old and new and _same_file(old, new):
                altered[at] = Change(at, old, new)
            else:
                swaps[at] = Change(at, old, new)
                touched.add(path)
    for change in _relinked(trees, current, target):
        if change.path not in swaps:
            altered.pop(change.path, None)
            swaps[change.path] = change
            above = change.path.rpartition(b"/")[0]
            touched.add(above)
            if above not in dirs:
                was, will = (trees.resolve(side.root, above) for side in (current, target))
                dirs[above] = Change(above, was, will)
    ordered = [dirs[path] for path in sorted(dirs)]
    return Plan(list(swaps.values()), list(altered.values()), ordered, touched)


def select(trees: Trees, current: Side, target: Side, paths: Sequence[bytes]) -> Side:
    """`current` with only what is at and below `paths` as in `target`.

    Directories above keep their metadata; those that are missing come as they are in `target`.
    """
    wanted = {_plain(path) for path in paths}
    if b"" in wanted:
        return target
    changes: dict[bytes, Entry | None] = {}
    for path in wanted:
        new = trees.resolve(target.root, path)
        if new is None and trees.resolve(current.root, path) is None:
            shown = path.decode(errors="backslashreplace")
            raise NotFound("no_path", f"{shown} is neither here nor there: give another path")
        if not any(above in wanted for above in _above(path)):
            changes[path] = new
            if new is not None:
                changes |= _missing(trees, current.root, target.root, path)
    root = trees.patch_paths(current.root, changes)
    return Side(root, _chosen(trees, current, target, wanted))


def join(directory: bytes, name: bytes) -> bytes:
    return directory + b"/" + name if directory else name


def _same_file(old: Entry, new: Entry) -> bool:
    return (
        (old.mode ^ new.mode) >> 12 == 0
        and not old.is_dir
        and (old.data, old.size, old.holes, old.rdev) == (new.data, new.size, new.holes, new.rdev)
    )


def _relinked(trees: Trees, current: Side, target: Side) -> Iterator[Change]:
    """Files on both sides that are linked with other names than before: they need another inode."""
    before = {path: group for group in current.groups for path in group}
    after = {path: group for group in target.groups for path in group}
    for path in sorted(before.keys() | after.keys()):
        if before.get(path) == after.get(path):
            continue
        old, new = (trees.resolve(side.root, path) for side in (current, target))
        if (old is None and path in before) or (new is None and path in after):
            raise Corrupt("bad_links", "hardlinks do not fit the files: run `ortet verify`")
        if old is not None and new is not None and not old.is_dir and not new.is_dir:
            yield Change(path, old, new)


def _plain(path: bytes) -> bytes:
    parts = [part for part in path.split(b"/") if part not in (b"", b".")]
    if b".." in parts or path.startswith(b"/"):
        shown = path.decode(errors="backslashreplace")
        raise Invalid("bad_path", f"{shown} leads outside: give a path below the workspace")
    return b"/".join(parts)


def _above(path: bytes) -> Iterator[bytes]:
    """The directories above, nearest first, without the root."""
    while path := path.rpartition(b"/")[0]:
        yield path


def _missing(trees: Trees, current: Entry, target: Entry, path: bytes) -> dict[bytes, Entry]:
    """Directories above a path that are there only in `target`, emptied."""
    found: dict[bytes, Entry] = {}
    for above in _above(path):
        now = trees.resolve(current, above)
        if now is not None and now.is_dir:
            break
        will = trees.resolve(target, above)
        assert will is not None  # `path` is below it
        found[above] = replace(will, data=b"", cid=b"")
    return found


def _chosen(trees: Trees, current: Side, target: Side, wanted: set[bytes]) -> Groups:
    """Hardlinks when only the wanted paths come from `target`: none across, unless all stay."""

    def is_wanted(path: bytes) -> bool:
        return path in wanted or any(above in wanted for above in _above(path))

    def stays(group: list[bytes]) -> bool:
        first = group[0]
        return trees.resolve(current.root, first) == trees.resolve(target.root, first)

    theirs = {tuple(group) for group in target.groups}
    same = {tuple(group) for group in current.groups if tuple(group) in theirs and stays(group)}
    groups = [list(group) for group in same]
    for group in current.groups:
        if tuple(group) not in same:
            groups.append([path for path in group if not is_wanted(path)])
    for group in target.groups:
        if tuple(group) not in same:
            groups.append([path for path in group if is_wanted(path)])
    return [group for group in groups if len(group) > 1]
