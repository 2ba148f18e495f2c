"""Protocol buffers, hand-written, as CRIU uses them in its RPC messages and image files.

Only integers and bytes occur.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path


def image_entries(image: Path) -> Iterator[bytes]:
    """Yield the entries of a CRIU image file as raw bytes; nothing if the file does not exist."""
    with suppress(FileNotFoundError):
        data = image.read_bytes()
        offset = 8  # after two magic numbers
        while offset < len(data):
            (size,) = struct.unpack_from("<I", data, offset)
            yield data[offset + 4 : offset + 4 + size]
            offset += 4 + size


def parse_message(data: bytes) -> dict[int, list[int | bytes]]:
    """Parse a message: field number -> values."""
    fields: dict[int, list[int | bytes]] = {}
    for number, value in iter_fields(data):
        fields.setdefault(number, []).append(value)
    return fields


def iter_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield (number, value) of each field, in order."""
    offset = 0
    while offset < len(data):
        tag, offset = _decode_varint(data, offset)
        value, offset = _decode_varint(data, offset)
        if tag & 7:
            yield tag >> 3, data[offset : offset + value]
            offset += value
        else:
            yield tag >> 3, value


def encode_fields(fields: Iterable[tuple[int, int | bytes]]) -> bytes:
    """Encode fields; the inverse of `iter_fields`."""
    return b"".join(encode_field(number, value) for number, value in fields)


def encode_field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return _encode_varint(number << 3) + _encode_varint(value)
    data = value.encode() if isinstance(value, str) else value
    return _encode_varint(number << 3 | 2) + _encode_varint(len(data)) + data


def _encode_varint(number: int) -> bytes:
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)


def _decode_varint(data: bytes, offset: int) -> tuple[int, int]:
    """Return a varint and the position after it."""
    number = shift = 0
    while True:
        number |= (data[offset] & 0x7F) << shift
        shift += 7
        offset += 1
        if data[offset - 1] < 0x80:
            return number, offset
