"""Moments as people give them to the command line."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ortet.errors import Invalid

if TYPE_CHECKING:
    from ortet.cli.call import CliCall

_NUMBER = re.compile(r"\d{9,}(\.\d*)?")  # eight digits are a date
_AGE = re.compile(r"(\d{1,6})([smhdw])")
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def parse_time(call: CliCall, option: str, text: str | None, *, ahead: bool = False) -> str | None:
    """As the library takes it. A time without a zone is UTC, a number counts seconds since 1970;
    an age such as 7d is so long ago, or with `ahead` from now on."""
    if text is None:
        return None
    return parse_time_at(call.hub.clock.now_ns(), option, text, ahead=ahead)


def parse_time_at(now_ns: int, name: str, text: str | None, *, ahead: bool = False) -> str | None:
    """The same, `now_ns` being now."""
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
