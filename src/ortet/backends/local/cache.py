"""Caches inside one process: one that remembers, and one that never does."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import NamedTuple

from ortet.backends.base import Cache
from ortet.backends.keys import check_name
from ortet.errors import Invalid
from ortet.ids import Clock

DEFAULT_MAX_BYTES = 64 << 20
_ENTRY_OVERHEAD_BYTES = 250
"""Bytes an entry takes beside its key and value, about."""


class _CacheEntry(NamedTuple):
    value: bytes
    size: int
    expires_at: int | None  # ns since 1970


class ProcessCache(Cache):
    """At most `limit` bytes; what was not asked for the longest time is forgotten first."""

    def __init__(self, clock: Clock, *, limit: int = DEFAULT_MAX_BYTES) -> None:
        self._clock = clock
        self._limit = limit
        self._entries: OrderedDict[str, _CacheEntry] = OrderedDict()
        self._size = 0
        self._lock = Lock()

    @property
    def size(self) -> int:
        """Bytes held, what keeps them in order included."""
        return self._size

    def get(self, key: str) -> bytes | None:
        check_name(key)
        now = self._clock.now_ns()
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            if entry.expires_at is not None and entry.expires_at <= now:
                self._evict(key)
                return None
            self._entries.move_to_end(key)
            return entry.value

    def put(self, key: str, value: bytes, ttl_ns: int | None = None) -> None:
        check_name(key)
        until = None if ttl_ns is None else self._clock.now_ns() + check_ttl(ttl_ns)
        # Four bytes a character is the most that Python takes.
        entry = _CacheEntry(bytes(value), len(value) + 4 * len(key) + _ENTRY_OVERHEAD_BYTES, until)
        with self._lock:
            if key in self._entries:
                self._evict(key)
            if entry.size > self._limit:
                return  # all else would be forgotten for it, and it would not fit then
            self._entries[key] = entry
            self._size += entry.size
            while self._size > self._limit:
                self._evict(next(iter(self._entries)))

    def drop(self, prefix: str) -> None:
        if prefix:
            check_name(prefix)
        with self._lock:
            for key in [key for key in self._entries if key.startswith(prefix)]:
                self._evict(key)

    def _evict(self, key: str) -> None:
        self._size -= self._entries.pop(key).size


class NoCache(Cache):
    """Always empty, as one whose server is gone: what is asked for is made each time."""

    def get(self, key: str) -> bytes | None:
        check_name(key)
        return None

    def put(self, key: str, value: bytes, ttl_ns: int | None = None) -> None:  # noqa: ARG002
        check_name(key)
        if ttl_ns is not None:
            check_ttl(ttl_ns)

    def drop(self, prefix: str) -> None:
        if prefix:
            check_name(prefix)


def check_ttl(ttl_ns: int) -> int:
    """How long to remember, or Invalid("bad_ttl")."""
    if type(ttl_ns) is not int or ttl_ns < 1:
        raise Invalid("bad_ttl", f"ttl_ns={ttl_ns!r}: give nanoseconds from 1, or None for no end")
    return ttl_ns
