"""Memory pages in the store: blobs of up to 128 KiB, and extents that locate pages in them.

A block that is equal to a stored one costs nothing. If only few pages of a block changed, only
these are stored, with references to the others. Pages are compared with the store, never with a
file on disk, which could have been changed since.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Final

import msgspec

from ortet._util.failpoints import failpoint
from ortet.ids import Oid
from ortet.machines.live.images.extents import Extent, StoredPages, merge_adjacent
from ortet.machines.live.images.pagemap import PageAddresses, PageSpan, read_exactly
from ortet.objects.base import Kind, ObjectStore
from ortet.objects.blobs import BLOCK_BYTES

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
        for at, count in blocks:
            start = len(self._extents)
            oid = self._store_block(at, count)
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
        found: list[tuple[bytes | None, int, int]] = []
        start, page, zeros = 0, self._page_size, _ZERO_BLOCK[: self._page_size]

        def add(oid: bytes | None, first: int, length: int) -> None:
            if found:
                last, begin, so_far = found[-1]
                if last == oid and (not oid or begin + so_far == first):
                    found[-1] = (last, begin, so_far + length)
                    return
            found.append((oid, first, length))

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
        return found

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
