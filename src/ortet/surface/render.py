"""How things look on a terminal and in JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ortet.graph.diff import Change
    from ortet.graph.merge import FileConflict
    from ortet.machine.abc import Report

if TYPE_CHECKING:
    pass

SHORT = 12
"""Digits of an id shown to people."""

MARKS = {"added": "A", "removed": "D", "modified": "M", "metadata": "m", "renamed": "R"}
COLOURS = {"added": "green", "removed": "red", "modified": "yellow", "renamed": "cyan"}


def to_json(data: object) -> str:
    """One line of ASCII: undecodable bytes of a path stay as escapes that Python reads back."""
    import msgspec

    return json.dumps(msgspec.to_builtins(data, enc_hook=str))


def coloured(stream: IO[str]) -> bool:
    if not stream.isatty():
        return False
    from ortet.config import wants_colour

    return wants_colour()


def safe(text: str, *, lines: bool = False) -> str:
    """Text that cannot drive a terminal: control characters and stray bytes become escapes."""
    if text.isprintable():
        return text
    return "".join(map(_safe_or_newline if lines else _safe, text))


def _safe(char: str) -> str:
    if char.isprintable():
        return char
    if "\udc80" <= char <= "\udcff":
        return f"\\x{ord(char) - 0xDC00:02x}"
    if char.isspace() and ord(char) >= 0xA0:
        return char
    return char.encode("unicode_escape", "surrogatepass").decode()


def _safe_or_newline(char: str) -> str:
    return char if char == "\n" else _safe(char)


def short(oid: str) -> str:
    return oid[:SHORT]


def title(message: str) -> str:
    """The first line of a message."""
    return safe(message.strip().partition("\n")[0])


def when(time_ns: int) -> str:
    """Local time, to the second."""
    try:
        moment = datetime.fromtimestamp(time_ns // 1_000_000_000, UTC).astimezone()
    except (ValueError, OverflowError, OSError):
        return f"{time_ns} ns"
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def seconds(duration: float) -> str:
    if duration < 1:
        return f"{duration * 1000:.1f} ms"
    return f"{duration:.1f} s"


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def table(rows: Iterable[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest cell, nothing after the last."""
    cells = [list(row) for row in rows]
    if not cells:
        return []
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


def fields(record: object) -> dict[str, Any]:
    """A record as a mapping, to put more keys beside its own."""
    import msgspec

    found: dict[str, Any] = msgspec.structs.asdict(record)  # type: ignore[arg-type]
    return found


def report(found: Report) -> str:
    parts = [f"{found.written} written", f"{found.removed} removed"]
    return ", ".join(parts)


def change_lines(changes: Iterable[Change], paint: Callable[..., str]) -> Iterator[str]:
    for change in changes:
        mark = paint(MARKS.get(change.kind, "?"), fg=COLOURS.get(change.kind))
        old = f"{safe(change.old_path)} -> " if change.old_path else ""
        yield f"  {mark} {old}{safe(change.path)}"


def conflict(found: FileConflict | Mapping[str, Any]) -> str:
    get = found.get if isinstance(found, Mapping) else lambda key: getattr(found, key)
    return f"{safe(get('path'))}: {get('what')}"
