"""The slowest calls on this host: few, kept beside the store for whoever asks `ortet stats`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from ortet._util.structs import known

PLACE = "local/slow"
_MOST = 50
_DAYS = 7
_WORTH = 0.05
"""Seconds below which nobody would ask why."""

LONG = frozenset({"agent", "attach", "bisect", "journal", "logs", "mcp", "run", "serve", "swarm"})
LONG |= {"turn", "watch", "replay"}
"""Verbs that take as long as what they wait for."""


class Slow(msgspec.Struct, frozen=True):
    """`what` was called, of which session, by its id: never with what was given to it."""

    what: str
    ms: float
    time: int  # nanoseconds
    session: str = ""
    way: str = "cli"


def note(root: Path, slow: Slow) -> None:
    """Remember it, if it is among the slowest of a week. A disk that is full forgets."""
    if slow.ms < _WORTH * 1000:
        return
    known = slowest(root)
    if len(known) >= _MOST and slow.ms <= known[-1].ms:
        return
    known = sorted([*known, slow], key=_order)[:_MOST]
    file = root / PLACE
    part = file.with_name(f"slow.{os.getpid()}.{os.urandom(4).hex()}")
    with suppress(OSError):
        try:
            part.write_bytes(msgspec.json.encode(known))
            os.replace(part, file)  # of two at once, one is forgotten
        finally:
            part.unlink(missing_ok=True)


def slowest(root: Path) -> list[Slow]:
    """Those of the last week, the slowest first."""
    since = time.time_ns() - _DAYS * 86_400 * 1_000_000_000
    try:
        found = msgspec.json.decode((root / PLACE).read_bytes(), type=known(list[Slow]))
    except (OSError, msgspec.DecodeError):  # a hint, and not more
        return []
    return sorted((one for one in found if one.time > since), key=_order)


@contextmanager
def timed(what: str, way: str) -> Iterator[Timing]:
    """What is done in the block; it says where the store is, once that is known."""
    timing, began = Timing(), time.perf_counter()
    try:
        yield timing
    finally:
        if timing.root is not None:
            ms = (time.perf_counter() - began) * 1000
            note(timing.root, Slow(what, round(ms, 1), time.time_ns(), timing.session, way))


class Timing:
    """Whose call it is that is timed."""

    root: Path | None = None
    session: str = ""


def _order(one: Slow) -> float:
    return -one.ms
