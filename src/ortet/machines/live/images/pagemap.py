"""Maps memory pages of a CRIU image to addresses, and cuts a memory file into blocks."""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from ortet.errors import Invalid
from ortet.objects.blobs import BLOCK_BYTES

_IMAGE_MAGIC = struct.pack("<I", 0x54564319), struct.pack("<I", 0x56084025)  # common, pagemap
_PAGE_PRESENT = 4
_PAGEMAP_PREFIX = "pagemap-"
_MIN_FILL_DIVISOR = 4
"""A block that is filled to at least one part in so many ends where a run of addresses ends."""
_BLOCKS_PER_LEAF = 64
"""Length of a leaf in blocks.

A leaf that is long enough ends at an address that is a multiple of this length. So leaves before
and after a place where pages were added or removed stay the same.
"""

PageRun = tuple[int, int]
"""(page number in the address space, number of pages): contiguous in memory and in the file."""

PageSpan = tuple[int, int]
"""(first page in the file, number of pages)."""


class PageLayout(msgspec.Struct, frozen=True):
    """The position of a memory file in an address space.

    `key` names the address space. It is the same for a process in the next dump, while the number
    of its file may differ.
    """

    key: str
    runs: list[PageRun]

    @property
    def pages(self) -> int:
        return sum(count for _, count in self.runs)


def read_page_layouts(
    read: Callable[[str], bytes], sizes: Mapping[str, int], page_size: int
) -> dict[str, PageLayout]:
    """Return the layout of each memory file among `sizes` (name -> bytes).

    A layout comes from the pagemap that names the file, if its size matches. Otherwise the file is
    one run, so that unknown images are stored too. `read` returns the content of a file.
    """
    layouts: dict[str, PageLayout] = {}
    for name in sorted(sizes):
        if name.startswith(_PAGEMAP_PREFIX) and name.endswith(".img"):
            number, runs = parse_pagemap(read(name), page_size)
            file = f"pages-{number}.img"
            laid = PageLayout(name, runs)
            if file not in layouts and sizes.get(file) == laid.pages * page_size:
                layouts[file] = laid
    for name, size in sizes.items():
        if is_pages_file(name) and name not in layouts and not size % page_size:
            layouts[name] = PageLayout(name, [(0, size // page_size)] if size else [])
    return layouts


def is_pages_file(name: str) -> bool:
    return name.startswith("pages-") and name.endswith(".img")


def parse_pagemap(data: bytes, page_size: int) -> tuple[int, list[PageRun]]:
    """Return the number of the memory file of a pagemap image, and the runs of pages in it.

    Pages of a parent image, or of a page server, are not in the file and are skipped.
    """
    try:
        entries = _image_entries(data)
        number = _varint_fields(next(entries))[1]
        runs: list[PageRun] = []
        for entry in entries:
            fields = _varint_fields(entry)
            flags = fields.get(4, 0 if fields.get(3) else _PAGE_PRESENT)
            if flags & _PAGE_PRESENT:
                count = fields.get(5, fields.get(2, 0))  # field 2 was too narrow for large runs
                if count:
                    runs.append((fields[1] // page_size, count))
    except (IndexError, KeyError, StopIteration, struct.error) as error:
        raise Invalid(
            "bad_images", "a pagemap of these process images cannot be read: make them again"
        ) from error
    return number, runs


def _image_entries(data: bytes) -> Iterator[bytes]:
    """Yield the messages of a CRIU image: two magic numbers, then (length, bytes) of each."""
    if data[:8] != b"".join(_IMAGE_MAGIC):
        raise KeyError("magic")
    offset = 8
    while offset < len(data):
        (size,) = struct.unpack_from("<I", data, offset)
        offset += 4
        if offset + size > len(data):
            raise IndexError(offset)
        yield data[offset : offset + size]
        offset += size


def _varint_fields(data: bytes) -> dict[int, int]:
    """Return the integers of a protobuf message by field. Other kinds of fields raise KeyError."""
    fields: dict[int, int] = {}
    position, key = 0, -1
    while position < len(data):
        value = shift = 0
        while True:
            byte = data[position]
            position += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        if key < 0:
            if value & 7:
                raise KeyError("kind of field")
            key = value >> 3
        else:
            fields[key] = value
            key = -1
    if key >= 0:
        raise IndexError(position)
    return fields


def cut_leaves(runs: Sequence[PageRun], page_size: int) -> list[list[PageSpan]]:
    """Cut a file into leaves, each a list of blocks of at most 128 KiB; depends only on the runs.

    Blocks end at addresses that are multiples of their size, so that added or removed pages do not
    move later blocks. Short runs share a block, so that a small process does not become a thousand.
    """
    span = BLOCK_BYTES // page_size
    leaves: list[list[PageSpan]] = []
    leaf: list[PageSpan] = []
    start = page = leaf_at = 0

    def end_block() -> None:
        nonlocal start
        if page > start:
            leaf.append((start, page - start))
            start = page

    for first, count in runs:
        address, stop = first, first + count
        if (page - start) * _MIN_FILL_DIVISOR >= span or count >= span:
            end_block()
        while address < stop:
            if (
                page == start
                and not address % (span * _BLOCKS_PER_LEAF)
                and page - leaf_at >= span * _BLOCKS_PER_LEAF
            ):
                leaves.append(leaf)
                leaf, leaf_at = [], page
            take = min(stop - address, span - address % span, span - (page - start))
            address += take
            page += take
            if not address % span or page - start == span:
                end_block()
                if page - leaf_at >= 4 * span * _BLOCKS_PER_LEAF:
                    leaves.append(leaf)
                    leaf, leaf_at = [], page
    end_block()
    return [*leaves, leaf] if leaf else leaves


class PageAddresses:
    """Converts between pages of a memory file and their addresses."""

    def __init__(self, runs: Sequence[PageRun]) -> None:
        page = 0
        self._runs: list[tuple[int, int, int]] = []  # page in the file, address, number of pages
        for address, count in runs:
            self._runs.append((page, address, count))
            page += count
        self._starts = [page for page, _, _ in self._runs]
        self._by_address = sorted((address, page, count) for page, address, count in self._runs)
        self._addresses = [address for address, _, _ in self._by_address]

    def addresses(self, first_page: int, count: int) -> Iterator[PageRun]:
        """Yield the address runs of a range of pages of the file."""
        number = bisect_right(self._starts, first_page) - 1
        while count:
            start, address, length = self._runs[number]
            take = min(count, start + length - first_page)
            yield address + first_page - start, take
            first_page, count, number = first_page + take, count - take, number + 1

    def find_pages(self, address: int, count: int) -> Iterator[tuple[int | None, int]]:
        """Yield (page in the file, number of pages) for each part of an address range.

        The page is None where the file has no page.
        """
        number = max(0, bisect_right(self._addresses, address) - 1)
        stop = address + count
        while address < stop and number < len(self._by_address):
            first, page, length = self._by_address[number]
            if first > address:
                take = min(stop, first) - address
                yield None, take
                address += take
            take = min(stop, first + length) - address
            if take > 0:
                yield page + address - first, take
                address += take
            number += 1
        if address < stop:
            yield None, stop - address


def read_exactly(fd: int, size: int, offset: int) -> bytes:
    """Read `size` bytes at an offset. Raises Invalid("bad_images") if the file is too short."""
    data = os.pread(fd, size, offset)
    while len(data) < size:
        more = os.pread(fd, size - len(data), offset + len(data))
        if not more:
            raise Invalid("bad_images", "process images changed while they were stored: try again")
        data += more
    return data
