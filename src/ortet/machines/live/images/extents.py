"""Page maps in the store: which pages of which blobs a memory file consists of."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import msgspec

from ortet._util.codec import decode, encode
from ortet.errors import Corrupt
from ortet.history.records import PageMap
from ortet.ids import OID_BYTES, Oid
from ortet.machines.live.images.pagemap import PageRun
from ortet.objects.base import Kind, ObjectStore

Extent = tuple[bytes, int, int]
"""(id of a blob, or b"" for zeros; first page in the blob; number of pages)."""

_MAP_FANOUT = 1024


class StoredPages(msgspec.Struct, frozen=True):
    """A memory file in the store.

    `runs` are its addresses, and `starts` has the first page of each of its `extents`.
    """

    runs: list[PageRun]
    extents: list[Extent]
    starts: list[int]

    @classmethod
    def from_extents(cls, runs: list[PageRun], extents: list[Extent]) -> StoredPages:
        starts, at = [], 0
        for _, _, count in extents:
            starts.append(at)
            at += count
        return cls(runs, extents, starts)

    def page_extents(self, first_page: int, count: int) -> Iterator[Extent]:
        """Yield the extents of a range of pages of the file."""
        number = bisect_right(self.starts, first_page) - 1
        while count:
            oid, first, length = self.extents[number]
            skip = first_page - self.starts[number]
            take = min(count, length - skip)
            yield oid, first + skip if oid else 0, take
            first_page, count, number = first_page + take, count - take, number + 1


def merge_adjacent(extents: Sequence[Extent]) -> list[Extent]:
    """Coalesce adjacent extents, so that equal content always has the same page map."""
    joined: list[Extent] = []
    for oid, first, count in extents:
        if joined:
            last, begin, length = joined[-1]
            if last == oid and (not oid or begin + length == first):
                joined[-1] = (last, begin, length + count)
                continue
        joined.append((oid, first, count))
    return joined


# page maps


def put_leaf(objects: ObjectStore, extents: Sequence[Extent]) -> tuple[bytes, int]:
    """Store a map of extents, and return its id and its number of pages."""
    return _put_map(objects, 0, extents)


def put_root(objects: ObjectStore, leaves: Sequence[tuple[bytes, int]]) -> bytes:
    """Store the map of a whole file from its leaves, and return its id; b"" for an empty file."""
    level, row = 0, list(leaves)
    while len(row) > 1:
        level += 1
        row = [
            _put_map(
                objects, level, [(oid, 0, pages) for oid, pages in row[start : start + _MAP_FANOUT]]
            )
            for start in range(0, len(row), _MAP_FANOUT)
        ]
    return row[0][0] if row else b""


def _put_map(objects: ObjectStore, level: int, extents: Sequence[Extent]) -> tuple[bytes, int]:
    numbers: dict[bytes, int] = {}
    rows: list[tuple[int, int, int]] = []
    for oid, first, count in extents:
        rows.append((numbers.setdefault(oid, len(numbers)) if oid else -1, first, count))
    pages = sum(count for _, _, count in rows)
    record = PageMap(level, pages, b"".join(numbers), rows)
    return objects.put(Kind.PAGES, encode(record)), pages


def read_extents(objects: ObjectStore, oid: bytes) -> list[Extent]:
    """Return all extents of a stored memory file, in file order."""
    if not oid:
        return []
    rows: list[tuple[bytes, int | None]] = [(oid, None)]
    level: int | None = None
    while True:
        found = dict(objects.get_many(Oid(each) for each, _ in rows))
        maps = [decode(PageMap, found[Oid(each)]) for each, _ in rows]
        for record, (each, pages) in zip(maps, rows, strict=True):
            if pages not in (None, record.pages) or level not in (None, record.level):
                raise corrupt_pages(each, "is not the page map its parent asks for")
        level = maps[0].level
        extents = [extent for record in maps for extent in _map_extents(record, oid)]
        if not level:
            return merge_adjacent(extents)
        rows = [(each, pages) for each, _, pages in extents]
        level -= 1


def _map_extents(record: PageMap, root: bytes) -> Iterator[Extent]:
    run = record.children
    oids = [run[start : start + OID_BYTES] for start in range(0, len(run), OID_BYTES)]
    pages = 0
    for number, first, count in record.extents:
        if not -1 <= number < len(oids) or first < 0 or count <= 0:
            raise corrupt_pages(root, "has impossible extents")
        pages += count
        yield (oids[number], first, count) if number >= 0 else (b"", 0, count)
    if pages != record.pages:
        raise corrupt_pages(root, "has extents that do not add up")


def corrupt_pages(oid: bytes, why: str) -> Corrupt:
    """Return the error for an invalid page map or blob."""
    return Corrupt("bad_pages", f"object {oid.hex()} {why}: run `ortet verify`", oid=oid.hex())
