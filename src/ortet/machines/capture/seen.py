"""The stat of one name as it was last seen, and a directory of them."""

from __future__ import annotations

import os
import stat
from struct import Struct
from struct import error as StructError  # noqa: N812

import msgspec

from ortet._util.codec import StoredRecord
from ortet.history.records import TreeEntry

StatRecord = tuple[int, ...]
"""mode, ino, dev, nlink, uid, gid, size, mtime, ctime; a tenth item holds marks, and then it equals
no fresh `seen(st)`: marked names always take the slow way."""

RACY = 1  # written so shortly before we looked that a later write could have left the same stat
NOT_APPLIED = 2  # the Entry says more than the disk could be made to say (owner, mode, time)
MAPPED = 4  # some process stores into it through memory, which moves no time by itself

STAT = Struct("<6Q3q")
"""How a Seen without marks is saved."""


def stat_record(st: os.stat_result) -> StatRecord:
    """The fields by which a change is noticed."""
    return (*st[:7], st.st_mtime_ns, st.st_ctime_ns)


def marks_of(was: StatRecord) -> int:
    return was[9] if len(was) > 9 else 0


def is_unchanged(was: StatRecord, st: os.stat_result | None) -> bool:
    """The stat is as it was, and was not racy."""
    return st is not None and was[:9] == stat_record(st) and not marks_of(was) & RACY


def is_dir(was: StatRecord) -> bool:
    return bool(was) and stat.S_ISDIR(was[0])


def is_linked(was: StatRecord) -> bool:
    """A file that has other names too."""
    return bool(was) and was[3] > 1 and not stat.S_ISDIR(was[0])


class PackedStats(StoredRecord, frozen=True):
    """The names of a directory in the form they are saved in; most stay in it."""

    names: bytes = b""  # joined by slashes
    stats: bytes = b""
    marks: list[tuple[bytes, int]] = []
    far: list[tuple[bytes, str]] = []  # mtimes of another millennium, which `stats` cannot hold
    linked: list[bytes] = []


class DirectoryNode:
    """A directory as last seen: its Entry, the stat of every name in it, its directories."""

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
        """Not to be changed but by `put` and `drop`."""
        if self._stats is None:
            self._unpack()
        assert self._stats is not None
        return self._stats

    @property
    def linked(self) -> set[str]:
        """Names of files that have other names too."""
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
        """Kept, because most directories do not change between two saves."""
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
    """Where a field looks on disk as it did, what could not be applied there is still meant."""
    if old is None or stat.S_IFMT(old.mode) != stat.S_IFMT(entry.mode):
        return entry
    return msgspec.structs.replace(
        entry,
        mode=old.mode if entry.mode == was[0] else entry.mode,
        uid=old.uid if entry.uid == was[4] else entry.uid,
        gid=old.gid if entry.gid == was[5] else entry.gid,
        mtime=old.mtime if entry.mtime == was[7] else entry.mtime,
    )
