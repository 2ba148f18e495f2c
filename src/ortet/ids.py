"""Names of things: object ids, unique ids, and the clock and randomness they are made from."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import NewType, Protocol

from ortet.errors import Invalid

Oid = NewType("Oid", bytes)
"""BLAKE3-256 of an object's canonical bytes: 32 raw bytes inside, 64 hex digits outside."""

OID_BYTES = 32


class Clock(Protocol):
    """Where time comes from. Passed in, so that replay and tests can hold it."""

    def now_ns(self) -> int:
        """Nanoseconds since 1970, UTC."""
        ...


class SystemClock:
    """The host's wall clock."""

    def now_ns(self) -> int:
        return time.time_ns()


Random = Callable[[int], bytes]
"""n -> n random bytes; `os.urandom` outside tests."""


def to_hex(oid: Oid) -> str:
    return oid.hex()


def from_hex(text: str) -> Oid:
    """Parse a full 64-digit id."""
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(raw) != OID_BYTES or len(text) != 2 * OID_BYTES:
        raise Invalid("bad_oid", f"{text!r} is not an object id: give 64 hexadecimal digits")
    return Oid(raw)


def uuid7(clock: Clock, random: Random = os.urandom) -> str:
    """Return a time-ordered unique id (RFC 9562, version 7) as 32 hex digits.

    The 12 bits after the milliseconds are the fraction of the millisecond (method 3 of the RFC).
    So ids of a process sort in the order in which they were made, also within a millisecond: the
    first of two answers to an approval counts.
    """
    millis, nanos = divmod(clock.now_ns(), 1_000_000)
    fraction = (nanos << 12) // 1_000_000
    rand_b = int.from_bytes(random(10), "big") & (1 << 62) - 1
    value = (millis & (1 << 48) - 1) << 80 | 7 << 76 | fraction << 64 | 0b10 << 62 | rand_b
    return f"{value:032x}"
