"""The report of a replay, written to a file for the process that asked for it.

It is a module of its own because the command line reads what the replaying process writes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from ortet._util.codec import to_json
from ortet._util.structs import thread_safe_struct
from ortet.errors import Diverged
from ortet.journal.replay.cursor import ReplayCursor


class ReplayReport(msgspec.Struct, frozen=True):
    """How far a replay came.

    All events up to `upto` were replayed. `expected` is the next recorded event, and `got` is what
    the program did instead. Both are None if the program did all that was recorded. `waits` is the
    approval (id, what) for which the recorded session waited at the end.
    """

    upto: int
    expected: dict[str, Any] | None = None
    got: dict[str, Any] | None = None
    waits: dict[str, str] | None = None


def write_report(
    report: Path, cursor: ReplayCursor, diverged: Diverged | None, waits: dict[str, str] | None
) -> None:
    """Write the report atomically."""
    expected = cursor.expected
    then = None
    if expected is not None:
        then = {"seq": expected.seq, "kind": expected.kind, "data": expected.data}
    got = diverged.details["got"] if diverged is not None else None
    part = report.with_name(f"{report.name}.{os.getpid()}")
    part.write_text(to_json(ReplayReport(cursor.seq, then, got, waits)), encoding="utf-8")
    os.replace(part, report)


def read(report: Path) -> ReplayReport | None:
    """Return the report, or None if none was written."""
    try:
        return msgspec.json.decode(report.read_bytes(), type=thread_safe_struct(ReplayReport))
    except FileNotFoundError:
        return None
