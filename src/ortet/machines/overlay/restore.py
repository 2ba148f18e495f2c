"""Restores files through the merged view of a machine, with an index and rules made from trees."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ortet.history.records import Image, TreeEntry
from ortet.history.tree.tree import Trees
from ortet.ids import Oid
from ortet.machines.base import Report
from ortet.machines.capture.ignore_rules import IGNORE_FILE, IgnoreRules
from ortet.machines.capture.stat_index import StatIndex
from ortet.machines.dirfd import DirFdCache, join_path, open_directory
from ortet.machines.overlay.layers.store import LayerStore
from ortet.machines.restore.compare_images import RestorePlan, make_plan, select_paths
from ortet.machines.restore.restore import restore_directory
from ortet.objects.base import ObjectStore
from ortet.objects.blobs import get_bytes


def restore_through_overlay(
    objects: ObjectStore,
    trees: Trees,
    layer_store: LayerStore,
    *,
    view: Path,
    current: Image,
    target: Image,
    stage: Path,
    paths: Sequence[bytes] | None,
) -> Report:
    """Make `view` equal to `target`, as `restore_directory` does.

    The caller has just taken the snapshot `current` of `view`.
    """
    before, after = layer_store.image_files(current), layer_store.image_files(target)
    if paths is not None:
        after = select_paths(trees, before, after, paths)
    plan = make_plan(trees, before, after)
    return restore_directory(
        objects,
        trees,
        view,
        current,
        target,
        index=_index(trees, view, plan),
        stage=stage,
        rules=_rules(objects, trees, current.root, plan),
        paths=paths,
    )


def count_written_and_removed(trees: Trees, before: TreeEntry, after: TreeEntry) -> tuple[int, int]:
    """Return how many names are written and how many are removed between two trees."""
    written = removed = 0
    stack = [(before, after)]
    while stack:
        old, new = stack.pop()
        for was, now in trees.difference(Oid(old.data), Oid(new.data)):
            if was is not None and now is not None and was.is_dir and now.is_dir:
                written += 1
                stack.append((was, now))
            elif now is not None:
                written += 1 + sum(1 for _ in trees.walk(now))
            elif was is not None:
                removed += 1 + sum(1 for _ in trees.walk(was))
    return written, removed


def _index(trees: Trees, view: Path, plan: RestorePlan) -> StatIndex:
    """Return an index of the files to be replaced.

    They were captured just now, so only their stat is read.
    """
    index = StatIndex(trees)
    with open_directory(view) as top, DirFdCache(top) as dirs:
        for path, entry in _replaced_files(trees, plan):
            with suppress(OSError):  # gone since: the restore reports it
                parent_fd, name = dirs.open_parent(path)
                index.record(path, os.stat(name, dir_fd=parent_fd, follow_symlinks=False), entry)
    return index


def _replaced_files(trees: Trees, plan: RestorePlan) -> Iterator[tuple[bytes, TreeEntry]]:
    for change in (*plan.swaps, *plan.altered):
        if change.old is None:
            continue
        if change.old.is_dir:
            yield from ((p, e) for p, e in trees.walk(change.old, change.path) if not e.is_dir)
        else:
            yield change.path, change.old


def _rules(objects: ObjectStore, trees: Trees, root: TreeEntry, plan: RestorePlan) -> IgnoreRules:
    """Return the ignore rules of every directory in the plan, and above."""
    rules = IgnoreRules()
    concerned = {b""}
    for change in plan.dirs:
        concerned.add(change.path)
    for change in plan.swaps:
        if change.old is not None and change.old.is_dir:
            concerned.add(change.path)
            below = trees.walk(change.old, change.path)
            concerned.update(path for path, entry in below if entry.is_dir)
    for path in list(concerned):
        above = path
        while above:
            above = above.rpartition(b"/")[0]
            concerned.add(above)
    for path in concerned:
        entry = trees.resolve(root, join_path(path, IGNORE_FILE))
        if entry is not None and entry.is_file:
            rules.set_rules(path, get_bytes(objects, entry.data, entry.size))
    return rules
