"""A bucket and two caches in memory.

The bucket is for tests and for stores that end with the process. One cache forgets the values that
were not used for the longest time, the other one is always empty.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import NamedTuple

from ortet.backends.base import Bucket, BucketEntry, Cache
from ortet.backends.errors import key_exists, no_key
from ortet.backends.keys import check_key, check_name, check_prefix, check_range
from ortet.errors import Invalid
from ortet.ids import Clock

DEFAULT_MAX_BYTES = 64 << 20
_ENTRY_OVERHEAD_BYTES = 250
"""The approximate memory of an entry besides its key and value."""


class _CacheEntry(NamedTuple):
    value: bytes
    size: int
    expires_at: int | None  # ns since 1970


class ProcessCache(Cache):
    """A cache of at most `limit` bytes. The least recently used entry is evicted first."""

    def __init__(self, clock: Clock, *, limit: int = DEFAULT_MAX_BYTES) -> None:
        self._clock = clock
        self._limit = limit
        self._entries: OrderedDict[str, _CacheEntry] = OrderedDict()
        self._size = 0
        self._lock = Lock()

    @property
    def size(self) -> int:
        """The bytes in use, including the overhead of entries."""
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
        # Python uses at most four bytes per character.
        entry = _CacheEntry(bytes(value), len(value) + 4 * len(key) + _ENTRY_OVERHEAD_BYTES, until)
        with self._lock:
            if key in self._entries:
                self._evict(key)
            if entry.size > self._limit:
                return  # it would evict everything else and still not fit
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
    """An empty cache that stores nothing, like one whose server is unreachable."""

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
    """Return a valid time to live. Raise Invalid("bad_ttl") otherwise."""
    if type(ttl_ns) is not int or ttl_ns < 1:
        raise Invalid("bad_ttl", f"ttl_ns={ttl_ns!r}: give nanoseconds from 1, or None for no end")
    return ttl_ns


class MemoryBucket(Bucket):
    """A Bucket without durability."""

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}
        self._lock = Lock()

    def put(self, key: str, data: bytes) -> None:
        with self._lock:
            if check_key(key) in self._objects:
                raise key_exists(key)
            self._objects[key] = bytes(data)

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        check_range(start, length)
        data = self._find(key)
        return data[start:] if length is None else data[start : start + length]

    def size(self, key: str) -> int:
        return len(self._find(key))

    def list(self, prefix: str = "") -> Iterator[BucketEntry]:
        check_prefix(prefix)
        with self._lock:
            entries = [
                BucketEntry(key, len(data))
                for key, data in self._objects.items()
                if key.startswith(prefix)
            ]
        yield from sorted(entries, key=lambda listing: listing.key)

    def delete(self, keys: Sequence[str]) -> None:
        with self._lock:
            for key in keys:
                self._objects.pop(check_key(key), None)

    def _find(self, key: str) -> bytes:
        with self._lock:
            data = self._objects.get(check_key(key))
        if data is None:
            raise no_key(key)
        return data
