"""Rings against all bytes there ever were."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ortet.machines.standalone.ring_buffer import Ring

SIZE = 16
PIECES = st.lists(st.binary(max_size=40), max_size=20)


@given(PIECES, st.integers(0, 900), st.integers(1, 60))
def test_a_reader_gets_the_kept_bytes_and_the_number_of_missed_bytes(
    pieces: list[bytes], cursor: int, most: int
) -> None:
    ring, whole = Ring(SIZE), b"".join(pieces)
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
def test_a_patient_ring_drops_only_bytes_that_were_read(pieces: list[bytes]) -> None:
    ring, whole, got = Ring(SIZE, patient=True), b"".join(pieces), b""
    for piece in pieces:
        ring.add(piece)
        if ring.full:
            data, cursor, missed = ring.read(len(got), 1000)
            assert not missed
            got += data
            ring.taken(cursor)
            assert not ring.full
    got += ring.read(len(got), 1000)[0]
    assert got == whole


def test_a_loosened_patient_ring_is_cut_to_its_size() -> None:
    ring = Ring(SIZE, patient=True)
    ring.add(b"x" * 50)
    assert ring.full and ring.start == 0
    ring.loosen()
    assert not ring.full and ring.start == 50 - SIZE
    assert ring.read(0, 100) == (b"x" * SIZE, 50, 50 - SIZE)
