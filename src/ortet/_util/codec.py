"""Canonical encoding, hashing and compression. No other module produces stored bytes.

Canonical bytes are msgpack with a deterministic key order. Records are frozen msgspec Structs
encoded as arrays, so the position of a field is part of the format. Append fields; never reorder or
remove them.
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
    """Base class of every stored record: immutable, encoded as an array."""


_encoder = msgspec.msgpack.Encoder(order="deterministic")
_json = msgspec.json.Encoder(order="deterministic")


def encode(value: Any) -> bytes:
    """Return the canonical bytes of `value`. Raise Invalid if a value in it cannot be stored."""
    try:
        return _encoder.encode(value)
    except (TypeError, OverflowError, UnicodeEncodeError, RecursionError) as error:
        raise Invalid(
            "not_json",
            f"this cannot be recorded ({error}): give str, int, float, bool, None, list or dict",
        ) from error


def array_header(count: int) -> bytes:
    """Return the msgpack header of an array of `count` items. The encoded items must follow."""
    if count < 16:
        return bytes((0x90 | count,))
    if count < 1 << 16:
        return b"\xdc" + count.to_bytes(2, "big")
    return b"\xdd" + count.to_bytes(4, "big")


@cache
def _decoder(type_: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(thread_safe_struct(type_))


def decode(type_: type[T], data: bytes) -> T:
    """Parse canonical bytes as `type_`. Raise Corrupt if the bytes do not have that type."""
    try:
        value: T = _decoder(cast("Any", type_)).decode(data)
        return value
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        name = getattr(type_, "__name__", str(type_))
        raise Corrupt(
            "bad_record",
            f"stored bytes are not a {name} ({error}): run `ortet verify` to see what is damaged",
        ) from error


_CHECKED = b"\xc1"  # a byte that msgpack never uses
_CHECK_BYTES = 8


def add_checksum(name: str, data: bytes) -> bytes:
    """Return the value of the catalog row `name` with a checksum of the name and of `data`."""
    return _CHECKED + _checksum(name, data) + data


def strip_checksum(name: str, stored: bytes) -> bytes:
    """Return the data of the catalog row `name`. Raise Corrupt if its checksum does not match.

    A row of an earlier release has no checksum and is returned unchanged.
    """
    if not stored.startswith(_CHECKED):
        return stored
    data = stored[1 + _CHECK_BYTES :]
    if stored[1 : 1 + _CHECK_BYTES] != _checksum(name, data):
        raise Corrupt(
            "bad_row",
            f"catalog row {name!r} does not match its checksum: run `ortet verify` to see what is "
            "damaged",
            row=name,
        )
    return data


def _checksum(name: str, data: bytes) -> bytes:
    return _blake3.blake3(name.encode() + b"\0" + data).digest(length=_CHECK_BYTES)


def to_json(value: Any) -> str:
    """Return JSON for display and for other programs. This form is never hashed."""
    return _json.encode(value).decode()


class Hasher:
    """Computes object ids (Oids) with BLAKE3-256.

    A tenant may have a key. Its ids then differ from those of other tenants, so that objects are
    deduplicated only within one tenant.
    """

    def __init__(self, key: bytes | None = None) -> None:
        self._key = key
        self.key_id = b"\0" * 8 if key is None else _blake3.blake3(key).digest(length=8)

    def oid(self, data: bytes | memoryview) -> Oid:
        """Return the object id of `data`."""
        if self._key is None:
            return Oid(_blake3.blake3(data).digest())
        return Oid(_blake3.blake3(data, key=self._key).digest())


def checksum(*parts: bytes | memoryview) -> bytes:
    """Return eight bytes that detect accidental damage. Only the Oid detects tampering."""
    hasher = _blake3.blake3()
    for part in parts:
        hasher.update(part)
    return hasher.digest(length=8)


class Compressor:
    """Compresses with a reused zstd context; a one-shot call costs four times as much.

    Not thread-safe: use one instance per thread.
    """

    def __init__(self, level: int = ZSTD_LEVEL) -> None:
        self._zstd = zstd.ZstdCompressor(level)

    def compress(self, data: bytes) -> bytes:
        """Return `data` as one zstd frame that contains its size."""
        # zstd then uses small tables for small data: a third faster
        self._zstd.set_pledged_input_size(len(data))
        return self._zstd.compress(data, mode=zstd.ZstdCompressor.FLUSH_FRAME)


ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
"""The first bytes of everything that `Compressor` returns."""


def decompress_bounded(data: bytes, max_size: int) -> bytes:
    """Decompress data whose size is known only from its own zstd frame header.

    Raise Corrupt if the header gives no size or a size above `max_size`.
    """
    try:
        size = zstd.get_frame_info(data).decompressed_size
    except zstd.ZstdError:
        size = None
    if size is None or size > max_size:
        raise Corrupt("bad_frame", "compressed data does not say its size: run `ortet verify`")
    return decompress(data, size)


class Decompressor:
    """Decompresses many small values, from any thread.

    Creating a zstd context takes ten times as long as using it, and a context of the standard
    library can be used only once. A context of the zstandard package is reusable. This class uses
    that package if the process has already loaded it, as LangChain does.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._context: Any = None
        self._frame_content_size: Any = None

    def decompress(self, data: bytes, max_size: int) -> bytes:
        """Undo `Compressor.compress`. Raise Corrupt if the result exceeds `max_size`."""
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
    """Undo `Compressor.compress`. Reject output larger than `size`, to stop decompression bombs."""
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
