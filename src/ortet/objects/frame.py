"""The unit of everything stored: a checksummed, self-describing run of objects. Pure;
docs/format.md has the bytes.

A frame is a header, a table of (oid, kind, length), and a payload: the objects' bytes end to end,
one solid zstd block or raw. Header and table are enough to index a frame without reading its
payload.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence

import msgspec

from ortet._util.codec import FORMAT_VERSION, Compressor, checksum, decompress
from ortet.errors import Corrupt, Invalid, Unsupported
from ortet.ids import OID_BYTES, Oid

MAGIC = b"\xa7ORT"
RAW, ZSTD = 0, 1
FRAME_BYTES = 512 * 1024
"""About how many raw bytes a frame of a large flush holds."""
FRAME_OBJECTS = 4096
MAX_RAW = 16 * 1024 * 1024
"""No frame and so no object is larger: what a header may ask a reader to allocate."""
MAX_OBJECTS = 65_536

TRUNCATED_FRAME = "short_frame"
"""The kind of Corrupt that the end of a tail can have without harm: a write that was cut off."""

_HEAD = struct.Struct(
    "<4sBBH8sIII8s8s"
)  # the last field is the checksum of all before it and of the table
_ROW = struct.Struct(f"<{OID_BYTES}sBI")
_CHECKSUM_BYTES = 8
HEADER_BYTES = _HEAD.size
_SCAN_WINDOW_BYTES = 64 * 1024
_MAX_COMPRESSED_RATIO = 0.97

Item = tuple[Oid, int, bytes]
"""An object on its way into a frame: oid, kind, bytes."""

ReadAt = Callable[[int, int], bytes]
"""(offset, length) -> bytes, short at the end."""


class FrameHeader(msgspec.Struct, frozen=True):
    magic: bytes
    version: int
    codec: int
    flags: int
    key_id: bytes
    count: int
    raw: int
    stored: int
    payload_sum: bytes
    head_sum: bytes

    @property
    def table_bytes(self) -> int:
        return self.count * _ROW.size

    @property
    def payload_start(self) -> int:
        """Bytes before the payload."""
        return HEADER_BYTES + self.count * _ROW.size

    @property
    def size(self) -> int:
        """Bytes of the whole frame."""
        return HEADER_BYTES + self.count * _ROW.size + self.stored


class FrameInfo(msgspec.Struct, frozen=True):
    """A frame seen from outside: where it is, its header, also as bytes, and its checked table."""

    offset: int
    header: FrameHeader
    head: bytes
    table: bytes

    def rows(self) -> Iterator[tuple[Oid, int, int]]:
        """(oid, kind, length) of each object, in payload order."""
        return _ROW.iter_unpack(self.table)


def corrupt_frame(offset: int, why: str, kind: str = "bad_frame") -> Corrupt:
    return Corrupt(
        kind,
        f"frame at byte {offset}: {why}; run `ortet verify` to see what is damaged",
        at=offset,
    )


def build(objects: Sequence[Item], key_id: bytes, compressor: Compressor | None) -> bytes:
    """One frame of these objects, at most MAX_RAW bytes of them; raw without a compressor."""
    raw = b"".join([item[2] for item in objects])
    if len(raw) > MAX_RAW or len(objects) > MAX_OBJECTS:
        raise Invalid("frame_too_large", "these objects do not fit one frame: make several")
    codec, payload = (RAW, raw) if compressor is None else _compress_payload(raw, compressor)
    table = b"".join([_ROW.pack(oid, kind, len(data)) for oid, kind, data in objects])
    fields = (MAGIC, FORMAT_VERSION, codec, 0, key_id, len(objects), len(raw), len(payload))
    head = _HEAD.pack(*fields, checksum(payload), b"")[:-_CHECKSUM_BYTES]
    return b"".join((head, checksum(head, table), table, payload))


def _compress_payload(raw: bytes, compressor: Compressor) -> tuple[int, bytes]:
    packed = compressor.compress(raw)
    return (ZSTD, packed) if len(packed) < _MAX_COMPRESSED_RATIO * len(raw) else (RAW, raw)


def parse_header(data: bytes, at: int = 0, *, offset: int = 0) -> FrameHeader:
    """The header at `data[at:]`; Corrupt unless its fields are possible, Unsupported when it is
    newer than us.

    Its checksum covers the table too, so it is not proven before `read_table`.
    """
    if data[at : at + 4] != MAGIC:
        raise corrupt_frame(offset, "no frame begins here")
    if len(data) > at + 4 and data[at + 4] > FORMAT_VERSION:
        raise Unsupported(
            "newer_format",
            f"the store has frames of format {data[at + 4]}, this ortet knows "
            f"{FORMAT_VERSION}: upgrade ortet",
        )
    if len(data) - at < HEADER_BYTES:
        raise corrupt_frame(offset, "its header is cut short", TRUNCATED_FRAME)
    header = FrameHeader(*_HEAD.unpack_from(data, at))
    if header.raw > MAX_RAW or header.stored > header.raw or header.count > MAX_OBJECTS:
        raise corrupt_frame(offset, "its header asks for more than a frame can hold")
    if header.codec not in (RAW, ZSTD) or (header.codec == RAW and header.stored != header.raw):
        raise corrupt_frame(offset, "its header names an impossible encoding")
    return header


def read_table(data: bytes, at: int, header: FrameHeader, *, offset: int = 0) -> FrameInfo:
    """Check header and table, the table being in `data` right after the header at `at`."""
    start = at + HEADER_BYTES
    table = data[start : start + header.table_bytes]
    if checksum(data[at : start - _CHECKSUM_BYTES], table) != header.head_sum:
        raise corrupt_frame(offset, "header and table do not match their checksum")
    if header.flags:
        raise Unsupported(
            "newer_format",
            "the store has frames with flags this ortet does not know: upgrade ortet",
        )
    lead = FrameInfo(offset, header, data[at:start], table)
    if sum([row[2] for row in lead.rows()]) != header.raw:
        raise corrupt_frame(offset, "the lengths in its table do not add up")
    return lead


def check_payload(header: FrameHeader, payload: bytes | memoryview, *, offset: int = 0) -> None:
    """Corrupt unless these are the stored bytes the header promises."""
    if len(payload) != header.stored or checksum(payload) != header.payload_sum:
        raise corrupt_frame(offset, "payload does not match its checksum")


def unpack(header: FrameHeader, payload: bytes | memoryview, *, offset: int = 0) -> bytes:
    """The objects' bytes, end to end, after checking the payload."""
    check_payload(header, payload, offset=offset)
    return bytes(payload) if header.codec == RAW else decompress(payload, header.raw)


def scan(read: ReadAt, start: int, stop: int) -> Iterator[FrameInfo]:
    """Frames between two offsets by their headers alone.

    Ends quietly at `stop` or where zeros begin (room kept for later); Corrupt at a frame that is
    damaged or not all there, Unsupported at a newer one. Frames yielded before that are good.
    """
    base, window = start, b""
    while start < stop:
        if start - base + HEADER_BYTES > len(window):
            base, window = start, read(start, min(_SCAN_WINDOW_BYTES, stop - start))
        if not window[start - base : start - base + HEADER_BYTES].strip(b"\0"):
            return
        header = parse_header(window, start - base, offset=start)
        if start + header.payload_start > stop:
            raise corrupt_frame(start, "its table is cut short", TRUNCATED_FRAME)
        if start - base + header.payload_start > len(window):
            base, window = (
                start,
                read(start, max(header.payload_start, min(_SCAN_WINDOW_BYTES, stop - start))),
            )
        lead = read_table(window, start - base, header, offset=start)
        if start + header.size > stop:
            raise corrupt_frame(start, "its payload is cut short", TRUNCATED_FRAME)
        yield lead
        start += header.size


def resync(read: ReadAt, start: int, stop: int) -> int | None:
    """Where the next frame with a sound header begins, for going on behind damage."""
    while start < stop:
        window = read(start, _SCAN_WINDOW_BYTES * 16)
        at = window.find(MAGIC)
        if at < 0:
            start += max(1, len(window) - len(MAGIC) + 1)
            continue
        if _is_frame_at(read, start + at, stop):
            return start + at
        start += at + 1
    return None


def _is_frame_at(read: ReadAt, offset: int, stop: int) -> bool:
    try:
        return next(scan(read, offset, stop), None) is not None
    except (Corrupt, Unsupported):
        return False
