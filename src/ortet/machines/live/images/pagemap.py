"""Which page of a CRIU image was at which address, and where such a file is cut into blocks."""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from ortet.errors import Invalid
from ortet.objects.blobs import BLOCK

_MAGICS = struct.pack("<I", 0x54564319), struct.pack("<I", 0x56084025)  # common, pagemap
_PRESENT = 4
_PREFIX = "pagemap-"
_SMALL = 4
"""A block that is filled to one part in so many ends where a run of addresses does."""
_WINDOW = 64
"""A leaf of a page map ends at an address that is a multiple of so many blocks, if it is as long;
so the leaves before and after a place where pages came or went stay the same."""

Run = tuple[int, int]
"""(number of the page in the address space, pages): pages that follow each other in both."""

Piece = tuple[int, int]
"""(first page in the file, pages)."""


class Laid(msgspec.Struct, frozen=True):
    """How a file of pages lies in an address space. `key` names that: the same process in the next
    dump has the same one, while the number of its file may be another."""

    key: str
    runs: list[Run]

    @property
    def pages(self) -> int:
        return sum(count for _, count in self.runs)


def read_laid(read: Callable[[str], bytes], sizes: Mapping[str, int], page: int) -> dict[str, Laid]:
    """Of each file of pages among `sizes` (name -> bytes): by the pagemap that names it if that is
    right about its size, else as one run, so that unknown images are kept too. `read` gives the
    bytes of a file."""
    found: dict[str, Laid] = {}
    for name in sorted(sizes):
        if name.startswith(_PREFIX) and name.endswith(".img"):
            number, runs = parse(read(name), page)
            file = f"pages-{number}.img"
            laid = Laid(name, runs)
            if file not in found and sizes.get(file) == laid.pages * page:
                found[file] = laid
    for name, size in sizes.items():
        if is_pages(name) and name not in found and not size % page:
            found[name] = Laid(name, [(0, size // page)] if size else [])
    return found


def is_pages(name: str) -> bool:
    return name.startswith("pages-") and name.endswith(".img")


def parse(data: bytes, page: int) -> tuple[int, list[Run]]:
    """The number of the file a pagemap image is about, and the runs of pages that are in it.

    What a parent image has, or a page server would bring later, is not in the file.
    """
    try:
        entries = _entries(data)
        number = _fields(next(entries))[1]
        runs: list[Run] = []
        for entry in entries:
            fields = _fields(entry)
            flags = fields.get(4, 0 if fields.get(3) else _PRESENT)
            if flags & _PRESENT:
                count = fields.get(5, fields.get(2, 0))  # 2 was too narrow for large runs
                if count:
                    runs.append((fields[1] // page, count))
    except (IndexError, KeyError, StopIteration, struct.error) as error:
        raise Invalid(
            "bad_images", "a pagemap of these process images cannot be read: make them again"
        ) from error
    return number, runs


def _entries(data: bytes) -> Iterator[bytes]:
    """The messages of a CRIU image: two magic numbers, then (length, bytes) of each."""
    if data[:8] != b"".join(_MAGICS):
        raise KeyError("magic")
    at = 8
    while at < len(data):
        (size,) = struct.unpack_from("<I", data, at)
        at += 4
        if at + size > len(data):
            raise IndexError(at)
        yield data[at : at + size]
        at += size


def _fields(data: bytes) -> dict[int, int]:
    """The whole numbers of a protobuf message, by field; other kinds of fields are an error."""
    fields: dict[int, int] = {}
    at, key = 0, -1
    while at < len(data):
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
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
        raise IndexError(at)
    return fields


def cut(runs: Sequence[Run], page: int) -> list[list[Piece]]:
    """The file as leaves, each a list of blocks of at most 128 KiB: a function of the runs alone.

    Blocks end at addresses that are multiples of their size, so that pages that come or go do not
    move those behind them; short runs share a block, or a small process would be a thousand.
    """
    span = BLOCK // page
    leaves: list[list[Piece]] = []
    leaf: list[Piece] = []
    start = at = leaf_at = 0

    def end_block() -> None:
        nonlocal start
        if at > start:
            leaf.append((start, at - start))
            start = at

    for first, count in runs:
        address, stop = first, first + count
        if (at - start) * _SMALL >= span or count >= span:
            end_block()
        while address < stop:
            if at == start and not address % (span * _WINDOW) and at - leaf_at >= span * _WINDOW:
                leaves.append(leaf)
                leaf, leaf_at = [], at
            take = min(stop - address, span - address % span, span - (at - start))
            address += take
            at += take
            if not address % span or at - start == span:
                end_block()
                if at - leaf_at >= 4 * span * _WINDOW:
                    leaves.append(leaf)
                    leaf, leaf_at = [], at
    end_block()
    return [*leaves, leaf] if leaf else leaves


class Places:
    """From a page of a file to its address, and from an address to the page of the file."""

    def __init__(self, runs: Sequence[Run]) -> None:
        at = 0
        self._runs: list[tuple[int, int, int]] = []  # page in the file, address, pages
        for address, count in runs:
            self._runs.append((at, address, count))
            at += count
        self._starts = [at for at, _, _ in self._runs]
        self._by_address = sorted((address, at, count) for at, address, count in self._runs)
        self._addresses = [address for address, _, _ in self._by_address]

    def addresses(self, at: int, count: int) -> Iterator[Run]:
        """The runs of addresses of these pages of the file."""
        number = bisect_right(self._starts, at) - 1
        while count:
            start, address, length = self._runs[number]
            take = min(count, start + length - at)
            yield address + at - start, take
            at, count, number = at + take, count - take, number + 1

    def find(self, address: int, count: int) -> Iterator[tuple[int | None, int]]:
        """(page in the file, pages) of each piece of a run of addresses, None where there was
        nothing."""
        number = max(0, bisect_right(self._addresses, address) - 1)
        stop = address + count
        while address < stop and number < len(self._by_address):
            first, at, length = self._by_address[number]
            if first > address:
                take = min(stop, first) - address
                yield None, take
                address += take
            take = min(stop, first + length) - address
            if take > 0:
                yield at + address - first, take
                address += take
            number += 1
        if address < stop:
            yield None, stop - address


def read_exactly(fd: int, size: int, offset: int) -> bytes:
    """So many bytes at an offset; Invalid when the file ends before."""
    data = os.pread(fd, size, offset)
    while len(data) < size:
        more = os.pread(fd, size - len(data), offset + len(data))
        if not more:
            raise Invalid("bad_images", "process images changed while they were stored: try again")
        data += more
    return data
