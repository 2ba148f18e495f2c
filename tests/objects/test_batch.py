"""How objects are cut into frames."""

from __future__ import annotations

import random

import pytest

from ortet.ids import Oid
from ortet.objects import frame
from ortet.objects.base import Kind
from ortet.objects.batch import FrameBatch, FrameBatches, split_into_frames


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
def test_take_returns_every_object_of_every_kind(small: int) -> None:
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


def test_take_returns_small_and_large_objects_exactly_once() -> None:
    items = [item(10), item(20, Kind.TREE), item(128 * 1024), item(128 * 1024 + 1)]
    for small in (0, 1 << 20):
        batches = FrameBatches()
        for one in items:
            assert batches.add(one) is None
        taken = [one for group in batches.drain(small) for one in group]
        assert sorted(taken) == sorted(items)
        assert batches.drain() == []
