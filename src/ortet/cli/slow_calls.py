"""The slowest calls on this host: few, kept beside the store for whoever asks `ortet stats`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from ortet._util.structs import thread_safe_struct

SLOW_CALLS_FILE = "local/slow"
_MAX_RECORDED = 50
_KEEP_DAYS = 7
_MIN_RECORDED_SECONDS = 0.05
"""Seconds below which nobody would ask why."""

WAITING_VERBS = frozenset(
    {"agent", "attach", "bisect", "journal", "logs", "mcp", "run", "serve", "swarm"}
)
WAITING_VERBS |= {"turn", "watch", "replay"}
"""Verbs that take as long as what they wait for."""


class SlowCall(msgspec.Struct, frozen=True):
    """`what` was called, of which session, by its id: never with what was given to it."""

    what: str
    ms: float
    time: int  # nanoseconds
    session: str = ""
    way: str = "cli"


def record_slow_call(root: Path, call: SlowCall) -> None:
    """Remember it, if it is among the slowest of a week. A disk that is full forgets."""
    if call.ms < _MIN_RECORDED_SECONDS * 1000:
        return
    known = slowest(root)
    if len(known) >= _MAX_RECORDED and call.ms <= known[-1].ms:
        return
    known = sorted([*known, call], key=_order)[:_MAX_RECORDED]
    file = root / SLOW_CALLS_FILE
    part = file.with_name(f"slow.{os.getpid()}.{os.urandom(4).hex()}")
    with suppress(OSError):
        try:
            part.write_bytes(msgspec.json.encode(known))
            os.replace(part, file)  # of two at once, one is forgotten
        finally:
            part.unlink(missing_ok=True)


def slowest(root: Path) -> list[SlowCall]:
    """Those of the last week, the slowest first."""
    since = time.time_ns() - _KEEP_DAYS * 86_400 * 1_000_000_000
    try:
        found = msgspec.json.decode(
            (root / SLOW_CALLS_FILE).read_bytes(), type=thread_safe_struct(list[SlowCall])
        )
    except (OSError, msgspec.DecodeError):  # a hint, and not more
        return []
    return sorted((one for one in found if one.time > since), key=_order)


@contextmanager
def time_call(what: str, way: str) -> Iterator[Timing]:
    """What is done in the block; it says where the store is, once that is known."""
    timing, began = Timing(), time.perf_counter()
    try:
        yield timing
    finally:
        if timing.root is not None:
            ms = (time.perf_counter() - began) * 1000
            record_slow_call(
                timing.root, SlowCall(what, round(ms, 1), time.time_ns(), timing.session, way)
            )


class Timing:
    """Whose call it is that is timed."""

    root: Path | None = None
    session: str = ""


def _order(one: SlowCall) -> float:
    return -one.ms
