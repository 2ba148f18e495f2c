"""The order of the steps of a restore, and of the removals below a directory.

The order makes the undo exact, so it must not change:

- Metadata comes first, so it is undone last. The undo thus also restores the times that moving
  names has changed.
- What is inside a removed directory comes before the directory.
- The old file of a path is kept before the new one is put into its place.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from msgspec.structs import replace

from ortet.history.records import TreeEntry
from ortet.machines.dirfd import DirFdCache
from ortet.machines.restore.compare_images import PathChange, RestorePlan
from ortet.machines.restore.steps import (
    DropStep,
    KeepStep,
    PlaceStep,
    RestoreStep,
    metadata_step,
)
from ortet.machines.restore.write_tree import WrittenItem


def order_removals(
    change: PathChange,
    below: Sequence[tuple[bytes, TreeEntry]],
    kept_dirs: Collection[bytes],
    *,
    piecemeal: bool,
) -> list[PathChange]:
    """Return the changes that remove a directory, or all of it but `kept_dirs`, deepest first.

    Args:
        change: The removal of the directory.
        below: What is below it, each directory before its content.
        piecemeal: Directories cannot be renamed, so every path is removed by itself.
    """
    moves = [PathChange(path, entry, None) for path, entry in reversed(below)]
    moves = [move for move in moves if move.path not in kept_dirs]
    if not piecemeal:
        moves = [move for move in moves if move.path.rpartition(b"/")[0] in kept_dirs]
    if not kept_dirs:
        moves.append(change)
    return moves


def order_steps(
    plan: RestorePlan,
    moves: Sequence[PathChange],
    written: Mapping[bytes, WrittenItem],
    *,
    dirs: DirFdCache,
    touched_dirs: Collection[bytes],
    piecemeal: bool,
    is_present: Callable[[bytes], bool],
) -> Iterator[RestoreStep]:
    """Yield the steps of a restore in order.

    Args:
        moves: The removals and replacements that passed the check, in their order.
        written: The new files in the staging area.
        touched_dirs: Directories with added or removed names.
        piecemeal: Directories cannot be renamed.
        is_present: Tells whether a path of `plan.altered` exists on this disk.
    """
    changed = {change.path for change in plan.dirs if needs_metadata(change, touched_dirs)}
    changed.update(touched_dirs)
    if piecemeal or os.geteuid():  # otherwise they are renamed unchanged
        changed.update(path for path, old, _ in moves if old is not None and old.is_dir)
    for path in sorted(changed):
        yield metadata_step(dirs, path, stat.S_IFDIR)
    for change in plan.altered:
        if change.new is not None and is_present(change.path):
            yield metadata_step(dirs, change.path, change.new.mode)
    for slot, (path, old, new) in enumerate(moves):
        if old is not None and old.is_dir and piecemeal:
            yield DropStep(path)
        elif old is not None:
            link = not old.is_dir and new is not None and not new.is_dir and path in written
            # Without root, an overlay shows each hardlink of a file with another inode number.
            link = link and not (piecemeal and os.geteuid())
            yield KeepStep(path, slot, link)
        if path in written:
            now = written[path].stat
            yield PlaceStep(path, slot, now.st_ino, now.st_size, now.st_mtime_ns)


def needs_metadata(change: PathChange, touched_dirs: Collection[bytes]) -> bool:
    """Return True if the metadata of a directory in `plan.dirs` must be set."""
    old, new = change.old, change.new
    if change.path in touched_dirs or old is None or new is None:
        return True
    return replace(old, data=new.data, cid=new.cid) != new
