"""Sizes of a store by kind of object and by directory, and the savings by deduplication.

The numbers are approximate, because other processes write concurrently.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from ortet.errors import OrtetError
from ortet.history.records import TreeEntry
from ortet.hub.hub import Hub
from ortet.ids import from_hex

_MAX_OBJECTS = 500_000
_MAX_FILES = 100_000
_MAX_COMMITS = 2000
"""Limits of the scan. Beyond them, numbers are lower bounds."""

_DIRECTORIES = (
    ("packs", "bucket/packs"),
    ("open ends of writers", "local/tails"),
    ("indexes", "local/index"),
    ("what was read of the bucket", "local/kept"),
    ("waiting to be uploaded", "local/queue"),
    ("machines", "local/machines"),
    ("shared layers", "local/bases"),
    ("memory index", "local/memory"),
)


class CheckoutSizes(msgspec.Struct, frozen=True):
    """`bytes` is the size of the files of `commits`, if each were a directory of its own."""

    bytes: int
    commits: int
    whole: bool


def sizes_by_kind(hub: Hub) -> tuple[dict[int, int], dict[int, int], bool]:
    """Return bytes and number of objects by kind, and True if all objects were counted.

    An object that is stored twice counts once.
    """
    sizes: Counter[int] = Counter()
    counts: Counter[int] = Counter()
    seen: set[bytes] = set()
    for source in hub.objects.pack_set.sources():
        for oid, (_, _, _, length, kind) in source.locations():
            if len(seen) >= _MAX_OBJECTS:
                return sizes, counts, False
            if oid not in seen:
                seen.add(oid)
                sizes[kind] += length
                counts[kind] += 1
    return sizes, counts, True


def checkout_sizes(hub: Hub) -> CheckoutSizes:
    """Return the size that the files of all commits would have without deduplication."""
    total = files = 0
    sizes: dict[bytes, int] = {}
    commits: set[str] = set()
    for branch in hub.refs.branches():
        for commit in hub.log(branch.name, limit=_MAX_COMMITS):
            if commit.oid in commits:
                break  # its ancestors were counted too
            if len(commits) >= _MAX_COMMITS or files >= _MAX_FILES:
                return CheckoutSizes(total, len(commits), False)
            commits.add(commit.oid)
            try:
                root = hub.store.read_image(hub.store.image_oid(from_hex(commit.oid))).root
            except OrtetError:  # a commit without files
                continue
            if root.data not in sizes:
                sizes[root.data], count = _tree_size(hub, root, _MAX_FILES - files)
                files += count
            total += sizes[root.data]
    return CheckoutSizes(total, len(commits), True)


def _tree_size(hub: Hub, root: TreeEntry, limit: int) -> tuple[int, int]:
    size = count = 0
    for _, entry in hub.trees.walk(root):
        size += entry.size
        count += 1
        if count >= limit:
            break
    return size, count


def directory_sizes(root: Path) -> tuple[dict[str, int], bool]:
    """Return bytes on this disk by purpose, and True if all files were counted."""
    sizes: dict[str, int] = {}
    files_left = _MAX_FILES
    for name, folder in _DIRECTORIES:
        size = 0
        for file_size in _file_sizes(root / folder):
            if files_left <= 0:
                break
            files_left -= 1
            size += file_size
        sizes[name] = size
    sizes["catalog"] = sum(_size(path) for path in root.glob("catalog.db*"))
    return sizes, files_left > 0


def _file_sizes(directory: Path) -> Iterator[int]:
    """Yield the disk usage of every file below a directory.

    Files that another process deletes are skipped. Other file systems are not entered.
    """
    todo = [directory]
    try:
        device = directory.stat().st_dev
    except OSError:
        return
    while todo:
        try:
            with os.scandir(todo.pop()) as names:
                for entry in names:
                    with suppress(OSError):
                        stat = entry.stat(follow_symlinks=False)
                        if entry.is_dir(follow_symlinks=False):
                            if stat.st_dev == device:
                                todo.append(Path(entry.path))
                        else:
                            yield stat.st_blocks * 512
        except OSError:
            continue


def _size(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0
