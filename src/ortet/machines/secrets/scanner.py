"""Searches for known secrets in data that is about to be stored."""

from __future__ import annotations

import base64
import ctypes
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any
from urllib.parse import quote, quote_plus

from ortet._util.codec import encode
from ortet.errors import OrtetError, Refused

# Finds known secret values in bytes, also in encoded form.

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


_WINDOW = 1 << 20
_OUT_OF_FILES = "take it out of there (a file may be named in .ortetignore, a process ended)"


class SecretScanner:
    """Searches for secrets by value. It reports name and place of a secret, never its value.

    In files, artifacts, events and variables, secrets are also found in encoded form (see
    `encoded_forms`). The memory of processes, which may be gigabytes, is searched for plain values
    only.
    """

    def __init__(self, values: Mapping[str, str]) -> None:
        self._forms = [
            (name, form) for name, value in values.items() for form in encoded_forms(value)
        ]
        plain = [
            (name, found[0]) for name, value in values.items() if (found := encoded_forms(value))
        ]
        self._plain_patterns, self._all_patterns = (
            SecretPatterns(plain),
            SecretPatterns(self._forms),
        )

    def __bool__(self) -> bool:
        return len(self._plain_patterns) > 0

    def __repr__(self) -> str:
        return f"<Known {len(self._plain_patterns)}>"

    # Refuse.

    def file(self, fd: int, size: int, path: bytes) -> None:
        """Raise Refused("secret_found") if a file or its path holds a secret.

        Only the first `size` bytes of the file are searched.
        """
        where = f"file {os.fsdecode(path)}"
        if not size:
            self.data(path, where)
        for number, data in enumerate(_windows(fd, size, self._all_patterns.max_length - 1)):
            self.data(data if number else b"%b\0%b" % (path, data), where)

    def data(self, data: bytes, where: str | Callable[[], str], remedy: str = "") -> None:
        """Raise Refused("secret_found") if `data` holds a secret.

        Args:
            where: The place for the message, or a function that returns it.
            remedy: What the user can do about it.
        """
        name = self._all_patterns.find(data)
        if name:
            place: str = self._redact_value(where if isinstance(where, str) else where())
            raise secret_found_error(name, place, remedy)

    def text(self, text: str, where: str, remedy: str = "") -> None:
        """Raise Refused("secret_found") if `text` holds a secret."""
        self.data(os.fsencode(text), where, remedy)

    def plain_name(self, fd: int, size: int) -> str:
        """Return the name of the first secret whose plain value is in a file, or ""."""
        parts = _windows(fd, size, self._plain_patterns.max_length - 1)
        return next(filter(None, map(self._plain_patterns.find, parts)), "")

    # Redact.

    def redact(self, value: Any) -> Any:
        """Return plain data with every secret replaced by its name.

        Data without a secret is returned as it is.
        """
        try:
            data = encode(value)
        except (OrtetError, TypeError, ValueError):  # the code that stores it reports the error
            return value
        return self._redact_value(value) if self._all_patterns.find(data) else value

    def redact_bytes(self, data: bytes) -> bytes:
        """Return `data` with every secret replaced by its name."""
        if self._all_patterns.find(data):
            for name, form in self._by_length():
                data = data.replace(form, f"[{name}]".encode())
        return data

    def _redact_value(self, value: Any) -> Any:
        if isinstance(value, str):
            for name, form in self._by_length():
                value = value.replace(form.decode("utf-8", "surrogateescape"), f"[{name}]")
            return value
        if isinstance(value, dict):
            return {
                self._redact_value(key): self._redact_value(item) for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._redact_value(item) for item in value]
        return value

    def _by_length(self) -> list[tuple[str, bytes]]:
        return sorted(self._forms, key=lambda named: -len(named[1]))


def secret_found_error(name: str, where: str, remedy: str = "") -> Refused:
    return Refused(
        "secret_found",
        f"secret {name!r} is in {where}, and a commit would keep it: {remedy or _OUT_OF_FILES}, or "
        "commit with --allow-secrets (allow_secrets=True)",
        secret=name,
        where=where,
    )


def without_secret_name(error: OrtetError) -> OrtetError:
    """Return the error without the name of the secret, for a user who may not know it."""
    if error.kind != "secret_found":
        return error
    name = error.details["secret"]
    message = error.message.replace(f"secret {name!r} is in", "a secret is in", 1)
    where = error.details["where"].replace(f"[{name}]", "[...]")
    return Refused(error.kind, message.replace(f"[{name}]", "[...]"), where=where)


def _windows(fd: int, size: int, overlap: int) -> Iterator[bytes]:
    """Yield a file in overlapping pieces, so that no secret is cut at an edge."""
    offset = 0
    while offset < size:
        data = os.pread(fd, min(_WINDOW + overlap, size - offset), offset)
        if not data:
            return
        yield data
        offset += _WINDOW if len(data) > _WINDOW else len(data)
