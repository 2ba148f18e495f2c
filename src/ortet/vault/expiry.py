"""Parsing and formatting of the expiry time of a secret.

A module of its own, because session results format expiry times without importing the vault.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from ortet.errors import Invalid

Expires = datetime | timedelta | float | str | None

_DURATION = re.compile(r"(\d{1,6})\s*([smhdw])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_LATEST = 9e9  # seconds since 1970; the limit of a 64-bit number of ns


def parse_expiry(expires: Expires, now: int) -> int:
    """Return the time in ns since 1970, or 0 for never. A time without a zone is UTC."""
    if expires is None:
        return 0
    seconds = _seconds(expires, now / 1e9)
    if seconds is None or not 0 < seconds < _LATEST:
        raise Invalid(
            "bad_time",
            f"expires={expires!r}: give a datetime, a timedelta, '2027-01-31', '2027-01-31T12:00Z',"
            " or how long it lasts, as '90d', '12h', '30m'",
        )
    at = int(seconds * 1e9)
    if at <= now:
        raise Invalid("bad_time", f"expires={expires!r}: that is over, {format_expiry(at)}")
    return at


def is_expired(expires: int, now: int) -> bool:
    """Return True if a time has passed; 0 never expires."""
    return bool(expires) and expires <= now


def format_expiry(expires: int) -> str:
    """Return the time as readable text in UTC."""
    return datetime.fromtimestamp(expires // 1_000_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _seconds(expires: Expires, now: float) -> float | None:
    if isinstance(expires, timedelta):
        return now + expires.total_seconds()
    if isinstance(expires, str):
        lasting = _DURATION.fullmatch(expires.strip())
        if lasting:
            return now + int(lasting[1]) * _UNITS[lasting[2]]
        try:
            expires = datetime.fromisoformat(expires.strip())
        except ValueError:
            return None
    if isinstance(expires, datetime):
        zoned = expires if expires.tzinfo else expires.replace(tzinfo=UTC)
        return (zoned - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()
    if isinstance(expires, int | float) and not isinstance(expires, bool):
        return expires
    return None
