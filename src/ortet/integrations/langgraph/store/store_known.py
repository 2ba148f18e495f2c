"""Values of items of a LangGraph store that are kept in memory, as long as there is room."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

Values = dict[int, dict[str, Any]]
"""By the number of the event that has it."""

_MAX_CACHE_BYTES = 32 << 20
"""Bytes that are kept, by estimate."""
_BYTES_PER_FIELD = 200
"""What a field is taken for."""


class ItemValueCache:
    """Those that were put or read lately: what an event says never changes. Another epoch: some of
    them may have been erased."""

    def __init__(self) -> None:
        self._values: Values = {}
        self._key: tuple[str, tuple[int, int]] | None = None
        self._used = 0

    def values_for(self, timeline: str, epoch: tuple[int, int]) -> Values:
        if self._key != (timeline, epoch):
            self._key, self._values, self._used = (timeline, epoch), {}, 0
        return self._values

    def keep(self, values: Values, seq: int, value: dict[str, Any]) -> None:
        """Beside those that were had from `of`: what is of an epoch that is over is not found."""
        self._used += size_of(value)
        if self._used > _MAX_CACHE_BYTES:
            values.clear()
            self._used = 0
        values[seq] = value


def size_of(value: Any) -> int:
    """What is kept of a value takes, its words included; roughly."""
    if isinstance(value, str):
        return _BYTES_PER_FIELD + 4 * len(value)
    inner: Iterable[Any] = ()
    if isinstance(value, dict):
        inner = value.values()
    elif isinstance(value, list):
        inner = value
    return _BYTES_PER_FIELD + sum(map(size_of, inner))


def copy_value(value: Any) -> Any:
    """For a caller to keep and change."""
    return msgspec.to_builtins(value)
