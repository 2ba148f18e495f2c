"""How a secret may be written, and whether bytes hold one: as it is, or encoded."""

from __future__ import annotations

import base64
import ctypes
import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from urllib.parse import quote, quote_plus

MIN_SECRET_BYTES = 8
"""Bytes: what is shorter is found everywhere, and proves nothing."""

_MIN_MEMMEM_BYTES = 1024  # bytes, in which bytes.find is faster than a call of C is

Find = Callable[[bytes, int, bytes, int], int | None]


def encoded_forms(value: str) -> list[bytes]:
    """A value as files and messages have it: itself first, then in base64 (wherever it lies in what
    was encoded), as hexadecimal digits, in a URL, in JSON."""
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
    """The letters that are the same whatever stands before (`shift` bytes of it in the first group)
    and behind."""
    coded = base64.b64encode(bytes(shift) + data).rstrip(b"=")
    own = (shift + len(data)) * 8 // 6  # whose six bits are all of ours
    return coded[-(-shift * 8 // 6) : own]


def _lowered(text: str) -> Iterator[str]:
    first, *rest = text.split("%")
    yield first
    for part in rest:
        yield f"%{part[:2].lower()}{part[2:]}"


class SecretPatterns:
    """Values by name, to be looked for in bytes."""

    def __init__(self, named: Sequence[tuple[str, bytes]]) -> None:
        self._named = [*named]
        self.max_length = max((len(value) for _, value in named), default=0)

    def __len__(self) -> int:
        return len(self._named)

    def find(self, data: bytes) -> str:
        """The name of the first that is there, "" for none."""
        find, size = _memmem(), len(data)
        if find is None or size < _MIN_MEMMEM_BYTES:
            return next((name for name, one in self._named if data.find(one) >= 0), "")
        return next((name for name, one in self._named if find(data, size, one, len(one))), "")


@cache
def _memmem() -> Find | None:
    """The C library's own search, which is many times as fast as bytes.find."""
    try:
        function = ctypes.CDLL(None).memmem
    except (OSError, AttributeError):
        return None
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
    return function
