"""How much of the host a live machine may use."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from ortet._util.validation import DICT, NUMBER, POSITIVE_COUNT, require
from ortet.errors import Invalid

DEFAULT_MAX_PIDS = 4096
"""Processes and threads of a machine that was given no limit: a fork bomb ends in it."""

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:iB|B)?\Z", re.IGNORECASE)
_MINIMUMS = {"memory": 32 << 20, "cpu": 0.01, "pids": 16}
"""With less not even pid 1 of a machine can do its work."""

_MAX_VALUE = 1 << 60


class MachineLimits(msgspec.Struct, frozen=True):
    """`memory` in bytes and `cpu` in processors, 0 for as much as there is."""

    memory: int = 0
    cpu: float = 0.0
    pids: int = DEFAULT_MAX_PIDS

    def to_dict(self) -> dict[str, int | float]:
        """Those there are, as they may be given."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value}


def parse_limits(options: Mapping[str, Any]) -> MachineLimits:
    """{"memory": "2G" or bytes, "cpu": 1.5, "pids": 500}; what is left out or None is as usual."""
    require(DICT._replace(kind="bad_limits"), limits=options)
    found: dict[str, Any] = {}
    for name, value in options.items():
        if name not in _MINIMUMS:
            raise Invalid("bad_limits", f"limits have no {name!r}: give memory, cpu or pids")
        if value is None:
            continue
        found[name] = _size(value) if name == "memory" else value
        sort = NUMBER if name == "cpu" else POSITIVE_COUNT
        require(sort._replace(kind="bad_limits"), **{f"limits[{name!r}]": found[name]})
        if found[name] < _MINIMUMS[name]:
            raise Invalid(
                "bad_limits",
                f"limits[{name!r}] is {value!r}: give at least {_MINIMUMS[name]}, or leave it out",
            )
        if found[name] > _MAX_VALUE:
            raise Invalid("bad_limits", f"limits[{name!r}] is more than any host has: give less")
    return MachineLimits(**found)


def _size(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    match = _SIZE.match(value.strip())
    if match is None:
        raise Invalid(
            "bad_limits", f"limits['memory'] is {value[:40]!r}: give a size as 512M or 2G"
        )
    return int(min(float(match[1]) * _UNITS[match[2].upper()], _MAX_VALUE * 2))
