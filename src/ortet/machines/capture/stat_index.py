"""The stat index of a workspace: the stat of each name, so that unchanged files are not read.

The index does not keep tree entries. They are in the tree of the directory's own entry, except
those recorded since that tree was made (`pending`). So 30 000 files load in about 20 ms.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Set
from contextlib import suppress
from pathlib import Path
from struct import Struct
from struct import error as StructError  # noqa: N812

import msgspec

from ortet._util.codec import StoredRecord, checksum, decode, encode
from ortet.errors import Corrupt
from ortet.history.records import TreeEntry
from ortet.history.tree.tree import Trees
from ortet.ids import Oid
from ortet.machines.base import Loss
from ortet.machines.dirfd import join_path

# Measures the granularity of ctime: the margin within which a file counts as racy.

TICK_NS = 20_000_000
"""The coarse clock of a kernel ticks every 1 to 10 ms; twice the longest tick is safe."""
COARSE_NS = 2_000_000_000
"""The granularity of file systems with whole seconds, and of those that cannot be tested."""

_TRIES = 8


def ctime_granularity_ns(root: Path) -> int:
    """Return the ctime granularity below `root` in nanoseconds.

    Returns 0 if the kernel gives each change after a stat a new ctime. The test uses a file without
    a name, so the directory and its times do not change.
    """
    try:
        fd = os.open(root, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except (OSError, AttributeError):
        return COARSE_NS
    try:
        times = set()
        for number in range(_TRIES):
            os.pwrite(fd, b"%d" % number, 0)
            times.add(os.fstat(fd).st_ctime_ns)
    except OSError:
        return COARSE_NS
    finally:
        os.close(fd)
    if len(times) == _TRIES:
        return 0
    return COARSE_NS if all(time % 1_000_000_000 == 0 for time in times) else TICK_NS


# Records of the stat index: the last stat of one name, and a directory of them.

StatRecord = tuple[int, ...]
"""mode, ino, dev, nlink, uid, gid, size, mtime, ctime, and optionally a tenth item with marks.

A record with marks never equals a fresh `stat_record(st)`, so a marked name always takes the slow
path.
"""

RACY = 1  # changed so recently that a later write could leave the same stat
NOT_APPLIED = 2  # owner, mode or time of the entry could not be applied to the disk
MAPPED = 4  # a process writes through a memory mapping, which may not change mtime

STAT = Struct("<6Q3q")
"""The saved form of a StatRecord without marks."""

_INODE_OF_STAT = Struct("<8xQ56x")
"""The inode in the saved form."""


def stat_record(st: os.stat_result) -> StatRecord:
    """Return the fields that show a change."""
    return (*st[:7], st.st_mtime_ns, st.st_ctime_ns)


def marks_of(was: StatRecord) -> int:
    return was[9] if len(was) > 9 else 0


def is_unchanged(was: StatRecord, st: os.stat_result | None) -> bool:
    """Return True if the stat equals the recorded one, and that one was not racy."""
    return st is not None and was[:9] == stat_record(st) and not marks_of(was) & RACY


def is_dir(was: StatRecord) -> bool:
    return bool(was) and stat.S_ISDIR(was[0])


def is_linked(was: StatRecord) -> bool:
    """Return True for a file with more than one name."""
    return bool(was) and was[3] > 1 and not stat.S_ISDIR(was[0])


class PackedStats(StoredRecord, frozen=True):
    """The names of a directory in saved form. Most directories stay in this form in memory."""

    names: bytes = b""  # joined by slashes
    stats: bytes = b""
    marks: list[tuple[bytes, int]] = []
    far: list[tuple[bytes, str]] = []  # mtimes that do not fit into `stats`
    linked: list[bytes] = []


class DirectoryNode:
    """A directory as last scanned: its entry, the stat of every name, and its subdirectories."""

    __slots__ = ("_linked", "_stats", "dirs", "entry", "packed", "rules_digest")

    def __init__(self, packed: PackedStats | None = None) -> None:
        self.entry: TreeEntry | None = None
        self.rules_digest = b""
        self.dirs: dict[str, DirectoryNode] = {}
        self.packed = packed
        self._stats: dict[str, StatRecord] | None = None if packed else {}
        self._linked: set[str] = set()

    @property
    def stats(self) -> dict[str, StatRecord]:
        """The stat of every name. Change it only by `put` and `drop`."""
        if self._stats is None:
            self._unpack()
        assert self._stats is not None
        return self._stats

    @property
    def linked(self) -> set[str]:
        """The names of files with more than one name."""
        if self._stats is None and self.packed is not None:
            return set(map(os.fsdecode, self.packed.linked))
        return self._linked

    def put(self, name: str, was: StatRecord) -> None:
        self.stats[name] = was
        self.packed = None
        if is_linked(was):
            self._linked.add(name)
        elif self._linked:
            self._linked.discard(name)

    def drop(self, name: str) -> None:
        self.stats.pop(name, None)
        self.packed = None
        self.dirs.pop(name, None)
        self._linked.discard(name)

    def pack(self) -> PackedStats:
        """Return the saved form. It is cached: most directories do not change between two saves."""
        if self.packed is None:
            known = self.stats
            far: list[tuple[bytes, str]] = []
            try:
                stats = [STAT.pack(*was[:9]) for was in known.values()]
            except StructError:
                far = [(os.fsencode(n), str(was[7])) for n, was in known.items()]
                stats = [STAT.pack(*was[:7], 0, was[8]) for was in known.values()]
            self.packed = PackedStats(
                os.fsencode("/".join(known)),
                b"".join(stats),
                [(os.fsencode(name), was[9]) for name, was in known.items() if len(was) > 9],
                far,
                sorted(map(os.fsencode, self._linked)),
            )
        return self.packed

    def names(self) -> list[str]:
        if self._stats is not None:
            return list(self._stats)
        assert self.packed is not None
        return os.fsdecode(self.packed.names).split("/") if self.packed.names else []

    def inodes(self) -> Iterator[int]:
        """Yield the inode of every name. A packed directory stays packed."""
        if self._stats is not None:
            return (was[1] for was in self._stats.values())
        assert self.packed is not None
        return (inode for (inode,) in _INODE_OF_STAT.iter_unpack(self.packed.stats))

    def _unpack(self) -> None:
        names = self.names()
        assert self.packed is not None
        known: dict[str, StatRecord] = dict(
            zip(names, STAT.iter_unpack(self.packed.stats), strict=True)
        )
        for name, mtime in self.packed.far:
            was = known[os.fsdecode(name)]
            known[os.fsdecode(name)] = (*was[:7], int(mtime), was[8])
        for name, mark in self.packed.marks:
            known[os.fsdecode(name)] += (mark,)
        self._linked = set(map(os.fsdecode, self.packed.linked))
        self._stats = known


def with_mark(was: StatRecord, mark: int) -> StatRecord:
    return (*was[:9], marks_of(was) | mark) if was else was


def keep_unapplied_metadata(entry: TreeEntry, was: StatRecord, old: TreeEntry | None) -> TreeEntry:
    """Keep fields of `old` that could not be applied to the disk, where the disk is unchanged."""
    if old is None or stat.S_IFMT(old.mode) != stat.S_IFMT(entry.mode):
        return entry
    return msgspec.structs.replace(
        entry,
        mode=old.mode if entry.mode == was[0] else entry.mode,
        uid=old.uid if entry.uid == was[4] else entry.uid,
        gid=old.gid if entry.gid == was[5] else entry.gid,
        mtime=old.mtime if entry.mtime == was[7] else entry.mtime,
    )


__all__ = ["NEVER_RACY", "NOT_APPLIED", "StatIndex", "StatRecord", "marks_of", "stat_record"]

NEVER_RACY = 1 << 62
"""A `horizon` in the far future: no file is racy."""

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
    """The stat index of one workspace.

    `record` may be called by several threads for different paths.

    `horizon`: a ctime at or after this time is racy. The caller sets it before a scan to the
    present time minus the clock's granularity. It stays at NEVER_RACY if every change gets a ctime
    of its own.

    `image`: the image that a loaded index relies on. The index is useless if that image is not in
    the store.
    """

    def __init__(self, trees: Trees) -> None:
        self.trees = trees
        self.root = DirectoryNode()
        self.root_stat: StatRecord = ()
        self.pending: dict[bytes, dict[bytes, TreeEntry | None]] = {}
        self.links: bytes | None = None  # Oid of the hardlink groups; None: to be computed again
        self.losses: dict[bytes, dict[str, list[Loss]]] = {}  # by directory and name
        self.mapped: set[bytes] = set()  # memory-mapped paths, to be compared at every scan
        self.foreign_inodes: set[int] = set()  # mapped inodes that are no file of the workspace
        self.horizon = NEVER_RACY
        self.device = 0  # the device of the root, to which `horizon` applies
        self.foreign_horizon = NEVER_RACY  # the horizon on file systems mounted below the root
        self.image = Oid(b"")

    def record(self, path: bytes, st: os.stat_result, entry: TreeEntry) -> None:
        """Record that `path` (b"" is the root) is now `entry` and has the stat `st` on disk.

        Record a directory after its content. Its entry must name exactly the tree that results from
        the previous tree and all names recorded and forgotten since. Names and metadata of that
        tree that could not be created on disk stay part of the state.
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
        self.foreign_inodes.discard(st.st_ino)
        self.pending.setdefault(parent, {})[name] = entry

    def stat_with_marks(self, st: os.stat_result, entry: TreeEntry, mark: int = 0) -> StatRecord:
        """Return the stat to store for an entry, with its marks."""
        was = stat_record(st)
        at_home = st.st_dev == self.device
        if st.st_ctime_ns >= (self.horizon if at_home else min(self.horizon, self.foreign_horizon)):
            mark |= RACY
        if (entry.mode, entry.uid, entry.gid, entry.mtime) != (was[0], was[4], was[5], was[7]):
            mark |= NOT_APPLIED
        return (*was, mark) if mark else was

    def forget(self, path: bytes) -> None:
        """Remove `path` and everything below it."""
        if not path:
            self.root, self.root_stat, self.links = DirectoryNode(), (), None
            self.pending.clear()
            self.losses.clear()
            self.mapped.clear()
            self.foreign_inodes.clear()
            return
        parent, _, name = path.rpartition(b"/")
        node = self.find(parent)
        if node is None:
            return
        key = os.fsdecode(name)
        if key in node.dirs:
            self.forget_below(path)
        node.drop(key)
        self.mapped.discard(path)
        self._mark_racy(parent)
        self.links = None
        self.pending.setdefault(parent, {})[name] = None

    def lookup(self, path: bytes, st: os.stat_result) -> TreeEntry | None:
        """Return the entry of a name with an unchanged stat, or None if it has to be read again.

        The entry of a directory names its tree as of the last scan.
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
        """Return the entry of this name in the directory's tree."""
        if node.entry is None or not node.entry.data:
            return None
        return self.trees.lookup(Oid(node.entry.data), name)

    def find(self, path: bytes) -> DirectoryNode | None:
        """Return the node of the directory at `path`, or None if it was never scanned."""
        node: DirectoryNode | None = self.root
        for name in os.fsdecode(path).split("/") if path else ():
            node = node.dirs.get(name) if node is not None else None
        return node

    def nodes(self) -> Iterator[tuple[int, str, DirectoryNode]]:
        """Yield (depth, name, directory); each directory comes before its subdirectories."""
        stack = [(0, "", self.root)]
        while stack:
            depth, name, node = stack.pop()
            yield depth, name, node
            stack += [(depth + 1, below, child) for below, child in node.dirs.items()]

    def save(self, file: Path, image: Oid) -> None:
        """Replace `file` by this index, which relies on `image`."""
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
        """Return the saved index, or None if it is missing, damaged or of another version."""
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
        """Remove everything that is stored by path for a directory and below it."""
        below = path + b"/"
        for known in (self.pending, self.losses):
            for directory in [
                directory
                for directory in list(known)
                if directory == path or directory.startswith(below)
            ]:
                known.pop(directory, None)
        self.mapped = {directory for directory in self.mapped if not directory.startswith(below)}

    def _mark_racy(self, path: bytes) -> None:
        """Mark a directory as racy, so that it is listed again unless it is recorded next.

        The forgotten name may still exist.
        """
        if not path:
            self.root_stat = with_mark(self.root_stat, RACY)
            return
        parent, _, name = path.rpartition(b"/")
        above, key = self.find(parent), os.fsdecode(name)
        if above is not None and key in above.stats:
            above.put(key, with_mark(above.stats[key], RACY))

    def compare_content(self, path: bytes) -> None:
        """Let the next scan that looks at this file read it, even if its stat is unchanged."""
        parent, _, name = path.rpartition(b"/")
        node, key = self.find(parent), os.fsdecode(name)
        if node is not None and key in node.stats:
            node.put(key, with_mark(node.stats[key], RACY))

    def mark_mapped_inodes(self, inodes: Set[int]) -> None:
        """Mark the files among `inodes`, all inodes that some process has mapped for writing.

        A file that was marked and is no longer mapped is read one last time.
        """
        known: set[int] = set()
        for path in list(self.mapped):
            inode = self._inode(path)
            if inode is None:
                self.mapped.discard(path)
            elif inode in inodes:
                known.add(inode)
            else:
                self.compare_content(path)
        self.foreign_inodes &= inodes
        fresh = inodes - self.foreign_inodes - known
        if fresh:
            self.foreign_inodes |= fresh - self.mark_mapped_files(fresh)

    def mark_mapped_files(self, inodes: Set[int]) -> set[int]:
        """Mark all names of these inodes as mapped, and return the inodes that have a name."""
        found: set[int] = set()
        stack = [(b"", self.root)]
        while stack:
            path, node = stack.pop()
            if not inodes.isdisjoint(node.inodes()):
                names = [n for n, was in node.stats.items() if was[1] in inodes and not is_dir(was)]
                for name in names:
                    found.add(node.stats[name][1])
                    self.mark_mapped(join_path(path, os.fsencode(name)), True)
            for name, child in node.dirs.items():
                stack.append((join_path(path, os.fsencode(name)), child))
        return found

    def _inode(self, path: bytes) -> int | None:
        """Return the inode of a name as of the last scan."""
        parent, _, name = path.rpartition(b"/")
        node, key = self.find(parent), os.fsdecode(name)
        return node.stats[key][1] if node is not None and key in node.stats else None

    def mark_mapped(self, path: bytes, mapped: bool) -> None:
        """Mark or unmark a file that some process writes through a memory mapping.

        A marked file is read again at the next scan.
        """
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
