"""The Bucket in a dictionary, for tests and for stores that end with the process.

A module of its own, so that tests can use a bucket without a file system.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from threading import Lock

from ortet.backends.base import Bucket, BucketEntry
from ortet.backends.errors import key_exists, no_key
from ortet.backends.keys import check_key, check_prefix, check_range


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
            found = [
                BucketEntry(key, len(data))
                for key, data in self._objects.items()
                if key.startswith(prefix)
            ]
        yield from sorted(found, key=lambda listing: listing.key)

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
