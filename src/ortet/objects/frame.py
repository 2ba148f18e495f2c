"""Frames: the checksummed, self-describing unit of storage. No I/O; docs/format.md has the bytes.

A frame is a header, a table of (oid, kind, length), and a payload. The payload is the objects'
bytes one after another, as one zstd block or raw. Header and table are enough to index a frame
without reading its payload. `FrameBatches` groups the objects of a flush into frames.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence

import msgspec

from ortet._util.codec import FORMAT_VERSION, Compressor, checksum, decompress
from ortet.errors import Corrupt, Invalid, Unsupported
from ortet.ids import OID_BYTES, Oid
from ortet.objects.base import Kind

MAGIC = b"\xa7ORT"
RAW, ZSTD = 0, 1
FRAME_BYTES = 512 * 1024
"""The approximate number of raw bytes in a frame of a large flush."""
FRAME_OBJECTS = 4096
MAX_RAW = 16 * 1024 * 1024
"""The largest frame, and so the largest object. Bounds what a header can make a reader allocate."""
MAX_OBJECTS = 65_536

TRUNCATED_FRAME = "short_frame"
"""The Corrupt kind for an interrupted write. It is harmless at the end of a tail."""

# The last field is the checksum of the preceding fields and the table.
_HEAD = struct.Struct("<4sBBH8sIII8s8s")
_ROW = struct.Struct(f"<{OID_BYTES}sBI")
_CHECKSUM_BYTES = 8
HEADER_BYTES = _HEAD.size
_SCAN_WINDOW_BYTES = 64 * 1024
_MAX_COMPRESSED_RATIO = 0.97

Item = tuple[Oid, int, bytes]
"""An object to be written into a frame: oid, kind, bytes."""

ReadAt = Callable[[int, int], bytes]
"""Reads (offset, length) and returns bytes, fewer at the end of the file."""

_LARGE_FILE_BLOCK_BYTES = 128 * 1024


class FrameHeader(msgspec.Struct, frozen=True):
    """The decoded header of a frame. See docs/format.md."""

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
        """The number of bytes before the payload."""
        return HEADER_BYTES + self.count * _ROW.size

    @property
    def size(self) -> int:
        """The number of bytes of the whole frame."""
        return HEADER_BYTES + self.count * _ROW.size + self.stored


class FrameInfo(msgspec.Struct, frozen=True):
    """The offset of a frame, its header (decoded and raw), and its checked table."""

    offset: int
    header: FrameHeader
    head: bytes
    table: bytes

    def rows(self) -> Iterator[tuple[Oid, int, int]]:
        """Return (oid, kind, length) of each object, in payload order."""
        return _ROW.iter_unpack(self.table)


def corrupt_frame(offset: int, why: str, kind: str = "bad_frame") -> Corrupt:
    """Return the Corrupt error for the frame at `offset`."""
    return Corrupt(
        kind,
        f"frame at byte {offset}: {why}; run `ortet verify` to see what is damaged",
        at=offset,
    )


def build(objects: Sequence[Item], key_id: bytes, compressor: Compressor | None) -> bytes:
    """Return one frame of these objects, raw if there is no compressor.

    Raises Invalid if the objects have more than MAX_RAW bytes or are more than MAX_OBJECTS.
    """
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


def parse_header(data: bytes, start: int = 0, *, offset: int = 0) -> FrameHeader:
    """Return the header at `data[start:]`.

    Its checksum also covers the table, so the header is verified only by `read_table`.

    Raises:
        Corrupt: a field has an impossible value or the header is incomplete.
        Unsupported: a newer Ortet wrote the frame.
    """
    if data[start : start + 4] != MAGIC:
        raise corrupt_frame(offset, "no frame begins here")
    if len(data) > start + 4 and data[start + 4] > FORMAT_VERSION:
        raise Unsupported(
            "newer_format",
            f"the store has frames of format {data[start + 4]}, this ortet knows "
            f"{FORMAT_VERSION}: upgrade ortet",
        )
    if len(data) - start < HEADER_BYTES:
        raise corrupt_frame(offset, "its header is cut short", TRUNCATED_FRAME)
    header = FrameHeader(*_HEAD.unpack_from(data, start))
    if header.raw > MAX_RAW or header.stored > header.raw or header.count > MAX_OBJECTS:
        raise corrupt_frame(offset, "its header asks for more than a frame can hold")
    if header.codec not in (RAW, ZSTD) or (header.codec == RAW and header.stored != header.raw):
        raise corrupt_frame(offset, "its header names an impossible encoding")
    return header


def read_table(data: bytes, start: int, header: FrameHeader, *, offset: int = 0) -> FrameInfo:
    """Check header and table, and return them.

    `data` has the table directly after the header at `start`.
    """
    table_start = start + HEADER_BYTES
    table = data[table_start : table_start + header.table_bytes]
    if checksum(data[start : table_start - _CHECKSUM_BYTES], table) != header.head_sum:
        raise corrupt_frame(offset, "header and table do not match their checksum")
    if header.flags:
        raise Unsupported(
            "newer_format",
            "the store has frames with flags this ortet does not know: upgrade ortet",
        )
    frame_info = FrameInfo(offset, header, data[start:table_start], table)
    if sum([row[2] for row in frame_info.rows()]) != header.raw:
        raise corrupt_frame(offset, "the lengths in its table do not add up")
    return frame_info


def check_payload(header: FrameHeader, payload: bytes | memoryview, *, offset: int = 0) -> None:
    """Raise Corrupt if the payload does not match the length and checksum in the header."""
    if len(payload) != header.stored or checksum(payload) != header.payload_sum:
        raise corrupt_frame(offset, "payload does not match its checksum")


def unpack(header: FrameHeader, payload: bytes | memoryview, *, offset: int = 0) -> bytes:
    """Check and decompress the payload. Return the objects' bytes one after another."""
    check_payload(header, payload, offset=offset)
    return bytes(payload) if header.codec == RAW else decompress(payload, header.raw)


def scan(read: ReadAt, start: int, stop: int) -> Iterator[FrameInfo]:
    """Yield the frames between two offsets, without reading their payloads.

    Stops at `stop` or where zeros begin (preallocated space). Raises Corrupt at a damaged or
    incomplete frame, and Unsupported at a newer one. Frames that were yielded before are valid.
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
        frame_info = read_table(window, start - base, header, offset=start)
        if start + header.size > stop:
            raise corrupt_frame(start, "its payload is cut short", TRUNCATED_FRAME)
        yield frame_info
        start += header.size


def resync(read: ReadAt, start: int, stop: int) -> int | None:
    """Return the offset of the next frame with a valid header, to continue after damage.

    None if none.
    """
    while start < stop:
        window = read(start, _SCAN_WINDOW_BYTES * 16)
        position = window.find(MAGIC)
        if position < 0:
            start += max(1, len(window) - len(MAGIC) + 1)
            continue
        if _is_frame_at(read, start + position, stop):
            return start + position
        start += position + 1
    return None


def _is_frame_at(read: ReadAt, offset: int, stop: int) -> bool:
    try:
        return next(scan(read, offset, stop), None) is not None
    except (Corrupt, Unsupported):
        return False


class FrameBatch:
    """The objects of one future frame.

    An object of at least the usual frame size gets its own frame: two of them might exceed MAX_RAW.
    """

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.bytes = 0

    def add(self, item: Item) -> list[Item] | None:
        """Add an object. Return the objects of a full frame, to be written now, or None."""
        size = len(item[2])
        if size >= FRAME_BYTES:
            return [item]
        self.items.append(item)
        self.bytes += size
        if self.bytes >= FRAME_BYTES or len(self.items) >= FRAME_OBJECTS:
            return self.drain()
        return None

    def drain(self) -> list[Item]:
        """Remove and return all objects."""
        items, self.items, self.bytes = self.items, [], 0
        return items


class FrameBatches:
    """Three batches: small file contents, blocks of large files, and other objects.

    Log, diff and merge read only the other objects. Small files are similar to their neighbours and
    compress best together.
    """

    def __init__(self) -> None:
        self.blobs = FrameBatch()
        self.blocks = FrameBatch()
        self.non_blobs = FrameBatch()

    def add(self, item: Item) -> list[Item] | None:
        """Add an object to its batch. Return the objects of a full frame, or None."""
        if item[1] != Kind.BLOB:
            return self.non_blobs.add(item)
        return (self.blocks if len(item[2]) >= _LARGE_FILE_BLOCK_BYTES else self.blobs).add(item)

    def drain(self, merge_below_bytes: int = 0) -> list[list[Item]]:
        """Remove and return all objects by batch, in one list if below `merge_below_bytes`."""
        size = self.blobs.bytes + self.blocks.bytes + self.non_blobs.bytes
        blobs, blocks, rest = self.blobs.drain(), self.blocks.drain(), self.non_blobs.drain()
        groups = [blobs + blocks + rest] if size < merge_below_bytes else [rest, blobs, blocks]
        return [group for group in groups if group]


def split_into_frames(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """Split objects that were left by failed writes into pieces that fit a frame."""
    batch = FrameBatch()
    for item in items:
        full = batch.add(item)
        if full is not None:
            yield full
    if batch.items:
        yield batch.items
