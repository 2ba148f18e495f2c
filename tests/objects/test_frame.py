"""Frames: what is built is read back, what is damaged is refused, what is newer is left alone."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortet._util.codec import Compressor, Hasher, checksum
from ortet.errors import Corrupt, Invalid, Unsupported
from ortet.ids import Oid
from ortet.objects import frame
from ortet.objects.base import Kind
from ortet.objects.frame import FrameBatch, FrameBatches, split_into_frames

HASHER = Hasher()
KEY = b"\1" * 8


def items(*contents: bytes, kind: int = 1) -> list[frame.Item]:
    return [(HASHER.oid(data), kind, data) for data in contents]


def reader(data: bytes) -> frame.ReadAt:
    return lambda at, length: data[at : at + length]


def unpacked(data: bytes) -> list[tuple[Oid, int, bytes]]:
    found = []
    for lead in frame.scan(reader(data), 0, len(data)):
        start = lead.offset + lead.header.payload_start
        raw = frame.unpack(lead.header, data[start : start + lead.header.stored])
        at = 0
        for oid, kind, length in lead.rows():
            found.append((oid, kind, raw[at : at + length]))
            at += length
        assert at == lead.header.raw
    return found


@given(st.lists(st.lists(st.binary(max_size=2000), min_size=1, max_size=20), max_size=5))
def test_built_frames_decode_to_the_same_objects(groups: list[list[bytes]]) -> None:
    data = b"".join(frame.build(items(*group), KEY, Compressor()) for group in groups)
    assert unpacked(data) == [item for group in groups for item in items(*group)]


def test_the_header_is_as_the_format_says() -> None:
    text = b"hello " * 100
    data = frame.build(items(text, b"x", kind=3), KEY, Compressor())
    magic, version, codec, flags, key, count, raw, stored, payload_sum, head_sum = struct.unpack(
        "<4sBBH8sIII8s8s", data[:44]
    )
    assert (magic, version, codec, flags, key, count) == (b"\xa7ORT", 1, 1, 0, KEY, 2)
    assert raw == 601
    table = data[44 : 44 + 2 * 37]
    assert table == struct.pack("<32sBI", HASHER.oid(text), 3, 600) + struct.pack(
        "<32sBI", HASHER.oid(b"x"), 3, 1
    )
    payload = data[44 + 2 * 37 :]
    assert len(payload) == stored < raw
    assert payload_sum == checksum(payload)
    assert head_sum == checksum(data[:36], table)


def test_data_that_does_not_compress_is_stored_raw() -> None:
    noise = random.Random(1).randbytes(300_000)
    header = frame.parse_header(frame.build(items(noise), KEY, Compressor()))
    assert (header.codec, header.stored) == (frame.RAW, 300_000)
    small = frame.parse_header(frame.build(items(noise[:500]), KEY, Compressor()))
    assert small.codec == frame.RAW
    text = frame.parse_header(frame.build(items(b"abc " * 100_000), KEY, Compressor()))
    assert text.codec == frame.ZSTD


@settings(max_examples=300)
@given(st.data())
def test_a_flipped_bit_is_never_read_back(data: st.DataObject) -> None:
    whole = frame.build(items(b"some text " * 30, b"more", b""), KEY, Compressor())
    bit = data.draw(st.integers(0, len(whole) * 8 - 1))
    broken = bytearray(whole)
    broken[bit // 8] ^= 1 << bit % 8
    with pytest.raises((Corrupt, Unsupported)):
        unpacked(bytes(broken))


@given(st.data())
def test_a_cut_frame_is_short_not_wrong(data: st.DataObject) -> None:
    first = frame.build(items(b"one " * 50), KEY, Compressor())
    second = frame.build(items(b"two " * 50, b"three"), KEY, Compressor())
    cut = data.draw(st.integers(1, len(second) - 1))
    seen = []
    both = first + second[:cut]
    with pytest.raises(Corrupt) as caught:
        for lead in frame.scan(reader(both), 0, len(both)):
            seen.append(lead.offset)
    assert seen == [0]
    if cut >= 4:
        assert caught.value.kind == frame.TRUNCATED_FRAME


def test_zeros_behind_the_last_frame_are_its_end() -> None:
    data = frame.build(items(b"one"), KEY, Compressor()) + bytes(100_000)
    assert len(unpacked(data)) == 1


def forged(**fields: int) -> bytes:
    values = {"version": 1, "codec": 0, "flags": 0, "count": 1, "raw": 3, "stored": 3} | fields
    head = struct.pack(
        "<4sBBH8sIII8s",
        frame.MAGIC,
        values["version"],
        values["codec"],
        values["flags"],
        KEY,
        values["count"],
        values["raw"],
        values["stored"],
        checksum(b"abc"),
    )
    table = struct.pack("<32sBI", HASHER.oid(b"abc"), 1, 3)
    return head + checksum(head, table) + table + b"abc"


@pytest.mark.parametrize("fields", [{"version": 2}, {"flags": 1}])
def test_a_newer_frame_is_not_damage(fields: dict[str, int]) -> None:
    data = forged(**fields)
    with pytest.raises(Unsupported) as caught:
        list(frame.scan(reader(data), 0, len(data)))
    assert caught.value.kind == "newer_format"


@pytest.mark.parametrize(
    "fields",
    [
        {"raw": 2**32 - 1, "stored": 3, "codec": 1},
        {"raw": frame.MAX_RAW + 1, "stored": 3, "codec": 1},
        {"stored": 4},
        {"count": frame.MAX_OBJECTS + 1},
        {"count": 2**32 - 1},
        {"codec": 9},
        {"raw": 4, "stored": 4},
    ],
)
def test_a_header_that_asks_too_much_is_refused(fields: dict[str, int]) -> None:
    data = forged(**fields) + bytes(100)
    with pytest.raises(Corrupt):
        unpacked(data)


def test_a_decompression_bomb_is_refused_without_expanding() -> None:
    packed = Compressor().compress(bytes(10_000_000))
    head = struct.pack(
        "<4sBBH8sIII8s",
        *(frame.MAGIC, 1, 1, 0, KEY, 1, len(packed), len(packed), checksum(packed)),
    )
    table = struct.pack("<32sBI", bytes(32), 1, len(packed))
    with pytest.raises(Corrupt, match="bytes"):
        unpacked(head + checksum(head, table) + table + packed)


def test_build_refuses_too_many_bytes_or_objects() -> None:
    for many in (items(bytes(frame.MAX_RAW), b"x"), items(b"") * (frame.MAX_OBJECTS + 1)):
        with pytest.raises(Invalid):
            frame.build(many, KEY, Compressor())


def test_a_frame_holds_an_object_of_the_largest_size() -> None:
    data = frame.build(items(bytes(frame.MAX_RAW)), KEY, Compressor())
    assert unpacked(data) == items(bytes(frame.MAX_RAW))


def test_the_next_frame_is_found_behind_damage() -> None:
    first, second, third = (
        frame.build(items(text * 40), KEY, Compressor()) for text in (b"a1", b"b2", b"c3")
    )
    broken = bytearray(first + second + third)
    broken[len(first) + 5] ^= 255
    data = bytes(broken)
    at = frame.resync(reader(data), len(first) + 1, len(data))
    assert at == len(first) + len(second)
    assert frame.resync(reader(data), at + 1, len(data)) is None


def test_a_magic_inside_data_is_no_frame() -> None:
    data = b"x" * 10 + frame.MAGIC * 20 + frame.build(items(b"real"), KEY, Compressor())
    assert frame.resync(reader(data), 0, len(data)) == 90


def item(size: int, kind: Kind = Kind.BLOB) -> frame.Item:
    return Oid(random.Random(size).randbytes(32)), int(kind), bytes(size)


def test_a_batch_is_full_by_bytes_or_by_number() -> None:
    batch = FrameBatch()
    sizes = [200_000, 200_000, 200_000]
    assert [batch.add(item(size)) is not None for size in sizes] == [False, False, True]
    assert (batch.items, batch.bytes) == ([], 0)
    for _ in range(frame.FRAME_OBJECTS - 1):
        assert batch.add(item(1)) is None
    full = batch.add(item(1))
    assert full is not None
    assert len(full) == frame.FRAME_OBJECTS


def test_a_large_object_goes_alone_and_leaves_the_others() -> None:
    batch = FrameBatch()
    batch.add(item(10))
    assert batch.add(item(frame.MAX_RAW)) == [item(frame.MAX_RAW)]
    assert batch.items == [item(10)]


def test_few_bytes_are_one_frame_and_many_are_kept_apart() -> None:
    batches = FrameBatches()
    batches.add(item(10))
    batches.add(item(20, Kind.TREE))
    assert [len(group) for group in batches.drain(1000)] == [2]
    assert batches.drain(1000) == []
    batches.add(item(600))
    batches.add(item(700, Kind.TREE))
    groups = batches.drain(1000)
    assert sorted(group[0][1] for group in groups) == [Kind.BLOB, Kind.TREE]


@pytest.mark.parametrize("small", [0, 1000, frame.FRAME_BYTES, frame.MAX_RAW])
def test_drain_returns_every_object_of_every_kind(small: int) -> None:
    batches = FrameBatches()
    put = [item(10), item(128 * 1024), item(200_000), item(30, Kind.TREE), item(40, Kind.BLOCKS)]
    assert [batches.add(each) for each in put] == [None] * len(put)
    taken = [each for group in batches.drain(small) for each in group]
    assert sorted(taken) == sorted(put)
    assert batches.drain(small) == []


def test_a_pile_of_objects_is_cut_into_frames_of_bounded_size() -> None:
    pile = [item(size) for size in (*[100_000] * 30, frame.MAX_RAW, 5, frame.MAX_RAW, 6)]
    pieces = list(split_into_frames(pile))
    assert all(sum(len(each[2]) for each in piece) <= frame.MAX_RAW for piece in pieces)
    flat = [each for piece in pieces for each in piece]
    assert sorted(map(repr, map(len, (e[2] for e in flat)))) == sorted(
        map(repr, map(len, (e[2] for e in pile)))
    )
    assert list(split_into_frames([])) == []


def test_drain_returns_small_and_large_objects_exactly_once() -> None:
    items = [item(10), item(20, Kind.TREE), item(128 * 1024), item(128 * 1024 + 1)]
    for small in (0, 1 << 20):
        batches = FrameBatches()
        for each in items:
            assert batches.add(each) is None
        taken = [each for group in batches.drain(small) for each in group]
        assert sorted(taken) == sorted(items)
        assert batches.drain() == []
