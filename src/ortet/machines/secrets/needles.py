"""Finds known secret values in bytes, also in encoded form."""

from __future__ import annotations

import base64
import ctypes
import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from urllib.parse import quote, quote_plus

MIN_SECRET_BYTES = 8
"""The shortest value that is searched for. A shorter one occurs by chance."""

_MIN_MEMMEM_BYTES = 1024  # below this size bytes.find is faster than a call of C

Find = Callable[[bytes, int, bytes, int], int | None]


def encoded_forms(value: str) -> list[bytes]:
    """Return the forms of a value in files and messages. The value itself comes first.

    The other forms are base64 (at any position in the encoded data), hexadecimal, URL and JSON.
    """
    try:
        data = value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return []
    if len(data) < MIN_SECRET_BYTES:
        return []
    return list(dict.fromkeys([data, *_encoded(value, data)]))


def _encoded(value: str, data: bytes) -> Iterator[bytes]:
    for shift in range(3):
        inner = _base64(data, shift)
        yield inner
        yield inner.translate(bytes.maketrans(b"+/", b"-_"))
    yield data.hex().encode()
    yield data.hex().upper().encode()
    for form in (quote(data, safe=""), quote(data), quote_plus(data)):
        yield form.encode()
    with_pairs = quote(data, safe="")
    yield "".join(_lowered(with_pairs)).encode()
    yield json.dumps(value)[1:-1].encode()
    yield json.dumps(value, ensure_ascii=False)[1:-1].encode("utf-8", "surrogateescape")


def _base64(data: bytes, shift: int) -> bytes:
    """Return the base64 characters that depend on `data` alone, whatever is before and after it.

    `shift` is the number of other bytes in the first group.
    """
    coded = base64.b64encode(bytes(shift) + data).rstrip(b"=")
    own = (shift + len(data)) * 8 // 6  # characters whose six bits all come from `data`
    return coded[-(-shift * 8 // 6) : own]


def _lowered(text: str) -> Iterator[str]:
    first, *rest = text.split("%")
    yield first
    for part in rest:
        yield f"%{part[:2].lower()}{part[2:]}"


class SecretPatterns:
    """Named values to search for in bytes."""

    def __init__(self, named: Sequence[tuple[str, bytes]]) -> None:
        self._named = [*named]
        self.max_length = max((len(value) for _, value in named), default=0)

    def __len__(self) -> int:
        return len(self._named)

    def find(self, data: bytes) -> str:
        """Return the name of the first value found in `data`, or ""."""
        find, size = _memmem(), len(data)
        if find is None or size < _MIN_MEMMEM_BYTES:
            return next((name for name, one in self._named if data.find(one) >= 0), "")
        return next((name for name, one in self._named if find(data, size, one, len(one))), "")


@cache
def _memmem() -> Find | None:
    """Return memmem(3) of the C library, which is many times as fast as bytes.find, or None."""
    try:
        function = ctypes.CDLL(None).memmem
    except (OSError, AttributeError):
        return None
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
    return function
