"""Compares two images, and returns the paths that a restore has to change. Only trees are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from ortet.errors import Corrupt, Invalid, NotFound
from ortet.history.records import TreeEntry
from ortet.history.tree.tree import Trees
from ortet.ids import Oid
from ortet.machines.capture.ignore_rules import IGNORE_FILE
from ortet.machines.dirfd import check_name, join_path

HardlinkGroups = list[list[bytes]]
"""For each file with several names, the list of its paths."""


class ImageFiles(NamedTuple):
    """The files of an image."""

    root: TreeEntry
    groups: HardlinkGroups


class PathChange(NamedTuple):
    """A path with its entry before and after. None means that the path does not exist."""

    path: bytes
    old: TreeEntry | None
    new: TreeEntry | None


class RestorePlan(msgspec.Struct, frozen=True):
    """The changes by kind. For a directory that is added or removed, only the topmost is listed."""

    swaps: list[PathChange]  # added, removed, or replaced by another file
    altered: list[PathChange]  # the same file (no directory) with other metadata
    dirs: list[PathChange]  # directories that exist on both sides and differ, parents first
    touched: set[bytes]  # the paths of `dirs` in which a name is added, removed or replaced

    @property
    def has_new_rules(self) -> bool:
        """True if an ignore file is added or changes, so that some state may become ignored."""
        return any(
            change.new is not None and change.path.rpartition(b"/")[2] == IGNORE_FILE
            for change in self.swaps
        )


def make_plan(trees: Trees, current: ImageFiles, target: ImageFiles) -> RestorePlan:
    """Compare two images. Equal subtrees are not read."""
    swaps: dict[bytes, PathChange] = {}
    altered: dict[bytes, PathChange] = {}
    dirs: dict[bytes, PathChange] = {}
    touched: set[bytes] = set()
    stack = [(b"", current.root, target.root)] if current.root != target.root else []
    while stack:
        path, before, after = stack.pop()
        dirs[path] = PathChange(path, before, after)
        for old, new in trees.difference(Oid(before.data), Oid(after.data)):
            item_path = join_path(path, check_name((old or new).name))  # type: ignore[union-attr]
            if old and new and old.is_dir and new.is_dir:
                stack.append((item_path, old, new))
            elif old and new and _same_file(old, new):
                altered[item_path] = PathChange(item_path, old, new)
            else:
                swaps[item_path] = PathChange(item_path, old, new)
                touched.add(path)
    for change in _relinked(trees, current, target):
        if change.path not in swaps:
            altered.pop(change.path, None)
            swaps[change.path] = change
            above = change.path.rpartition(b"/")[0]
            touched.add(above)
            if above not in dirs:
                was, will = (trees.resolve(side.root, above) for side in (current, target))
                dirs[above] = PathChange(above, was, will)
    ordered = [dirs[path] for path in sorted(dirs)]
    return RestorePlan(list(swaps.values()), list(altered.values()), ordered, touched)


def select_paths(
    trees: Trees, current: ImageFiles, target: ImageFiles, paths: Sequence[bytes]
) -> ImageFiles:
    """Return `current` with everything at and below `paths` taken from `target`.

    Directories above keep their metadata. Missing ones are taken from `target`.

    Raises:
        NotFound: "no_path", if a path is in neither image.
        Invalid: "bad_path", if a path leads outside of the workspace.
    """
    wanted = {_normalize_path(path) for path in paths}
    if b"" in wanted:
        return target
    changes: dict[bytes, TreeEntry | None] = {}
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
    return ImageFiles(root, _select_groups(trees, current, target, wanted))


def _same_file(old: TreeEntry, new: TreeEntry) -> bool:
    return (
        (old.mode ^ new.mode) >> 12 == 0
        and not old.is_dir
        and (old.data, old.size, old.holes, old.rdev) == (new.data, new.size, new.holes, new.rdev)
    )


def _relinked(trees: Trees, current: ImageFiles, target: ImageFiles) -> Iterator[PathChange]:
    """Yield files on both sides whose hardlink group changed: they need another inode."""
    before = {path: group for group in current.groups for path in group}
    after = {path: group for group in target.groups for path in group}
    for path in sorted(before.keys() | after.keys()):
        if before.get(path) == after.get(path):
            continue
        old, new = (trees.resolve(side.root, path) for side in (current, target))
        if (old is None and path in before) or (new is None and path in after):
            raise Corrupt("bad_links", "hardlinks do not fit the files: run `ortet verify`")
        if old is not None and new is not None and not old.is_dir and not new.is_dir:
            yield PathChange(path, old, new)


def _normalize_path(path: bytes) -> bytes:
    parts = [part for part in path.split(b"/") if part not in (b"", b".")]
    if b".." in parts or path.startswith(b"/"):
        shown = path.decode(errors="backslashreplace")
        raise Invalid("bad_path", f"{shown} leads outside: give a path below the workspace")
    return b"/".join(parts)


def _above(path: bytes) -> Iterator[bytes]:
    """Yield the directories above a path, nearest first, without the root."""
    while path := path.rpartition(b"/")[0]:
        yield path


def _missing(
    trees: Trees, current: TreeEntry, target: TreeEntry, path: bytes
) -> dict[bytes, TreeEntry]:
    """Return the directories above a path that exist only in `target`, without their content."""
    missing: dict[bytes, TreeEntry] = {}
    for above in _above(path):
        now = trees.resolve(current, above)
        if now is not None and now.is_dir:
            break
        will = trees.resolve(target, above)
        assert will is not None  # `path` is below it
        missing[above] = replace(will, data=b"", cid=b"")
    return missing


def _select_groups(
    trees: Trees, current: ImageFiles, target: ImageFiles, wanted: set[bytes]
) -> HardlinkGroups:
    """Return the hardlink groups if only the wanted paths come from `target`.

    No group crosses between the two sides, unless it and its file are the same on both.
    """

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
