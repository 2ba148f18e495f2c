"""Validation of keys and names before they reach a backend.

A valid name is safe as a file path, an S3 key and a database column.
"""

from __future__ import annotations

import re

from ortet.errors import Invalid

MAX_KEY = 900
"""Below the 1024 bytes of S3, so that a deployment can add its own prefix."""

MAX_PART = 200
"""Below the 255 bytes of a file name, so that a backend can add a suffix."""

MAX_NAME = 4500
"""Long enough for a path of PATH_MAX with a host in front."""

_KEY = re.compile(r"(?!\.{1,2}(?:/|\Z))[a-z0-9._-]+(?:/(?!\.{1,2}(?:/|\Z))[a-z0-9._-]+)*\Z")


def check_key(key: str) -> str:
    """Return a valid bucket key. Raise Invalid("bad_key") otherwise."""
    if len(key) <= MAX_KEY and _KEY.match(key) and max(map(len, key.split("/"))) <= MAX_PART:
        return key
    raise Invalid(
        "bad_key",
        f"{key[:100]!r} is not a bucket key: use parts of [a-z0-9._-] joined by single slashes, "
        f"no '.' or '..', at most {MAX_PART} characters a part and {MAX_KEY} in all",
    )


def check_prefix(prefix: str) -> str:
    """Return a valid start of a bucket key. It may end in the middle of a part."""
    if prefix:
        # A digit makes an unfinished part valid ("a/.." can continue as "a/..0"), and no other.
        check_key(prefix + "0")
    return prefix


def check_name(name: str) -> str:
    """Return a valid name of a head, lease, row or topic: any text without NUL.

    Raise Invalid("bad_name") otherwise.
    """
    if not isinstance(name, str):
        raise Invalid("bad_name", f"{type(name).__name__} is no name: give text")
    if name and len(name) <= MAX_NAME and "\0" not in name and (name.isascii() or _is_text(name)):
        return name
    raise Invalid(
        "bad_name",
        f"{name[:100]!r} cannot be stored as a name: "
        f"give 1 to {MAX_NAME} characters of text without NUL",
    )


def check_limit(limit: int) -> int:
    """Return a valid page size. Raise Invalid("bad_limit") otherwise."""
    if limit < 1:
        raise Invalid("bad_limit", f"a page of {limit} is not possible: ask for at least 1")
    return limit


def check_range(start: int, length: int | None) -> None:
    """Raise Invalid("bad_range") if a byte range is negative."""
    if start < 0 or (length is not None and length < 0):
        raise Invalid(
            "bad_range", f"no range starts at {start} with length {length}: give numbers >= 0"
        )


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
