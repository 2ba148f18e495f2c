"""Maps of stored memory pages: which pages of which blobs a file is made of."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import msgspec

from ortet._util.codec import decode, encode
from ortet.errors import Corrupt
from ortet.history.records import PageMap
from ortet.ids import OID_BYTES, Oid
from ortet.machines.live.images.pagemap import Run
from ortet.objects.base import Kind, Objects

Extent = tuple[bytes, int, int]
"""(Oid of a blob, b"" for zeros; first page in it; pages)."""

_FAN = 1024


class Held(msgspec.Struct, frozen=True):
    """A file of pages as it lies in the store: its addresses, its extents, where each begins."""

    runs: list[Run]
    extents: list[Extent]
    starts: list[int]

    @classmethod
    def of(cls, runs: list[Run], extents: list[Extent]) -> Held:
        starts, at = [], 0
        for _, _, count in extents:
            starts.append(at)
            at += count
        return cls(runs, extents, starts)

    def cut(self, at: int, count: int) -> Iterator[Extent]:
        """The extents of these pages of the file."""
        number = bisect_right(self.starts, at) - 1
        while count:
            oid, first, length = self.extents[number]
            skip = at - self.starts[number]
            take = min(count, length - skip)
            yield oid, first + skip if oid else 0, take
            at, count, number = at + take, count - take, number + 1


def join(extents: Sequence[Extent]) -> list[Extent]:
    """The same with those that follow each other made one, so that one content has one map."""
    joined: list[Extent] = []
    for oid, first, count in extents:
        if joined:
            last, begin, length = joined[-1]
            if last == oid and (not oid or begin + length == first):
                joined[-1] = (last, begin, length + count)
                continue
        joined.append((oid, first, count))
    return joined


# maps


def put_leaf(objects: Objects, extents: Sequence[Extent]) -> tuple[bytes, int]:
    """(Oid, pages) of a map of these."""
    return _put(objects, 0, extents)


def put_root(objects: Objects, leaves: Sequence[tuple[bytes, int]]) -> bytes:
    """The Oid of the map of a whole file, from its leaves; b"" for an empty one."""
    level, row = 0, list(leaves)
    while len(row) > 1:
        level += 1
        row = [
            _put(objects, level, [(oid, 0, pages) for oid, pages in row[start : start + _FAN]])
            for start in range(0, len(row), _FAN)
        ]
    return row[0][0] if row else b""


def _put(objects: Objects, level: int, extents: Sequence[Extent]) -> tuple[bytes, int]:
    numbers: dict[bytes, int] = {}
    rows: list[tuple[int, int, int]] = []
    for oid, first, count in extents:
        rows.append((numbers.setdefault(oid, len(numbers)) if oid else -1, first, count))
    pages = sum(count for _, _, count in rows)
    record = PageMap(level, pages, b"".join(numbers), rows)
    return objects.put(Kind.PAGES, encode(record)), pages


def read_extents(objects: Objects, oid: bytes) -> list[Extent]:
    """All extents of a stored file of pages, in its order."""
    if not oid:
        return []
    rows: list[tuple[bytes, int | None]] = [(oid, None)]
    level: int | None = None
    while True:
        found = dict(objects.get_many(Oid(each) for each, _ in rows))
        maps = [decode(PageMap, found[Oid(each)]) for each, _ in rows]
        for record, (each, pages) in zip(maps, rows, strict=True):
            if pages not in (None, record.pages) or level not in (None, record.level):
                raise bad_pages(each, "is not the page map its parent asks for")
        level = maps[0].level
        extents = [extent for record in maps for extent in _extents(record, oid)]
        if not level:
            return join(extents)
        rows = [(each, pages) for each, _, pages in extents]
        level -= 1


def _extents(record: PageMap, root: bytes) -> Iterator[Extent]:
    run = record.children
    oids = [run[start : start + OID_BYTES] for start in range(0, len(run), OID_BYTES)]
    pages = 0
    for number, first, count in record.extents:
        if not -1 <= number < len(oids) or first < 0 or count <= 0:
            raise bad_pages(root, "has impossible extents")
        pages += count
        yield (oids[number], first, count) if number >= 0 else (b"", 0, count)
    if pages != record.pages:
        raise bad_pages(root, "has extents that do not add up")


def bad_pages(oid: bytes, why: str) -> Corrupt:
    return Corrupt("bad_pages", f"object {oid.hex()} {why}: run `ortet verify`", oid=oid.hex())
