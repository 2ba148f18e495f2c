"""How a catalog writes its rows: bodies of events compressed, ids of timelines as bytes."""

from __future__ import annotations

from ortet.codec import COMPRESSED, Compressor, expand
from ortet.errors import Invalid

LARGEST = 1 << 30
_SMALL = 128
"""Bodies below this are stored as they are."""


def packed(body: bytes, zstd: Compressor) -> bytes:
    """Compressed where it pays; and always what would be taken for compressed."""
    mistaken = body.startswith(COMPRESSED)
    if len(body) < _SMALL and not mistaken:
        return body
    less = zstd.compress(body)
    return less if mistaken or len(less) < len(body) else body


def unpacked(body: bytes) -> bytes:
    return expand(body, LARGEST) if body.startswith(COMPRESSED) else body


def raw_id(id_: str) -> bytes:
    """The 16 bytes of a timeline's id, or Invalid("bad_timeline")."""
    try:
        raw = bytes.fromhex(id_)
    except ValueError:
        raw = b""
    if len(raw) != 16:
        raise Invalid("bad_timeline", f"{id_!r} is not a timeline: give 32 hexadecimal digits")
    return raw
