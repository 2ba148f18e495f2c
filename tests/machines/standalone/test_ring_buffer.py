"""Rings against all bytes there ever were."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ortet.machines.standalone.ring_buffer import RingBuffer

SIZE = 16
PIECES = st.lists(st.binary(max_size=40), max_size=20)


@given(PIECES, st.integers(0, 900), st.integers(1, 60))
def test_a_reader_gets_the_kept_bytes_and_the_number_of_missed_bytes(
    pieces: list[bytes], cursor: int, most: int
) -> None:
    ring, whole = RingBuffer(SIZE), b"".join(pieces)
    for piece in pieces:
        ring.add(piece)
    assert ring.end == len(whole)
    assert ring.end - ring.start == min(len(whole), SIZE)
    data, after, missed = ring.read(cursor, most)
    begin = min(cursor + missed, len(whole))
    assert begin >= ring.start and missed in (0, ring.start - cursor)
    assert data == whole[begin : begin + most][:SIZE]
    assert after == begin + len(data)


@given(PIECES)
def test_a_ring_that_keeps_unread_bytes_drops_only_read_bytes(pieces: list[bytes]) -> None:
    ring, whole, got = RingBuffer(SIZE, keep_unread=True), b"".join(pieces), b""
    for piece in pieces:
        ring.add(piece)
        if ring.is_full:
            data, cursor, missed = ring.read(len(got), 1000)
            assert not missed
            got += data
            ring.acknowledge(cursor)
            assert not ring.is_full
    got += ring.read(len(got), 1000)[0]
    assert got == whole


def test_a_ring_that_stops_keeping_unread_bytes_is_cut_to_its_size() -> None:
    ring = RingBuffer(SIZE, keep_unread=True)
    ring.add(b"x" * 50)
    assert ring.is_full and ring.start == 0
    ring.stop_waiting()
    assert not ring.is_full and ring.start == 50 - SIZE
    assert ring.read(0, 100) == (b"x" * SIZE, 50, 50 - SIZE)
