"""How a replay went, told to whoever asked for it from another process."""

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
    """`upto`: all events up to this one were re-enacted. `expected`: what was done next, then; with
    `got`, what the program did instead. Both are None when it did all that it did. `waits`: the
    approval (id, what) that it waited for at the end, as then."""

    upto: int
    expected: dict[str, Any] | None = None
    got: dict[str, Any] | None = None
    waits: dict[str, str] | None = None


def write_report(
    report: Path, cursor: ReplayCursor, diverged: Diverged | None, waits: dict[str, str] | None
) -> None:
    """Write it, as one step."""
    expected = cursor.expected
    then = None
    if expected is not None:
        then = {"seq": expected.seq, "kind": expected.kind, "data": expected.data}
    got = diverged.details["got"] if diverged is not None else None
    part = report.with_name(f"{report.name}.{os.getpid()}")
    part.write_text(to_json(ReplayReport(cursor.seq, then, got, waits)), encoding="utf-8")
    os.replace(part, report)


def read(report: Path) -> ReplayReport | None:
    """None when nothing was told."""
    try:
        return msgspec.json.decode(report.read_bytes(), type=thread_safe_struct(ReplayReport))
    except FileNotFoundError:
        return None
