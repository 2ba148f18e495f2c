"""File contents: a single blob, or a tree of 128 KiB blocks. Holes are stored once, not read."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from ortet._util.codec import StoredRecord, decode, encode
from ortet.errors import Corrupt
from ortet.ids import OID_BYTES, Oid
from ortet.objects.base import Kind, ObjectStore

BLOCK_BYTES = 128 * 1024
"""Files up to this size are one blob. Larger files are a Blocks tree over blobs of this size."""
BLOCK_FANOUT = 256
_LEAF_BYTES = BLOCK_BYTES * BLOCK_FANOUT
_READ_WINDOW_BLOCKS = 64
_PARALLEL_MIN_BYTES = 8 * 1024 * 1024

Holes = Sequence[tuple[int, int]]
"""(start, length) of each hole, sorted and not adjacent to one another."""


class Blocks(StoredRecord, frozen=True):
    """A node of a large file's block tree.

    `children` is a concatenation of 32-byte Oids. They name blobs at level 0 and Blocks above.
    """

    level: int
    size: int
    children: bytes


class ContentRef(Protocol):
    """The fields of a TreeEntry that locate the bytes of a file."""

    @property
    def data(self) -> bytes: ...

    @property
    def size(self) -> int: ...


def put_bytes(objects: ObjectStore, data: bytes) -> bytes:
    """Store the content of a file. Return the Oid of its blob or Blocks, or b"" if it is empty."""
    if len(data) <= BLOCK_BYTES:
        return objects.put(Kind.BLOB, data) if data else b""
    return _BlockTreeBuilder(objects, lambda start, length: data[start : start + length], ()).build(
        len(data)
    )


def put_file(objects: ObjectStore, fd: int, size: int, holes: Holes = ()) -> bytes:
    """Store the first `size` bytes of an open file.

    Return the Oid of its blob or Blocks, or b"" if `size` is 0. The stored content always has
    exactly `size` bytes: if the file was truncated during the read, zeros are added. The caller
    compares fstat before and after. Ranges in `holes` are not read.
    """
    if not size:
        return b""

    def read(start: int, length: int) -> bytes:
        data = os.pread(fd, length, start)
        while len(data) < length:
            more = os.pread(fd, length - len(data), start + len(data))
            if not more:
                return data.ljust(length, b"\0")
            data += more
        return data

    if size <= BLOCK_BYTES:
        return objects.put(Kind.BLOB, read(0, size))
    return _BlockTreeBuilder(objects, read, holes).build(size)


class _BlockTreeBuilder:
    """Builds the block tree of one file. Subtrees of zeros are built once and reused."""

    def __init__(
        self, objects: ObjectStore, read: Callable[[int, int], bytes], holes: Holes
    ) -> None:
        self._objects = objects
        self._read = read
        self._hole_starts = [start for start, _ in holes]
        self._hole_ends = [start + length for start, length in holes]
        self._zeros: dict[tuple[int, int], Oid] = {}
        self._leaves: dict[int, Oid] = {}

    def build(self, size: int) -> Oid:
        level, span = 0, _LEAF_BYTES
        while span < size:
            level, span = level + 1, span * BLOCK_FANOUT
        if size > _PARALLEL_MIN_BYTES:
            self._fill_leaves(size)
        return self._build_node(level, 0, size)

    def _fill_leaves(self, size: int) -> None:
        """Build leaves in two threads. Reading and hashing release the GIL."""
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - a command that does not need it starts faster

        starts = list(self._leaves_with_data(size))
        with ThreadPoolExecutor(2, "ortet-blocks") as pool:
            for start, oid in zip(
                starts,
                pool.map(
                    lambda offset: self._build_leaf(offset, min(_LEAF_BYTES, size - offset)), starts
                ),
                strict=True,
            ):
                self._leaves[start] = oid

    def _leaves_with_data(self, size: int) -> Iterator[int]:
        """Yield the offsets of leaves that contain data.

        Skip holes in one step: they may be terabytes.
        """
        offset = 0
        while offset < size:
            end = self._hole_end(offset)
            if end >= min(offset + _LEAF_BYTES, size):
                offset = size if end >= size else end // _LEAF_BYTES * _LEAF_BYTES
            else:
                yield offset
                offset += _LEAF_BYTES

    def _hole_end(self, start: int) -> int:
        """Return where the hole around `start` ends, or `start` if it is not in a hole."""
        number = bisect_right(self._hole_starts, start) - 1
        return max(start, self._hole_ends[number]) if number >= 0 else start

    def _build_node(self, level: int, start: int, size: int) -> Oid:
        if self._hole_end(start) >= start + size:
            return self._build_zeros(level, size)
        if level == 0:
            known = self._leaves.get(start)
            return self._build_leaf(start, size) if known is None else known
        span = _LEAF_BYTES * BLOCK_FANOUT ** (level - 1)
        children = [
            self._build_node(level - 1, offset, min(span, start + size - offset))
            for offset in range(start, start + size, span)
        ]
        return self._put(level, size, children)

    def _build_leaf(self, start: int, size: int) -> Oid:
        children: list[Oid] = []
        for offset in range(start, start + size, BLOCK_BYTES):
            length = min(BLOCK_BYTES, start + size - offset)
            if self._hole_end(offset) >= offset + length:
                children.append(self._build_zeros(-1, length))
            else:
                children.append(self._objects.put(Kind.BLOB, self._read(offset, length)))
        return self._put(0, size, children)

    def _build_zeros(self, level: int, size: int) -> Oid:
        """Return a subtree of zeros.

        Level -1 is a blob. Full subtrees of a level are the same object.
        """
        oid = self._zeros.get((level, size))
        if oid is None:
            if level < 0:
                oid = self._objects.put(Kind.BLOB, bytes(size))
            else:
                span = BLOCK_BYTES * BLOCK_FANOUT**level
                whole, rest = divmod(size, span)
                children = [self._build_zeros(level - 1, span)] * whole
                if rest:
                    children.append(self._build_zeros(level - 1, rest))
                oid = self._put(level, size, children)
            self._zeros[level, size] = oid
        return oid

    def _put(self, level: int, size: int, children: list[Oid]) -> Oid:
        return self._objects.put(Kind.BLOCKS, encode(Blocks(level, size, b"".join(children))))


# reading


def get_bytes(objects: ObjectStore, data: bytes, size: int) -> bytes:
    """Return all bytes of a stored content."""
    return b"".join(_read_bytes(objects, data, size, 0, size))


def read_file(objects: ObjectStore, entry: ContentRef) -> Iterator[bytes]:
    """Yield the bytes of a file in order, one block at a time."""
    return _read_bytes(objects, entry.data, entry.size, 0, entry.size)


def read_range(objects: ObjectStore, entry: ContentRef, start: int, length: int) -> Iterator[bytes]:
    """Yield the bytes [start, start + length) of a file, up to its end.

    Only their blocks are read.
    """
    stop = min(entry.size, start + length)
    return _read_bytes(objects, entry.data, entry.size, max(0, start), stop)


def _read_bytes(
    objects: ObjectStore, data: bytes, size: int, start: int, stop: int
) -> Iterator[bytes]:
    if start >= stop:
        return
    if size <= BLOCK_BYTES:
        yield _check_blob_size(objects.get(Oid(data)), size, data)[start:stop]
        return
    root = _load_blocks(objects, data, size)
    window: list[tuple[Oid, int, int]] = []
    for item in _blocks_in_range(objects, root, 0, start, stop):
        window.append(item)
        if len(window) == _READ_WINDOW_BLOCKS:
            yield from _read_window(objects, window, start, stop)
            window = []
    yield from _read_window(objects, window, start, stop)


def _read_window(
    objects: ObjectStore, window: list[tuple[Oid, int, int]], start: int, stop: int
) -> Iterator[bytes]:
    """Yield some blocks in file order. They are read in pack order."""
    contents = dict(objects.get_many(oid for oid, _, _ in window))
    for oid, offset, size in window:
        data = _check_blob_size(contents[oid], size, oid)
        yield (
            data
            if start <= offset and offset + size <= stop
            else data[max(0, start - offset) : stop - offset]
        )


def _blocks_in_range(
    objects: ObjectStore, node: Blocks, base: int, start: int, stop: int
) -> Iterator[tuple[Oid, int, int]]:
    """Yield (oid, offset, size) of each block that overlaps [start, stop)."""
    span = BLOCK_BYTES * BLOCK_FANOUT**node.level
    first = max(0, start - base) // span
    last = min(node.size, stop - base)
    for number in range(first, (last + span - 1) // span):
        offset = base + number * span
        size = min(span, base + node.size - offset)
        oid = Oid(node.children[number * OID_BYTES : (number + 1) * OID_BYTES])
        if node.level:
            yield from _blocks_in_range(
                objects, _load_blocks(objects, oid, size), offset, start, stop
            )
        else:
            yield oid, offset, size


def _load_blocks(objects: ObjectStore, oid: bytes, size: int) -> Blocks:
    node = decode(Blocks, objects.get(Oid(oid)))
    span = BLOCK_BYTES * BLOCK_FANOUT ** max(0, node.level)
    count = -(-size // span)
    if (
        node.level < 0
        or node.size != size
        or len(node.children) != count * OID_BYTES
        or count > BLOCK_FANOUT
    ):
        raise _corrupt_blocks(oid, "is not a block list of the size that its parent records")
    return node


def _check_blob_size(data: bytes, size: int, oid: bytes) -> bytes:
    if len(data) != size:
        raise _corrupt_blocks(oid, f"has {len(data)} bytes, but the file record says {size}")
    return data


def _corrupt_blocks(oid: bytes, why: str) -> Corrupt:
    return Corrupt("bad_blocks", f"object {oid.hex()} {why}: run `ortet verify`", oid=oid.hex())
