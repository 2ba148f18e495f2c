"""Records of the stat index: the last stat of one name, and a directory of them."""

from __future__ import annotations

import os
import stat
from struct import Struct
from struct import error as StructError  # noqa: N812

import msgspec

from ortet._util.codec import StoredRecord
from ortet.history.records import TreeEntry

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
