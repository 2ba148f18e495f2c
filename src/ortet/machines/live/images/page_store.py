"""Memory pages in the store: blobs of up to 128 KiB, and extents that locate pages in them.

A block that is equal to a stored one costs nothing. If only few pages of a block changed, only
these are stored, with references to the others. Pages are compared with the store, never with a
file on disk, which could have been changed since.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Final

import msgspec

from ortet._util.codec import decode, encode
from ortet._util.failpoints import failpoint
from ortet.errors import Corrupt
from ortet.history.records import PageMap
from ortet.ids import OID_BYTES, Oid
from ortet.machines.live.images.pagemap import PageAddresses, PageRun, PageSpan, read_exactly
from ortet.objects.base import Kind, ObjectStore
from ortet.objects.blobs import BLOCK_BYTES

# Page maps in the store: which pages of which blobs a memory file consists of.

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
        starts, page = [], 0
        for _, _, count in extents:
            starts.append(page)
            page += count
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
        contents = dict(objects.get_many(Oid(each) for each, _ in rows))
        maps = [decode(PageMap, contents[Oid(each)]) for each, _ in rows]
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


_MIN_PAGES_PER_EXTENT = 4
_FEW_EXTENTS = 4
"""Limits for a block that is made of extents.

A block is stored as a whole if it needs more than a few extents and more than one for each
`_MIN_PAGES_PER_EXTENT` pages. Otherwise every commit would split it further, and each piece keeps a
whole blob alive.
"""
_MAX_USELESS_COMPARISONS = 16
"""After so many comparisons with almost no reused page, the rest of a leaf is not compared."""
_ZERO_BLOCK: Final = bytes(BLOCK_BYTES)


class DeltaBaseline(msgspec.Struct, frozen=True):
    """The pages that are known to be stored already.

    `whole` are ids of whole blocks. `pieced` maps the content hash of a block to its extents.
    `held` and `places` are the stored pages and addresses of the previous version of the file.
    """

    whole: Set[bytes]
    pieced: Mapping[bytes, list[Extent]]
    held: StoredPages | None = None
    places: PageAddresses | None = None


class LeafWriter:
    """Stores one leaf of a memory file.

    Leaves are independent, so threads may store them in parallel.
    """

    def __init__(
        self,
        objects: ObjectStore,
        fd: int,
        *,
        page_size: int,
        addresses: PageAddresses,
        baseline: DeltaBaseline | None,
    ) -> None:
        self.pieced_blocks: dict[bytes, list[Extent]] = {}
        self._objects = objects
        self._fd = fd
        self._page_size = page_size
        self._addresses = addresses
        self._baseline = baseline
        self._new_pages = bytearray()  # changed pages that are collected for a blob
        self._pending_extents: list[tuple[int, int, int]] = []  # where the collected pages belong
        self._extents: list[Extent] = []
        self._compared_blocks = self._reused_pages = 0

    def store(self, blocks: Sequence[PageSpan]) -> list[Extent]:
        """Store blocks and return their extents; everything they refer to is stored."""
        pieced: list[tuple[bytes, int, int]] = []
        for page, count in blocks:
            start = len(self._extents)
            oid = self._store_block(page, count)
            if oid:
                pieced.append((oid, start, len(self._extents)))
        self._flush_new_pages()
        for oid, start, stop in pieced:
            self.pieced_blocks[oid] = self._extents[start:stop]
        failpoint("memory.leaf")
        return merge_adjacent(self._extents)

    def _store_block(self, first_page: int, count: int) -> bytes:
        """Store one block. Returns its content hash if it is made of several pieces, else b""."""
        data = read_exactly(self._fd, count * self._page_size, first_page * self._page_size)
        if data == _ZERO_BLOCK[: len(data)]:
            self._extents.append((b"", 0, count))
            return b""
        before = self._baseline
        if before is None:
            self._extents.append((self._objects.put(Kind.BLOB, data), 0, count))
            return b""
        oid = self._objects.hasher.oid(data)
        known = before.pieced.get(oid)
        if known is not None:
            self._extents += known
            return oid
        if oid in before.whole or not self._store_delta(data, first_page, count):
            if oid not in before.whole:
                self._objects.put(Kind.BLOB, data)
            self._extents.append((oid, 0, count))
            return b""
        return oid

    def _store_delta(self, data: bytes, first_page: int, count: int) -> bool:
        """Build a block from stored pages and its few changed pages; False if that does not pay."""
        before = self._baseline
        if before is None or before.held is None or before.places is None:
            return False
        if (
            self._compared_blocks >= _MAX_USELESS_COMPARISONS
            and self._reused_pages < self._compared_blocks
        ):
            return False
        pieces = self._compare_pages(data, first_page, count, before.held, before.places)
        changed = sum(length for oid, _, length in pieces if oid is None)
        self._compared_blocks += 1
        self._reused_pages += count - changed
        most = max(_FEW_EXTENTS, count // _MIN_PAGES_PER_EXTENT)
        if changed * 2 > count or (changed and len(pieces) > most):
            return False
        start = 0
        for oid, first, length in pieces:
            size = length * self._page_size
            if oid is None:
                self._add_new_pages(data[start : start + size], length)
            else:
                self._extents.append((oid, first, length))
            start += size
        return True

    def _compare_pages(
        self,
        data: bytes,
        first_page: int,
        count: int,
        stored: StoredPages,
        addresses: PageAddresses,
    ) -> list[tuple[bytes | None, int, int]]:
        """Return each page as a stored extent, or None where it is new.

        Adjacent extents are joined.
        """
        runs: list[tuple[bytes | None, int, int]] = []
        start, page, zeros = 0, self._page_size, _ZERO_BLOCK[: self._page_size]

        def add(oid: bytes | None, first: int, length: int) -> None:
            if runs:
                last, begin, so_far = runs[-1]
                if last == oid and (not oid or begin + so_far == first):
                    runs[-1] = (last, begin, so_far + length)
                    return
            runs.append((oid, first, length))

        for oid, first, length in self._stored_extents(first_page, count, stored, addresses):
            blob = self._objects.get(Oid(oid)) if oid else b""
            stop = start + length * page
            if blob and data[start:stop] == blob[first * page : (first + length) * page]:
                add(oid, first, length)
                start = stop
                continue
            for number in range(first, first + length):
                content = data[start : start + page]
                start += page
                if content == zeros:
                    add(b"", 0, 1)
                elif blob and content == blob[number * page : (number + 1) * page]:
                    add(oid, number, 1)
                else:
                    add(None, 0, 1)
        return runs

    def _stored_extents(
        self, first_page: int, count: int, stored: StoredPages, addresses: PageAddresses
    ) -> Iterator[Extent]:
        """Yield the stored extents at the addresses of these pages.

        An address with nothing stored yields an extent of zeros.
        """
        for address, length in self._addresses.addresses(first_page, count):
            for old, part in addresses.find_pages(address, length):
                if old is None:
                    yield b"", 0, part
                else:
                    yield from stored.page_extents(old, part)

    def _add_new_pages(self, data: bytes, count: int) -> None:
        if len(self._new_pages) + len(data) > BLOCK_BYTES:
            self._flush_new_pages()
        self._pending_extents.append(
            (len(self._extents), len(self._new_pages) // self._page_size, count)
        )
        self._extents.append((b"", 0, count))  # replaced when the blob has an id
        self._new_pages += data

    def _flush_new_pages(self) -> None:
        if self._new_pages:
            oid = self._objects.put(Kind.BLOB, bytes(self._new_pages))
            for number, first, count in self._pending_extents:
                self._extents[number] = (oid, first, count)
            self._new_pages.clear()
            self._pending_extents.clear()
