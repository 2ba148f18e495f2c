"""Contents of files: one representation for the same bytes, whatever the way they came."""

from __future__ import annotations

import os
import random
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortet._util.codec import Hasher, decode, encode
from ortet.errors import Corrupt, NotFound
from ortet.ids import Oid
from ortet.objects.base import Kind, ObjectStore
from ortet.objects.blobs import (
    BLOCK_BYTES,
    BLOCK_FANOUT,
    Blocks,
    get_bytes,
    put_bytes,
    put_file,
    read_file,
    read_range,
)

MIB = 1 << 20


class Counted(ObjectStore):
    """A dictionary that counts what is put and read."""

    def __init__(self) -> None:
        self.hasher = Hasher()
        self.held: dict[Oid, bytes] = {}
        self.puts = 0
        self.gets = 0

    def put(self, kind: Kind, data: bytes) -> Oid:
        oid = self.hasher.oid(data)
        self.held[oid] = data
        self.puts += 1
        return oid

    def get(self, oid: Oid) -> bytes:
        self.gets += 1
        if oid not in self.held:
            raise NotFound("no_object", "put it first")
        return self.held[oid]

    def has(self, oid: Oid) -> bool:
        return oid in self.held


class File(msgspec.Struct, frozen=True):
    data: bytes
    size: int


@contextmanager
def opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        yield fd
    finally:
        os.close(fd)


def stored(objects: ObjectStore, path: Path, holes: Sequence[tuple[int, int]] = ()) -> bytes:
    with opened(path) as fd:
        return put_file(objects, fd, os.fstat(fd).st_size, holes)


@pytest.mark.parametrize(
    "size",
    [
        0,
        1,
        BLOCK_BYTES - 1,
        BLOCK_BYTES,
        BLOCK_BYTES + 1,
        2 * BLOCK_BYTES,
        9 * MIB + 5,
        BLOCK_BYTES * BLOCK_FANOUT,
        BLOCK_BYTES * BLOCK_FANOUT + 1,
    ],
)
def test_file_and_bytes_agree_and_are_read_back(tmp_path: Path, size: int) -> None:
    data = random.Random(size).randbytes(size)
    (tmp_path / "f").write_bytes(data)
    objects = Counted()
    oid = stored(objects, tmp_path / "f")
    assert put_bytes(objects, data) == oid
    assert get_bytes(objects, oid, size) == data
    assert b"".join(read_file(objects, File(oid, size))) == data
    assert (oid == b"") == (size == 0)


def test_a_small_file_is_a_blob_and_a_large_file_is_blocks() -> None:
    objects = Counted()
    assert objects.held[Oid(put_bytes(objects, b"x" * BLOCK_BYTES))] == b"x" * BLOCK_BYTES
    root = decode(Blocks, objects.held[Oid(put_bytes(objects, b"x" * (BLOCK_BYTES + 1)))])
    assert (root.level, root.size, len(root.children)) == (0, BLOCK_BYTES + 1, 64)
    deep = decode(
        Blocks, objects.held[Oid(put_bytes(objects, bytes(BLOCK_BYTES * BLOCK_FANOUT + 1)))]
    )
    assert (deep.level, len(deep.children)) == (1, 64)


def test_one_changed_byte_costs_one_block() -> None:
    objects = Counted()
    data = bytearray(random.Random(1).randbytes(20 * MIB))
    put_bytes(objects, bytes(data))
    before = len(objects.held)
    data[7 * MIB] ^= 1
    put_bytes(objects, bytes(data))
    assert len(objects.held) - before == 2  # the block, and the list of blocks


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 3 * MIB), st.integers(0, 3 * MIB))
def test_read_range_returns_the_range_and_reads_few_blocks(start: int, length: int) -> None:
    data = random.Random(3).randbytes(2 * MIB + 17)
    objects = Counted()
    file = File(put_bytes(objects, data), len(data))
    objects.gets = 0
    assert b"".join(read_range(objects, file, start, length)) == data[start : start + length]
    assert objects.gets <= length // BLOCK_BYTES + 3


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 400), st.integers(1, 200)), max_size=6))
def test_a_file_with_holes_is_stored_like_one_with_zeros(spans: list[tuple[int, int]]) -> None:
    unit = 4096
    data = bytearray(random.Random(9).randbytes(500 * unit + 3))
    holes: list[tuple[int, int]] = []
    end = -1
    for start, length in sorted(spans):
        if start > end and start < 500:
            end = min(start + length, 500)
            holes.append((start * unit, (end - start) * unit))
            data[start * unit : end * unit] = bytes((end - start) * unit)
    objects = Counted()
    with_holes = _from_memory(objects, bytes(data), holes)
    assert with_holes == put_bytes(objects, bytes(data))


def _from_memory(objects: ObjectStore, data: bytes, holes: Sequence[tuple[int, int]]) -> bytes:
    fd = os.memfd_create("file")
    try:
        os.write(fd, data)
        return put_file(objects, fd, len(data), holes)
    finally:
        os.close(fd)


def test_a_sparse_terabyte_is_cheap(tmp_path: Path) -> None:
    size, at = 1 << 40, (1 << 39) + 12_345
    path = tmp_path / "sparse"
    with opened(path) as fd:
        os.truncate(fd, size)
        os.pwrite(fd, b"needle", at)
        start = os.lseek(fd, 0, os.SEEK_DATA)
        end = os.lseek(fd, start, os.SEEK_HOLE)
        objects = Counted()
        tracemalloc.start()
        oid = put_file(objects, fd, size, [(0, start), (end, size - end)])
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 32 * MIB
    assert objects.puts < 1500
    objects.gets = 0
    found = b"".join(read_range(objects, File(oid, size), at - 5, 20))
    assert found == bytes(5) + b"needle" + bytes(9)
    assert objects.gets < 10
    zeros = put_file(objects, os.open(os.devnull, os.O_RDONLY), size, [(0, size)])
    assert zeros != oid


def test_a_file_that_is_cut_while_read_keeps_its_promised_size(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * (3 * BLOCK_BYTES))
    objects = Counted()
    with opened(path) as fd:
        os.truncate(fd, BLOCK_BYTES + 10)
        oid = put_file(objects, fd, 3 * BLOCK_BYTES)
    assert get_bytes(objects, oid, 3 * BLOCK_BYTES) == b"x" * (BLOCK_BYTES + 10) + bytes(
        2 * BLOCK_BYTES - 10
    )


def test_a_file_that_grows_while_read_is_cut_at_its_promised_size(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"y" * (3 * BLOCK_BYTES))
    objects = Counted()
    with opened(path) as fd:
        assert put_file(objects, fd, BLOCK_BYTES + 5) == put_bytes(
            objects, b"y" * (BLOCK_BYTES + 5)
        )


@pytest.mark.parametrize(
    "forged",
    [
        Blocks(0, 2 * BLOCK_BYTES, b"a" * 32),
        Blocks(0, 3 * BLOCK_BYTES, b"a" * 96),
        Blocks(1, 2 * BLOCK_BYTES, b"a" * 64),
        Blocks(-1, 2 * BLOCK_BYTES, b"a" * 64),
        Blocks(0, 2 * BLOCK_BYTES, b"a" * 63),
    ],
)
def test_a_forged_block_list_is_corrupt(forged: Blocks) -> None:
    objects = Counted()
    oid = objects.put(Kind.BLOCKS, encode(forged))
    with pytest.raises((Corrupt, NotFound)):
        get_bytes(objects, oid, 2 * BLOCK_BYTES)


def test_a_block_of_the_wrong_size_is_corrupt() -> None:
    objects = Counted()
    short = objects.put(Kind.BLOB, b"short")
    oid = objects.put(Kind.BLOCKS, encode(Blocks(0, 2 * BLOCK_BYTES, short * 2)))
    with pytest.raises(Corrupt):
        get_bytes(objects, oid, 2 * BLOCK_BYTES)
    with pytest.raises(Corrupt):
        get_bytes(objects, short, 7)
