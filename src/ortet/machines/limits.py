"""Limits of a machine: memory, processors and number of processes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from ortet._util.validation import DICT, NUMBER, POSITIVE_COUNT, require
from ortet.errors import Invalid

DEFAULT_MAX_PIDS = 4096
"""The default limit of processes and threads. It stops a fork bomb."""

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:iB|B)?\Z", re.IGNORECASE)
_MINIMUMS = {"memory": 32 << 20, "cpu": 0.01, "pids": 16}
"""With less, not even pid 1 of a machine can work."""

_MAX_VALUE = 1 << 60


class MachineLimits(msgspec.Struct, frozen=True):
    """The limits of one machine. `memory` is in bytes, `cpu` in processors; 0 means no limit."""

    memory: int = 0
    cpu: float = 0.0
    pids: int = DEFAULT_MAX_PIDS

    def to_dict(self) -> dict[str, int | float]:
        """Return the limits that are set, in the form that `parse_limits` accepts."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value}


def parse_limits(options: Mapping[str, Any]) -> MachineLimits:
    """Parse {"memory": "2G" or bytes, "cpu": 1.5, "pids": 500}.

    Keys that are missing or None get their defaults.

    Raises:
        Invalid: "bad_limits", for an unknown key or a value out of range.
    """
    require(DICT._replace(kind="bad_limits"), limits=options)
    limits: dict[str, Any] = {}
    for name, value in options.items():
        if name not in _MINIMUMS:
            raise Invalid("bad_limits", f"limits have no {name!r}: give memory, cpu or pids")
        if value is None:
            continue
        limits[name] = _size(value) if name == "memory" else value
        sort = NUMBER if name == "cpu" else POSITIVE_COUNT
        require(sort._replace(kind="bad_limits"), **{f"limits[{name!r}]": limits[name]})
        if limits[name] < _MINIMUMS[name]:
            raise Invalid(
                "bad_limits",
                f"limits[{name!r}] is {value!r}: give at least {_MINIMUMS[name]}, or leave it out",
            )
        if limits[name] > _MAX_VALUE:
            raise Invalid("bad_limits", f"limits[{name!r}] is more than any host has: give less")
    return MachineLimits(**limits)


def _size(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    match = _SIZE.match(value.strip())
    if match is None:
        raise Invalid(
            "bad_limits", f"limits['memory'] is {value[:40]!r}: give a size as 512M or 2G"
        )
    return int(min(float(match[1]) * _UNITS[match[2].upper()], _MAX_VALUE * 2))
