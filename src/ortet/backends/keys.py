"""The one gate for names that reach a backend: what passes is safe as path, S3 key and column."""

from __future__ import annotations

import re

from ortet.errors import Invalid

MAX_KEY = 900
"""Below S3's 1024 bytes, so that a deployment can put a prefix of its own in front."""

MAX_PART = 200
"""Below the 255 bytes of a file name, with room for what a backend adds to it."""

MAX_NAME = 4500
"""A path of PATH_MAX with a host in front still fits."""

_KEY = re.compile(r"(?!\.{1,2}(?:/|\Z))[a-z0-9._-]+(?:/(?!\.{1,2}(?:/|\Z))[a-z0-9._-]+)*\Z")


def check_key(key: str) -> str:
    """A Bucket key, or Invalid("bad_key")."""
    if len(key) <= MAX_KEY and _KEY.match(key) and max(map(len, key.split("/"))) <= MAX_PART:
        return key
    raise Invalid(
        "bad_key",
        f"{key[:100]!r} is not a bucket key: use parts of [a-z0-9._-] joined by single slashes, "
        f"no '.' or '..', at most {MAX_PART} characters a part and {MAX_KEY} in all",
    )


def check_prefix(prefix: str) -> str:
    """The beginning of a key, which may end in the middle of a part."""
    if prefix:
        # A digit completes the unfinished part ("a/.." may go on as "a/..0") and no other.
        check_key(prefix + "0")
    return prefix


def check_name(name: str) -> str:
    """A name of a head, lease, row or topic, or Invalid("bad_name"): any text without NUL."""
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
    """A page size, or Invalid("bad_limit")."""
    if limit < 1:
        raise Invalid("bad_limit", f"a page of {limit} is not possible: ask for at least 1")
    return limit


def check_range(start: int, length: int | None) -> None:
    """A range of bytes, or Invalid("bad_range")."""
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
