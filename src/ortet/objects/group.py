"""Group indexes: one index over several packs.

Look-up time then does not grow with the number of packs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ortet.errors import Corrupt
from ortet.ids import Oid
from ortet.objects.pack import Pack, PackSource
from ortet.objects.pack_index import CoveredPack, PackIndex, encode_slots, open_index, write_index
from ortet.objects.source import ObjectLocation

GROUP_SUFFIX = ".grp"
MERGE_MIN_TABLES = 16
"""Merge indexes when there are at least this many to search."""
MERGE_BATCH_TABLES = 12
"""How many indexes one merge combines. Small enough to cause no noticeable delay."""


class PackGroup:
    """One index over several packs. Some of these packs may be deleted by now."""

    def __init__(self, path: Path, index: PackIndex, packs: Mapping[str, PackSource]) -> None:
        self.path = path
        self._index = index
        self.packs: list[PackSource | None] = []
        self.update_packs(packs)

    def update_packs(self, packs: Mapping[str, PackSource]) -> None:
        """Set which of the covered packs exist."""
        owners: list[PackSource | None] = []
        for id_, size in self._index.packs:
            pack = packs.get(id_)
            owners.append(pack if pack is not None and pack.end == size else None)
        self.packs = owners

    def find(self, oid: Oid) -> ObjectLocation | None:
        """Return one location of the object in an existing pack, or None."""
        place = self._index.find(oid)
        if place is None:
            return None
        pack = self.packs[place[0]]
        return next(self.copies(oid), None) if pack is None else (pack, *place[1:])

    def copies(self, oid: Oid) -> Iterator[ObjectLocation]:
        """Yield every location of the object in existing packs."""
        for number, *place in self._index.find_all(oid):
            pack = self.packs[number]
            if pack is not None:
                offset, start, length, kind = place
                yield pack, offset, start, length, kind

    def filter_words(self, slot: int) -> list[int]:
        """Return the filter words of a slot. See PackIndex.filter_words."""
        return self._index.filter_words(slot)

    def iter_range(self, low: bytes, high: bytes) -> Iterator[tuple[Oid, int]]:
        return self._index.iter_range(low, high)

    def slots(self, numbers: Mapping[str, int]) -> Iterator[list[bytes]]:
        """Yield the entries of each of the 256 slots, with pack numbers taken from `numbers`."""
        renumber = [-1 if pack is None else numbers[pack.id] for pack in self.packs]
        for slot in range(256):
            yield list(self._index.entries(slot, renumber))


def load_groups(
    directory: Path, packs: Mapping[str, PackSource], loaded: Sequence[PackGroup]
) -> tuple[list[PackGroup], set[str]]:
    """Return the groups to search, largest first, and the ids of the packs that they cover."""
    held = {group.path.name: group for group in loaded}
    groups: list[PackGroup] = []
    for name in os.listdir(directory):
        if name.endswith(GROUP_SUFFIX):
            group = held.get(name)
            with contextlib.suppress(FileNotFoundError, Corrupt):
                if group is None:
                    group = PackGroup(directory / name, open_index(directory / name), packs)
                else:
                    group.update_packs(packs)
                groups.append(group)
    groups.sort(key=lambda group: (len(group.packs), group.path.name), reverse=True)
    used: list[PackGroup] = []
    covered: set[str] = set()
    for group in groups:
        alive = {pack.id for pack in group.packs if pack is not None}
        if not alive <= covered:
            covered |= alive
            used.append(group)
    return used, covered


def merge_indexes(
    path: Path, groups: Sequence[PackGroup], singles: Sequence[Pack], *, limit: int
) -> None:
    """Write one index that replaces the `limit` smallest of these, and delete the replaced groups.

    Processes that have a replaced group mapped continue to use it.
    """
    tables: list[PackGroup | Pack] = sorted([*groups, *singles], key=_merge_order)
    tables = tables[:limit]
    members = {pack.id: pack for table in tables for pack in _members(table)}
    numbers = {id_: number for number, id_ in enumerate(members)}
    streams = [
        table.slots(numbers)
        if isinstance(table, PackGroup)
        else _pack_slots(table, numbers[table.id])
        for table in tables
    ]
    covered: list[CoveredPack] = [(pack.id, pack.end) for pack in members.values()]
    slots = ([entry for part in parts for entry in part] for parts in zip(*streams, strict=True))
    write_index(path, encode_slots(covered, slots))
    for table in tables:
        if isinstance(table, PackGroup):
            with contextlib.suppress(FileNotFoundError):
                table.path.unlink()


def _merge_order(table: PackGroup | Pack) -> tuple[int, str]:
    """Sort key: small before large, old before new."""
    return (len(table.packs), table.path.name) if isinstance(table, PackGroup) else (1, table.id)


def _members(table: PackGroup | Pack) -> list[PackSource]:
    if isinstance(table, Pack):
        return [table]
    return [pack for pack in table.packs if pack is not None]


def _pack_slots(pack: Pack, number: int) -> Iterator[list[bytes]]:
    index = pack.load_index()
    for slot in range(256):
        yield list(index.entries(slot, [number]))
