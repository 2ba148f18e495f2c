"""Caches values of items in memory, up to a size limit.

This is a module of its own because both the journal and the view estimate sizes with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

Values = dict[int, dict[str, Any]]
"""Values by the number of the event that has them."""

_MAX_CACHE_BYTES = 32 << 20
"""Estimated number of bytes to cache."""
_BYTES_PER_FIELD = 200
"""Estimated overhead of a field."""


class ItemValueCache:
    """Recently written or read values of one timeline.

    The value of an event never changes. The cache is emptied when the epoch changes, because values
    may have been erased.
    """

    def __init__(self) -> None:
        self._values: Values = {}
        self._key: tuple[str, tuple[int, int]] | None = None
        self._used = 0

    def values_for(self, timeline: str, epoch: tuple[int, int]) -> Values:
        if self._key != (timeline, epoch):
            self._key, self._values, self._used = (timeline, epoch), {}, 0
        return self._values

    def keep(self, values: Values, seq: int, value: dict[str, Any]) -> None:
        """Add a value to the dict that `values_for` returned.

        If the epoch changed since then, that dict is no longer used and the value is not found.
        """
        self._used += size_of(value)
        if self._used > _MAX_CACHE_BYTES:
            values.clear()
            self._used = 0
        values[seq] = value


def size_of(value: Any) -> int:
    """Estimate the memory that a value takes, including its word counts."""
    if isinstance(value, str):
        return _BYTES_PER_FIELD + 4 * len(value)
    inner: Iterable[Any] = ()
    if isinstance(value, dict):
        inner = value.values()
    elif isinstance(value, list):
        inner = value
    return _BYTES_PER_FIELD + sum(map(size_of, inner))


def copy_value(value: Any) -> Any:
    """Return a copy that the caller may change."""
    return msgspec.to_builtins(value)
