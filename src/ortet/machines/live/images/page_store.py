"""Memory pages in the store: blobs of up to 128 KiB, and maps that say which page is where in them.

A block that is the same as one before costs nothing. Of one that is not, only the pages that
changed are stored, if they are few, beside references to where the others lie already. What is
compared is read from the store, never from a directory: nobody can have changed it meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Final

import msgspec

from ortet._util.failpoints import reach
from ortet.ids import Oid
from ortet.machines.live.images.extents import Extent, Held, join
from ortet.machines.live.images.pagemap import Piece, Places, read_exactly
from ortet.objects.base import Kind, Objects
from ortet.objects.blobs import BLOCK

_PART = 4
_FEW = 4
"""A block is stored anew when it would be made of more extents than a few, or of one for so many
pages: else each commit would leave it in smaller pieces, each of them holding a whole blob."""
_TRIES = 16
"""After so many blocks of which next to nothing was left, no more of a leaf are compared."""
_ZEROS: Final = bytes(BLOCK)


class Before(msgspec.Struct, frozen=True):
    """What is known to be stored: `whole` blocks, blocks made of pieces by the hash of their
    content, and what lay at the addresses of the file that is about to be stored."""

    whole: Set[bytes]
    pieced: Mapping[bytes, list[Extent]]
    held: Held | None = None
    places: Places | None = None


class Leaf:
    """Stores one leaf of a file of pages. Leaves do not know each other: threads may share them."""

    def __init__(
        self, objects: Objects, fd: int, *, page: int, places: Places, before: Before | None
    ) -> None:
        self.pieced: dict[bytes, list[Extent]] = {}
        self._objects = objects
        self._fd = fd
        self._page = page
        self._places = places
        self._before = before
        self._fresh = bytearray()  # changed pages, on their way into a blob
        self._loose: list[tuple[int, int, int]] = []  # where they are wanted
        self._extents: list[Extent] = []
        self._tries = self._saved = 0

    def keep(self, blocks: Sequence[Piece]) -> list[Extent]:
        """The extents of these blocks; all they refer to is stored."""
        pieced: list[tuple[bytes, int, int]] = []
        for at, count in blocks:
            start = len(self._extents)
            oid = self._block(at, count)
            if oid:
                pieced.append((oid, start, len(self._extents)))
        self._store_fresh()
        for oid, start, stop in pieced:
            self.pieced[oid] = self._extents[start:stop]
        reach("memory.leaf")
        return join(self._extents)

    def _block(self, at: int, count: int) -> bytes:
        """Take one block; the hash of its content if it is made of pieces, else b""."""
        data = read_exactly(self._fd, count * self._page, at * self._page)
        if data == _ZEROS[: len(data)]:
            self._extents.append((b"", 0, count))
            return b""
        before = self._before
        if before is None:
            self._extents.append((self._objects.put(Kind.BLOB, data), 0, count))
            return b""
        oid = self._objects.hasher.oid(data)
        known = before.pieced.get(oid)
        if known is not None:
            self._extents += known
            return oid
        if oid in before.whole or not self._piece(data, at, count):
            if oid not in before.whole:
                self._objects.put(Kind.BLOB, data)
            self._extents.append((oid, 0, count))
            return b""
        return oid

    def _piece(self, data: bytes, at: int, count: int) -> bool:
        """Make a block of what is stored and of its few changed pages; False when that does not
        pay."""
        before = self._before
        if before is None or before.held is None or before.places is None:
            return False
        if self._tries >= _TRIES and self._saved < self._tries:
            return False
        pieces = self._pages(data, at, count, before.held, before.places)
        changed = sum(length for oid, _, length in pieces if oid is None)
        self._tries += 1
        self._saved += count - changed
        most = max(_FEW, count // _PART)
        if changed * 2 > count or (changed and len(pieces) > most):
            return False
        start = 0
        for oid, first, length in pieces:
            size = length * self._page
            if oid is None:
                self._add_fresh(data[start : start + size], length)
            else:
                self._extents.append((oid, first, length))
            start += size
        return True

    def _pages(
        self, data: bytes, at: int, count: int, held: Held, places: Places
    ) -> list[tuple[bytes | None, int, int]]:
        """Each page as it is stored already, None where it is new, neighbours joined."""
        found: list[tuple[bytes | None, int, int]] = []
        start, page, zeros = 0, self._page, _ZEROS[: self._page]

        def add(oid: bytes | None, first: int, length: int) -> None:
            if found:
                last, begin, so_far = found[-1]
                if last == oid and (not oid or begin + so_far == first):
                    found[-1] = (last, begin, so_far + length)
                    return
            found.append((oid, first, length))

        for oid, first, length in self._old(at, count, held, places):
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

    def _old(self, at: int, count: int, held: Held, places: Places) -> Iterator[Extent]:
        """What was stored of these addresses; zeros where there was nothing."""
        for address, length in self._places.addresses(at, count):
            for old, part in places.find(address, length):
                if old is None:
                    yield b"", 0, part
                else:
                    yield from held.cut(old, part)

    def _add_fresh(self, data: bytes, count: int) -> None:
        if len(self._fresh) + len(data) > BLOCK:
            self._store_fresh()
        self._loose.append((len(self._extents), len(self._fresh) // self._page, count))
        self._extents.append((b"", 0, count))  # until the blob has an Oid
        self._fresh += data

    def _store_fresh(self) -> None:
        if self._fresh:
            oid = self._objects.put(Kind.BLOB, bytes(self._fresh))
            for number, first, count in self._loose:
                self._extents[number] = (oid, first, count)
            self._fresh.clear()
            self._loose.clear()
