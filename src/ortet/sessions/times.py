"""Parsing of times that people and programs give.

It is a module of its own because verbs of sessions, hub queries and the server share it.
"""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from typing import Any

from ortet.errors import Invalid

Moment = date | str | int | float
"""A datetime, a date (its first moment), ISO 8601 text, seconds since 1970, or ns as in events."""

_MIN_NS = 10**14
"""Integers from here on are ns. As seconds they would lie in the year three million."""
_MAX_NS = 2**63 - 1
"""Highest time that can be stored and indexed, in 2262. Later times, such as 9999-12-31, get it."""


def ns_of(name: str, value: Moment | None) -> int:
    """Return ns since 1970, or 0 for None only. A time without a zone is UTC.

    Args:
        name: the argument name for the error message.

    Raises:
        Invalid: "bad_time" if the value is no time.
    """
    if value is None:
        return 0
    return min(max(_ns(name, value), -_MAX_NS), _MAX_NS) or 1


def _ns(name: str, value: Moment) -> int:
    if isinstance(value, bool) or not isinstance(value, date | str | int | float):
        raise _bad(name, value)
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise _bad(name, value) from None
    if isinstance(value, date):
        if not isinstance(value, datetime):
            value = datetime(value.year, value.month, value.day, tzinfo=UTC)
        aware = value if value.tzinfo else value.replace(tzinfo=UTC)
        return int(aware.timestamp()) * 10**9 + aware.microsecond * 1000
    if isinstance(value, int) and abs(value) >= _MIN_NS:
        return value
    if not math.isfinite(value) or abs(value) >= _MIN_NS:
        raise _bad(name, value)
    return int(value * 10**9)


def _bad(name: str, value: Any) -> Invalid:
    return Invalid(
        "bad_time",
        f"{name}={value!r} is no moment: give a datetime, a date as '2026-11-16' or "
        "'2026-11-16T09:00:00+00:00', or seconds since 1970",
    )


def day(ns: int) -> str:
    """Return a time in UTC, to the minute."""
    try:
        return datetime.fromtimestamp(ns // 10**9, UTC).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, ValueError, OSError):
        return f"{ns} ns"
