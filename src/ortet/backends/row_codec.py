"""The encoding of catalog rows: compressed event bodies, and timeline ids as raw bytes."""

from __future__ import annotations

from typing import Protocol

from ortet._util.codec import ZSTD_MAGIC, Compressor, Decompressor, decompress_bounded
from ortet.errors import Invalid

MAX_BODY_BYTES = 1 << 30
_CACHE_BYTES = 1 << 20
_MIN_COMPRESS_BYTES = 192
"""Smaller bodies are stored uncompressed: compression would save fewer than 30 bytes."""
_MIN_SAVED_FRACTION = 8
"""A body is stored uncompressed unless compression saves at least one eighth.

Decompression costs more than reading the rest of the event.
"""


class BodyCompressor(Protocol):
    """A `Compressor`, or a `CachingCompressor`."""

    def compress(self, data: bytes) -> bytes: ...


class CachingCompressor:
    """Compresses bodies, and caches recent results by the compressed bytes.

    New events are soon read again, to be sealed. Creating a zstd context for each would cost more
    than the rest of the read. The key is the stored value, so erased data cannot be found through
    the cache.
    """

    def __init__(self, max_bytes: int = _CACHE_BYTES) -> None:
        self._compressor = Compressor()
        self._decompressor = Decompressor()
        self._max_bytes = max_bytes
        self._size = 0
        self._new: dict[bytes, bytes] = {}
        self._old: dict[bytes, bytes] = {}

    def compress(self, data: bytes) -> bytes:
        """Compress `data` and cache the result."""
        less = self._compressor.compress(data)
        self._new[less] = data
        self._size += len(less) + len(data)
        if self._size > self._max_bytes // 2:
            self.clear_cache(self._new)
        return less

    def decompress(self, data: bytes) -> bytes:
        """Undo `compress`, from the cache if possible."""
        known = self._new.get(data) or self._old.get(data)
        return known or self._decompressor.decompress(data, MAX_BODY_BYTES)

    def clear_cache(self, keep: dict[bytes, bytes] | None = None) -> None:
        """Empty the cache, but keep the entries of `keep` as the older half."""
        self._old, self._new, self._size = keep or {}, {}, 0


def compress_body(body: bytes, zstd: BodyCompressor) -> bytes:
    """Return the stored form of an event body: compressed if that saves enough.

    A body that starts with the zstd magic is always compressed, so that it can be read back.
    """
    mistaken = body.startswith(ZSTD_MAGIC)
    if len(body) < _MIN_COMPRESS_BYTES and not mistaken:
        return body
    less = zstd.compress(body)
    return less if mistaken or len(less) <= len(body) - len(body) // _MIN_SAVED_FRACTION else body


def decompress_body(body: bytes, zstd: CachingCompressor | None = None) -> bytes:
    """Undo `compress_body`."""
    if not body.startswith(ZSTD_MAGIC):
        return body
    return decompress_bounded(body, MAX_BODY_BYTES) if zstd is None else zstd.decompress(body)


def raw_id(id_: str) -> bytes:
    """Return the 16 bytes of a timeline id. Raise Invalid("bad_timeline") if it is malformed."""
    try:
        raw = bytes.fromhex(id_)
    except ValueError:
        raw = b""
    if len(raw) != 16:
        raise Invalid("bad_timeline", f"{id_!r} is not a timeline: give 32 hexadecimal digits")
    return raw
