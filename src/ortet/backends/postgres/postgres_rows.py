"""Rows and leases as PostgreSQL is given them, and what it cannot keep."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

from ortet.backends.base import LeaseClaim, RowChange
from ortet.backends.keys import check_name
from ortet.errors import Invalid

MAX_NAME_BYTES = 2400
"""Bytes of a name: PostgreSQL indexes no more than 2704."""

_FOREVER = 2**63 - 1


def check_names(*parts: str) -> str:
    """The last of the parts of one key, all of them checked, or Invalid("bad_name")."""
    size = sum(len(check_name(part).encode()) for part in parts)
    if size > MAX_NAME_BYTES:
        raise Invalid(
            "bad_name",
            f"{parts[-1][:100]!r} is too long for a name in PostgreSQL: give at most "
            f"{MAX_NAME_BYTES} "
            "bytes",
        )
    return parts[-1]


def row_values(changes: Sequence[RowChange]) -> dict[str, list[Any]]:
    for change in changes:
        check_names(change.kind, change.key)
    return {
        "kinds": [change.kind for change in changes],
        "keys": [change.key for change in changes],
        "values": [change.value for change in changes],
        "expects": [change.expect for change in changes],
    }


def claim_values(claims: Sequence[LeaseClaim]) -> dict[str, list[Any]]:
    return {
        "claims": [check_names(claim.name) for claim in claims],
        "owners": [claim.owner for claim in claims],
        "ttls": [check_lease_ttl(claim.ttl_ns) for claim in claims],
    }


def check_lease_ttl(ttl_ns: int) -> int:
    if ttl_ns <= 0:
        raise Invalid(
            "bad_ttl", f"a lease of {ttl_ns} ns cannot be held: give a time to live above 0"
        )
    return min(ttl_ns, _FOREVER)


def replace_nul(text: str) -> str:
    """A word for the log: PostgreSQL keeps no NUL in text."""
    return text.replace("\0", "\N{SYMBOL FOR NULL}")


class WriteSlots:
    """Names under which writes are noted, one for each that is under way at the same time."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._free: list[tuple[bytes, int]] = []
        self._pid = os.getpid()

    @contextmanager
    def acquire(self) -> Iterator[dict[str, Any]]:
        """A name and a number that is higher than any before under it."""
        with self._lock:
            if self._pid != os.getpid():  # those are the parent's
                self._pid, self._free = os.getpid(), []
            slot, number = self._free.pop() if self._free else (os.urandom(16), 0)
        try:
            yield {"slot": slot, "request": number + 1}
        finally:
            with self._lock:
                self._free.append((slot, number + 1))
