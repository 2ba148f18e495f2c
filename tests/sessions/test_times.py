"""Moments, however they are given."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest

from ortet.errors import Invalid
from ortet.sessions.times import ns_of

SECOND = 10**9
DAY = datetime(2026, 11, 16, tzinfo=UTC)
NS = int(DAY.timestamp()) * SECOND


@pytest.mark.parametrize(
    "given",
    [
        DAY,
        DAY.replace(tzinfo=None),
        DAY.astimezone(timezone(timedelta(hours=9))),
        date(2026, 11, 16),
        "2026-11-16",
        "2026-11-16T00:00:00Z",
        "2026-11-16T01:00:00+01:00",
        NS // SECOND,
        float(NS // SECOND),
        NS,
    ],
)
def test_all_date_formats_of_one_moment_are_equal(given: Any) -> None:
    assert ns_of("at", given) == NS


def test_only_none_means_no_moment() -> None:
    assert ns_of("at", None) == 0
    for early in (0, 0.0, "1970-01-01", datetime(1970, 1, 1, tzinfo=UTC)):
        assert ns_of("at", early) == 1


def test_what_is_recorded_and_indexed_fits_64_bits() -> None:
    """An end that nobody will see is a moment like others, here and in every index."""
    last = ns_of("until", "9999-12-31")
    assert last == ns_of("until", 10**30) == 2**63 - 1
    assert ns_of("since", "0001-01-01") == -last
    assert ns_of("until", "2400-01-01") == last


@pytest.mark.parametrize("wrong", ["soon", "", True, math.inf, math.nan, 1e300, [], b"2026"])
def test_value_that_is_no_date_is_refused(wrong: Any) -> None:
    with pytest.raises(Invalid, match="is no moment: give"):
        ns_of("at", wrong)
