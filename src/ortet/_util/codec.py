"""The only place where bytes are made: canonical encoding, hashing, compression.

Canonical bytes are msgpack with deterministic key order; records are frozen msgspec Structs laid
out as arrays, so a field's position is part of the format: append fields, never reorder or remove.
"""

from __future__ import annotations

import sys
from functools import cache
from threading import Lock
from typing import Any, TypeVar, cast

import blake3 as _blake3
import msgspec

from ortet._util.structs import thread_safe_struct
from ortet.errors import Corrupt, Invalid
from ortet.ids import Oid

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

T = TypeVar("T")

FORMAT_VERSION = 1
ZSTD_LEVEL = 1


class StoredRecord(msgspec.Struct, frozen=True, array_like=True):
    """Base of everything that is stored: immutable, positional."""


_encoder = msgspec.msgpack.Encoder(order="deterministic")
_json = msgspec.json.Encoder(order="deterministic")


def encode(value: Any) -> bytes:
    """Canonical bytes of a record; Invalid when a value in it cannot be stored."""
    try:
        return _encoder.encode(value)
    except (TypeError, OverflowError, UnicodeEncodeError, RecursionError) as error:
        raise Invalid(
            "not_json",
            f"this cannot be recorded ({error}): give str, int, float, bool, None, list or dict",
        ) from error


def array_header(count: int) -> bytes:
    """What canonical bytes of an array of so many items begin with; the items follow."""
    if count < 16:
        return bytes((0x90 | count,))
    if count < 1 << 16:
        return b"\xdc" + count.to_bytes(2, "big")
    return b"\xdd" + count.to_bytes(4, "big")


@cache
def _decoder(type_: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(thread_safe_struct(type_))


def decode(type_: type[T], data: bytes) -> T:
    """Parse canonical bytes as `type_`; raises Corrupt when they are something else."""
    try:
        found: T = _decoder(cast("Any", type_)).decode(data)
        return found
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        name = getattr(type_, "__name__", str(type_))
        raise Corrupt(
            "bad_record",
            f"stored bytes are not a {name} ({error}): run `ortet verify` to see what is damaged",
        ) from error


def to_json(value: Any) -> str:
    """JSON for people and programs; never hashed."""
    return _json.encode(value).decode()


class Hasher:
    """Makes Oids: BLAKE3-256, keyed where the tenant has a key: dedup stays inside a tenant."""

    def __init__(self, key: bytes | None = None) -> None:
        self._key = key
        self.key_id = b"\0" * 8 if key is None else _blake3.blake3(key).digest(length=8)

    def oid(self, data: bytes | memoryview) -> Oid:
        if self._key is None:
            return Oid(_blake3.blake3(data).digest())
        return Oid(_blake3.blake3(data, key=self._key).digest())


def checksum(*parts: bytes | memoryview) -> bytes:
    """Eight bytes that detect damage (not tampering: that is the Oid's work)."""
    hasher = _blake3.blake3()
    for part in parts:
        hasher.update(part)
    return hasher.digest(length=8)


class Compressor:
    """A reused zstd context (a one-shot call costs four times as much). One per thread."""

    def __init__(self, level: int = ZSTD_LEVEL) -> None:
        self._zstd = zstd.ZstdCompressor(level)

    def compress(self, data: bytes) -> bytes:
        self._zstd.set_pledged_input_size(len(data))  # small tables for small data: a third faster
        return self._zstd.compress(data, mode=zstd.ZstdCompressor.FLUSH_FRAME)


ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
"""What everything that `Compressor` makes begins with."""


def decompress_bounded(data: bytes, max_size: int) -> bytes:
    """Undo `Compressor.compress` where nothing but the data itself says its size; Corrupt when that
    is above `most`."""
    try:
        size = zstd.get_frame_info(data).decompressed_size
    except zstd.ZstdError:
        size = None
    if size is None or size > max_size:
        raise Corrupt("bad_frame", "compressed data does not say its size: run `ortet verify`")
    return decompress(data, size)


class Decompressor:
    """`expand`, of much that is small, from any thread. A zstd context takes ten times as long to
    make as to use, and Python's can be used once; that of the zstandard package again. It is used
    where another program has loaded it, as LangChain does."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._context: Any = None
        self._frame_content_size: Any = None

    def decompress(self, data: bytes, max_size: int) -> bytes:
        if self._context is None:
            package = sys.modules.get("zstandard")
            make = getattr(package, "ZstdDecompressor", None)
            if package is None or make is None:
                return decompress_bounded(data, max_size)
            self._frame_content_size, self._context = package.frame_content_size, make()
        if not self._lock.acquire(blocking=False):
            return decompress_bounded(data, max_size)
        try:
            if 0 <= (size := self._frame_content_size(data)) <= max_size:
                plain: bytes = self._context.decompress(data)
                if len(plain) == size:
                    return plain
        except Exception:
            pass
        finally:
            self._lock.release()
        return decompress_bounded(data, max_size)


def decompress(data: bytes | memoryview, size: int) -> bytes:
    """Undo `Compressor.compress`; output beyond `size` is refused, so a bomb cannot expand."""
    try:
        plain = zstd.ZstdDecompressor().decompress(data, max_length=size + 1)
    except zstd.ZstdError as error:
        raise Corrupt(
            "bad_frame", f"compressed data is damaged ({error}): run `ortet verify`"
        ) from error
    if len(plain) != size:
        raise Corrupt(
            "bad_frame",
            f"frame holds {len(plain)} bytes, its header says {size}: run `ortet verify`",
        )
    return plain
