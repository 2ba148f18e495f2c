"""How a catalog writes its rows: bodies of events compressed, ids of timelines as bytes."""

from __future__ import annotations

from ortet._util.codec import COMPRESSED, Compressor, Expander, expand
from ortet.errors import Invalid

LARGEST = 1 << 30
_REMEMBERED = 1 << 20
_SMALL = 192
"""Bodies below this are stored as they are: of a sentence, not thirty bytes would be saved."""
_WORTH = 8
"""So are those of which not an eighth is saved: to expand one takes longer than to read all else
of its event."""


class Packer(Compressor):
    """Remembers what it compressed last, by how that is stored: events are read again soon, to be
    sealed, and a zstd context for each costs more than all else of reading it. What a row does not
    hold any more, because it was erased, is not found by this."""

    def __init__(self, most: int = _REMEMBERED) -> None:
        super().__init__()
        self._expander = Expander()
        self._most = most
        self._size = 0
        self._new: dict[bytes, bytes] = {}
        self._old: dict[bytes, bytes] = {}

    def compress(self, data: bytes) -> bytes:
        less = super().compress(data)
        self._new[less] = data
        self._size += len(less) + len(data)
        if self._size > self._most // 2:
            self.forget(self._new)
        return less

    def expand(self, data: bytes) -> bytes:
        known = self._new.get(data) or self._old.get(data)
        return known or self._expander.expand(data, LARGEST)

    def forget(self, but: dict[bytes, bytes] | None = None) -> None:
        self._old, self._new, self._size = but or {}, {}, 0


def packed(body: bytes, zstd: Compressor) -> bytes:
    """Compressed where it pays; and always what would be taken for compressed."""
    mistaken = body.startswith(COMPRESSED)
    if len(body) < _SMALL and not mistaken:
        return body
    less = zstd.compress(body)
    return less if mistaken or len(less) <= len(body) - len(body) // _WORTH else body


def unpacked(body: bytes, zstd: Packer | None = None) -> bytes:
    if not body.startswith(COMPRESSED):
        return body
    return expand(body, LARGEST) if zstd is None else zstd.expand(body)


def raw_id(id_: str) -> bytes:
    """The 16 bytes of a timeline's id, or Invalid("bad_timeline")."""
    try:
        raw = bytes.fromhex(id_)
    except ValueError:
        raw = b""
    if len(raw) != 16:
        raise Invalid("bad_timeline", f"{id_!r} is not a timeline: give 32 hexadecimal digits")
    return raw
