from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortet.errors import Invalid
from ortet.ids import Oid, SystemClock, from_hex, to_hex, uuid7


class Fixed:
    def __init__(self, ns: int) -> None:
        self.ns = ns

    def now_ns(self) -> int:
        return self.ns


@given(st.binary(min_size=32, max_size=32))
def test_an_id_survives_conversion_to_hex_and_back(raw: bytes) -> None:
    assert from_hex(to_hex(Oid(raw))) == raw


@pytest.mark.parametrize(
    "text", ["", "12", "g" * 64, "0" * 63, "0" * 66, " " + "0" * 63, "00 " * 32]
)
def test_text_that_is_not_an_id_is_refused(text: str) -> None:
    with pytest.raises(Invalid) as caught:
        from_hex(text)
    assert caught.value.kind == "bad_oid"


def test_uuid7_is_a_function_of_clock_and_randomness() -> None:
    one = uuid7(Fixed(1_700_000_000_123_000_000), lambda n: b"\xff" * n)
    assert one == uuid7(Fixed(1_700_000_000_123_000_000), lambda n: b"\xff" * n)
    assert one == "018bcfe5687b7000bfffffffffffffff"
    assert one[12] == "7"
    assert one[16] in "89ab"


@given(st.integers(0, 2**60), st.integers(1, 2**40))
def test_uuid7_sorts_by_time(start: int, later_ms: int) -> None:
    first = uuid7(Fixed(start), os.urandom)
    second = uuid7(Fixed(start + later_ms * 1_000_000), os.urandom)
    assert first < second


@given(st.integers(0, 2**60))
def test_uuid7_sorts_by_time_within_a_millisecond(start: int) -> None:
    """A quarter of a microsecond apart: no two ids of one process are made faster."""
    made = [uuid7(Fixed(start + 250 * step), os.urandom) for step in range(50)]
    assert made == sorted(made)


def test_system_clock_moves() -> None:
    assert SystemClock().now_ns() > 1_600_000_000_000_000_000
