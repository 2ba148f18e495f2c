"""Parameters of rows and leases for PostgreSQL, and checks of its limits."""

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
"""PostgreSQL indexes at most 2704 bytes."""

_FOREVER = 2**63 - 1


def check_names(*parts: str) -> str:
    """Check all parts of a key and return the last one. Raise Invalid("bad_name")."""
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
    """Return the parameters for row changes, after checking their names."""
    for change in changes:
        check_names(change.kind, change.key)
    return {
        "kinds": [change.kind for change in changes],
        "keys": [change.key for change in changes],
        "values": [change.value for change in changes],
        "expects": [change.expect for change in changes],
    }


def claim_values(claims: Sequence[LeaseClaim]) -> dict[str, list[Any]]:
    """Return the parameters for lease claims, after checking them."""
    return {
        "claims": [check_names(claim.name) for claim in claims],
        "owners": [claim.owner for claim in claims],
        "ttls": [check_lease_ttl(claim.ttl_ns) for claim in claims],
    }


def check_lease_ttl(ttl_ns: int) -> int:
    """Return a valid time to live in ns. Raise Invalid("bad_ttl") otherwise."""
    if ttl_ns <= 0:
        raise Invalid(
            "bad_ttl", f"a lease of {ttl_ns} ns cannot be held: give a time to live above 0"
        )
    return min(ttl_ns, _FOREVER)


def replace_nul(text: str) -> str:
    """Replace NUL, which PostgreSQL cannot store in text."""
    return text.replace("\0", "\N{SYMBOL FOR NULL}")


class WriteSlots:
    """Ids under which writes are recorded: one slot per concurrent write.

    The database recognises a repeated write by its slot and request number.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._free: list[tuple[bytes, int]] = []
        self._pid = os.getpid()

    @contextmanager
    def acquire(self) -> Iterator[dict[str, Any]]:
        """Yield a slot, and a request number higher than any before in that slot."""
        with self._lock:
            if self._pid != os.getpid():  # the slots belong to the parent
                self._pid, self._free = os.getpid(), []
            slot, number = self._free.pop() if self._free else (os.urandom(16), 0)
        try:
            yield {"slot": slot, "request": number + 1}
        finally:
            with self._lock:
                self._free.append((slot, number + 1))
