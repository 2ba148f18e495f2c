"""How a catalog writes its rows: bodies of events compressed, ids of timelines as bytes."""

from __future__ import annotations

from ortet._util.codec import ZSTD_MAGIC, Compressor, Decompressor, decompress_bounded
from ortet.errors import Invalid

MAX_BODY_BYTES = 1 << 30
_CACHE_BYTES = 1 << 20
_MIN_COMPRESS_BYTES = 192
"""Bodies below this are stored as they are: of a sentence, not thirty bytes would be saved."""
_MIN_SAVED_FRACTION = 8
"""So are those of which not an eighth is saved: to expand one takes longer than to read all else
of its event."""


class CachingCompressor(Compressor):
    """Remembers what it compressed last, by how that is stored: events are read again soon, to be
    sealed, and a zstd context for each costs more than all else of reading it. What a row does not
    hold any more, because it was erased, is not found by this."""

    def __init__(self, max_bytes: int = _CACHE_BYTES) -> None:
        super().__init__()
        self._decompressor = Decompressor()
        self._max_bytes = max_bytes
        self._size = 0
        self._new: dict[bytes, bytes] = {}
        self._old: dict[bytes, bytes] = {}

    def compress(self, data: bytes) -> bytes:
        less = super().compress(data)
        self._new[less] = data
        self._size += len(less) + len(data)
        if self._size > self._max_bytes // 2:
            self.clear_cache(self._new)
        return less

    def decompress(self, data: bytes) -> bytes:
        known = self._new.get(data) or self._old.get(data)
        return known or self._decompressor.decompress(data, MAX_BODY_BYTES)

    def clear_cache(self, keep: dict[bytes, bytes] | None = None) -> None:
        self._old, self._new, self._size = keep or {}, {}, 0


def compress_body(body: bytes, zstd: Compressor) -> bytes:
    """Compressed where it pays; and always what would be taken for compressed."""
    mistaken = body.startswith(ZSTD_MAGIC)
    if len(body) < _MIN_COMPRESS_BYTES and not mistaken:
        return body
    less = zstd.compress(body)
    return less if mistaken or len(less) <= len(body) - len(body) // _MIN_SAVED_FRACTION else body


def decompress_body(body: bytes, zstd: CachingCompressor | None = None) -> bytes:
    if not body.startswith(ZSTD_MAGIC):
        return body
    return decompress_bounded(body, MAX_BODY_BYTES) if zstd is None else zstd.decompress(body)


def raw_id(id_: str) -> bytes:
    """The 16 bytes of a timeline's id, or Invalid("bad_timeline")."""
    try:
        raw = bytes.fromhex(id_)
    except ValueError:
        raw = b""
    if len(raw) != 16:
        raise Invalid("bad_timeline", f"{id_!r} is not a timeline: give 32 hexadecimal digits")
    return raw
