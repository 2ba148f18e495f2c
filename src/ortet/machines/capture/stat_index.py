"""What was seen where: the stat of each name, so that unchanged files are not read again.

Entries are not kept beside it: they are in the tree that the directory's own Entry names, except
those recorded since that tree was made (`pending`). So 30 000 files load in some 20 ms.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ortet._util.codec import StoredRecord, checksum, decode, encode
from ortet.errors import Corrupt
from ortet.history.records import TreeEntry
from ortet.history.tree.tree import Trees
from ortet.ids import Oid
from ortet.machines.base import Loss
from ortet.machines.capture.seen import (
    MAPPED,
    NOT_APPLIED,
    RACY,
    DirectoryNode,
    PackedStats,
    StatRecord,
    marks_of,
    stat_record,
    with_mark,
)

__all__ = ["NEVER_RACY", "NOT_APPLIED", "StatIndex", "StatRecord", "marks_of", "stat_record"]

NEVER_RACY = 1 << 62
"""A `horizon` that no time reaches: nothing is racy."""

_MAGIC = b"ortet index 1\n"
_CHECK = 8


class _SavedDirectory(StoredRecord, frozen=True):
    depth: int
    name: bytes
    entry: TreeEntry | None
    rules: bytes
    packed: PackedStats


class _SavedIndex(StoredRecord, frozen=True):
    image: bytes
    root: list[str]
    pending: list[tuple[bytes, list[tuple[bytes, TreeEntry | None]]]]
    mapped: list[bytes]
    lossy: list[bytes]
    directories: list[_SavedDirectory]


class StatIndex:
    """The memory of one workspace. `record` may be called by several threads for different paths.

    `horizon`: a ctime at or after it is racy; the caller sets it before a scan to "now less the
    clock's granularity", or leaves it at CALM where every change gets a ctime of its own.
    `image`: what a loaded index rests on; it is worthless when that image is not in the store.
    """

    def __init__(self, trees: Trees) -> None:
        self.trees = trees
        self.root = DirectoryNode()
        self.root_stat: StatRecord = ()
        self.pending: dict[bytes, dict[bytes, TreeEntry | None]] = {}
        self.links: bytes | None = None  # Oid of the hardlink groups, None: to be found again
        self.losses: dict[bytes, dict[str, list[Loss]]] = {}  # by directory and name
        self.mapped: set[bytes] = set()  # paths to look at every time
        self.horizon = NEVER_RACY
        self.device = 0  # that of the root, which `horizon` is for
        self.foreign_horizon = NEVER_RACY  # the horizon on file systems mounted below it
        self.image = Oid(b"")

    def record(self, path: bytes, st: os.stat_result, entry: TreeEntry) -> None:
        """`entry` is what `path` (b"": the root) is now, and `st` is how it looks on disk.

        Recording a directory says that what was recorded and forgotten in it so far, on top of
        what was there before, is exactly the tree its Entry names: record it after what it holds.
        What that tree holds and the disk could not be given stays in the state.
        """
        was = self.stat_with_marks(st, entry)
        node = self._node(path) if entry.is_dir else None
        if node is not None:
            node.entry = entry
            self.pending.pop(path, None)
        self.links = None
        if not path:
            self.root_stat = was
            return
        parent, _, name = path.rpartition(b"/")
        above = self._node(parent)
        key = os.fsdecode(name)
        if node is None and key in above.dirs:
            above.drop(key)
            self.forget_below(path)
        above.put(key, was)
        self.pending.setdefault(parent, {})[name] = entry

    def stat_with_marks(self, st: os.stat_result, entry: TreeEntry, mark: int = 0) -> StatRecord:
        """The stat to remember beside an Entry, with its marks."""
        was = stat_record(st)
        at_home = st.st_dev == self.device
        if st.st_ctime_ns >= (self.horizon if at_home else min(self.horizon, self.foreign_horizon)):
            mark |= RACY
        if (entry.mode, entry.uid, entry.gid, entry.mtime) != (was[0], was[4], was[5], was[7]):
            mark |= NOT_APPLIED
        return (*was, mark) if mark else was

    def forget(self, path: bytes) -> None:
        """`path` is gone, with everything below it."""
        if not path:
            self.root, self.root_stat, self.links = DirectoryNode(), (), None
            self.pending.clear()
            self.losses.clear()
            self.mapped.clear()
            return
        parent, _, name = path.rpartition(b"/")
        node = self.find(parent)
        if node is None:
            return
        key = os.fsdecode(name)
        if key in node.dirs:
            self.forget_below(path)
        node.drop(key)
        self._mark_racy(parent)
        self.links = None
        self.pending.setdefault(parent, {})[name] = None

    def lookup(self, path: bytes, st: os.stat_result) -> TreeEntry | None:
        """The Entry of a name whose stat is as it was; None when it has to be looked at again.

        A directory's Entry names its tree as of the last scan.
        """
        parent, _, name = path.rpartition(b"/")
        node = self.find(parent)
        if node is None:
            return None
        was = node.stats.get(os.fsdecode(name), ()) if path else self.root_stat
        if was[:9] != stat_record(st) or marks_of(was) & (RACY | MAPPED):
            return None
        if not path:
            return node.entry
        changed = self.pending.get(parent, {})
        if name in changed:
            return changed[name]
        return self.entry_of(node, name)

    def entry_of(self, node: DirectoryNode, name: bytes) -> TreeEntry | None:
        """What the directory's tree holds under this name."""
        if node.entry is None or not node.entry.data:
            return None
        return self.trees.lookup(Oid(node.entry.data), name)

    def find(self, path: bytes) -> DirectoryNode | None:
        """The directory at a path, if it was seen."""
        node: DirectoryNode | None = self.root
        for name in os.fsdecode(path).split("/") if path else ():
            node = node.dirs.get(name) if node is not None else None
        return node

    def nodes(self) -> Iterator[tuple[int, str, DirectoryNode]]:
        """(depth, name, directory), each before what it holds."""
        stack = [(0, "", self.root)]
        while stack:
            depth, name, node = stack.pop()
            yield depth, name, node
            stack += [(depth + 1, below, child) for below, child in node.dirs.items()]

    def save(self, file: Path, image: Oid) -> None:
        """Replace `file` by this index, which rests on `image`."""
        directories = [
            _SavedDirectory(depth, os.fsencode(name), node.entry, node.rules_digest, node.pack())
            for depth, name, node in self.nodes()
        ]
        body = encode(
            _SavedIndex(
                image,
                list(map(str, self.root_stat)),
                [(path, list(changes.items())) for path, changes in self.pending.items()],
                sorted(self.mapped),
                list(self.losses),
                directories,
            )
        )
        fresh = file.with_name(file.name + ".new")
        fresh.write_bytes(_MAGIC + checksum(body) + body)
        fresh.replace(file)

    @classmethod
    def load(cls, file: Path, trees: Trees) -> StatIndex | None:
        """The saved index; None when there is none, or it is damaged or of another version."""
        start = len(_MAGIC) + _CHECK
        with suppress(OSError, Corrupt, ValueError):
            data = memoryview(file.read_bytes())
            if data[: len(_MAGIC)] != _MAGIC or data[len(_MAGIC) : start] != checksum(data[start:]):
                return None
            stored = decode(_SavedIndex, bytes(data[start:]))
            return cls(trees)._fill(stored)
        return None

    def _fill(self, stored: _SavedIndex) -> StatIndex:
        self.image = Oid(stored.image)
        self.root_stat = tuple(map(int, stored.root))
        self.pending = {path: dict(changes) for path, changes in stored.pending}
        trail: list[DirectoryNode] = []
        for item in stored.directories:
            node = DirectoryNode(item.packed)
            node.entry, node.rules_digest = item.entry, item.rules
            del trail[item.depth :]
            if trail:
                trail[-1].dirs[os.fsdecode(item.name)] = node
            else:
                self.root = node
            trail.append(node)
        self.mapped = set(stored.mapped)
        self.losses = {path: {} for path in stored.lossy}
        return self

    def _node(self, path: bytes) -> DirectoryNode:
        node = self.root
        for name in os.fsdecode(path).split("/") if path else ():
            node = node.dirs.get(name) or node.dirs.setdefault(name, DirectoryNode())
        return node

    def forget_below(self, path: bytes) -> None:
        """What waits or is remembered by path in a directory goes with it."""
        below = path + b"/"
        for known in (self.pending, self.losses):
            for at in [at for at in list(known) if at == path or at.startswith(below)]:
                known.pop(at, None)
        self.mapped = {at for at in self.mapped if not at.startswith(below)}

    def _mark_racy(self, path: bytes) -> None:
        """Unless it is recorded next, list this directory again: the name may still be there."""
        if not path:
            self.root_stat = with_mark(self.root_stat, RACY)
            return
        parent, _, name = path.rpartition(b"/")
        above, key = self.find(parent), os.fsdecode(name)
        if above is not None and key in above.stats:
            above.put(key, with_mark(above.stats[key], RACY))

    def mark_mapped(self, path: bytes, mapped: bool) -> None:
        """Some process writes this file through memory (read it again), or none does any more."""
        parent, _, name = path.rpartition(b"/")
        node, key = self.find(parent), os.fsdecode(name)
        if node is None or key not in node.stats:
            return
        was = node.stats[key]
        if mapped:
            node.put(key, with_mark(was, MAPPED | RACY))
            self.mapped.add(path)
        else:
            mark = marks_of(was) & ~MAPPED
            node.put(key, (*was[:9], mark) if mark else was[:9])
            self.mapped.discard(path)
