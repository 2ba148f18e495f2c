"""Parses times that users give to the command line.

It is a module of its own because many commands have options with times.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ortet.errors import Invalid

if TYPE_CHECKING:
    from ortet.cli.call import CliCall

_NUMBER = re.compile(r"\d{9,}(\.\d*)?")  # eight digits would be a date
_AGE = re.compile(r"(\d{1,6})([smhdw])")
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def parse_time(call: CliCall, option: str, text: str | None, *, ahead: bool = False) -> str | None:
    """Parse a time option into ISO format, or return None for None.

    A time without a zone is UTC. A number is seconds since 1970. An age such as 7d is in the past,
    or with `ahead` in the future.
    """
    if text is None:
        return None
    return parse_time_at(call.hub.clock.now_ns(), option, text, ahead=ahead)


def parse_time_at(now_ns: int, name: str, text: str | None, *, ahead: bool = False) -> str | None:
    """Parse a time as `parse_time` does, relative to `now_ns`."""
    if text is None:
        return None
    with suppress(ValueError, OverflowError):
        if age := _AGE.fullmatch(text):
            span = int(age[1]) * _UNIT_SECONDS[age[2]]
            return _iso_time(now_ns / 1e9 + span if ahead else now_ns / 1e9 - span)
        if _NUMBER.fullmatch(text):
            return _iso_time(float(text))
        return datetime.fromisoformat(text).isoformat()
    raise Invalid(
        "bad_time",
        f"{name} {text}: give an age as 90m, 24h or 7d, a date as 2026-01-31, or a time, "
        "2026-01-31T12:00",
    )


def _iso_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
