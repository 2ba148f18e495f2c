"""Object ids, unique ids, and the clock and random source that they are made from."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import NewType, Protocol

from ortet.errors import Invalid

Oid = NewType("Oid", bytes)
"""BLAKE3-256 hash of an object's canonical bytes.

In memory an oid is 32 raw bytes. In text it is 64 hexadecimal digits.
"""

OID_BYTES = 32


class Clock(Protocol):
    """Source of the current time. It is passed in, so that replay and tests can control it."""

    def now_ns(self) -> int:
        """Return nanoseconds since 1970-01-01 UTC."""
        ...


class SystemClock:
    """Clock that returns the wall-clock time of the host."""

    def now_ns(self) -> int:
        return time.time_ns()


Random = Callable[[int], bytes]
"""Function that takes n and returns n random bytes; `os.urandom` outside tests."""


def to_hex(oid: Oid) -> str:
    return oid.hex()


def from_hex(text: str) -> Oid:
    """Parse an object id of 64 hexadecimal digits.

    Raises:
        Invalid: kind "bad_oid", if the text is anything else. Short ids are not accepted here.
    """
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(raw) != OID_BYTES or len(text) != 2 * OID_BYTES:
        raise Invalid("bad_oid", f"{text!r} is not an object id: give 64 hexadecimal digits")
    return Oid(raw)


def uuid7(clock: Clock, random: Random = os.urandom) -> str:
    """Return a time-ordered unique id (RFC 9562, version 7) as 32 hexadecimal digits.

    The 12 bits after the milliseconds hold the fraction of the millisecond (method 3 of the RFC).
    Ids of one process therefore sort in creation order, also within one millisecond. Approvals rely
    on that order: the first of two answers counts.
    """
    millis, nanos = divmod(clock.now_ns(), 1_000_000)
    fraction = (nanos << 12) // 1_000_000
    rand_b = int.from_bytes(random(10), "big") & (1 << 62) - 1
    value = (millis & (1 << 48) - 1) << 80 | 7 << 76 | fraction << 64 | 0b10 << 62 | rand_b
    return f"{value:032x}"
