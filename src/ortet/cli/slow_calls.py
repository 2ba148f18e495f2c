"""Records the slowest calls on this host, in a small file beside the store, for `ortet stats`."""

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
"""Faster calls are not recorded."""

WAITING_VERBS = frozenset(
    {"agent", "attach", "bisect", "journal", "logs", "mcp", "run", "serve", "swarm"}
)
WAITING_VERBS |= {"turn", "watch", "replay"}
"""Commands whose duration depends on what they wait for. They are not recorded."""


class SlowCall(msgspec.Struct, frozen=True):
    """The name of a call, its duration, and the session id. Arguments are never recorded."""

    what: str
    ms: float
    time: int  # nanoseconds
    session: str = ""
    way: str = "cli"


def record_slow_call(root: Path, call: SlowCall) -> None:
    """Record a call if it is among the slowest of a week. Errors of the disk are ignored."""
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
            os.replace(part, file)  # of two concurrent writes, one is lost
        finally:
            part.unlink(missing_ok=True)


def slowest(root: Path) -> list[SlowCall]:
    """Return the recorded calls of the last week, slowest first."""
    since = time.time_ns() - _KEEP_DAYS * 86_400 * 1_000_000_000
    try:
        calls = msgspec.json.decode(
            (root / SLOW_CALLS_FILE).read_bytes(), type=thread_safe_struct(list[SlowCall])
        )
    except (OSError, msgspec.DecodeError):  # the file is only informative
        return []
    return sorted((one for one in calls if one.time > since), key=_order)


@contextmanager
def time_call(what: str, way: str) -> Iterator[Timing]:
    """Time the block. The block sets `root` on the yielded Timing when it knows the store."""
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
    """The store and session of a timed call."""

    root: Path | None = None
    session: str = ""


def _order(call: SlowCall) -> float:
    return -call.ms
