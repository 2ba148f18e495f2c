"""Formats values for a terminal and for JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ortet.backends.base import UploadBacklog
    from ortet.history.diff.tree_diff import TreeChange
    from ortet.history.merge.tree_merge import FileConflict
    from ortet.machines.base import Report
    from ortet.objects.base import ObjectStore

SHORT_ID_DIGITS = 12
"""The number of digits of an id that are shown."""

MAX_TEXT_CHARS = 2000
"""The maximum length of a text in a list. A terminal shows as much as fits."""

CHANGE_MARKS = {"added": "A", "removed": "D", "modified": "M", "metadata": "m", "renamed": "R"}
CONFLICT_TEXTS = {
    "content": "both sides changed it",
    "added": "both sides added it",
    "deleted_by_us": "deleted here, changed there",
    "deleted_by_them": "changed here, deleted there",
    "type": "it became different things",
    "metadata": "both sides changed its owner, mode or attributes",
}
CHANGE_COLORS = {"added": "green", "removed": "red", "modified": "yellow", "renamed": "cyan"}


def to_json(data: object) -> str:
    """Return one line of ASCII JSON.

    Undecodable bytes of a path become escapes that Python can read.
    """
    import json

    import msgspec

    return json.dumps(msgspec.to_builtins(data, enc_hook=str))


def use_color(*, terminal: bool) -> bool:
    """Return True if output is coloured by default, from the environment variables."""
    from ortet.config.environment import read_variable

    if read_variable("NO_COLOR") or read_variable("FORCE_COLOR") == "0":
        return False
    if read_variable("FORCE_COLOR") or read_variable("CLICOLOR_FORCE") not in (None, "", "0"):
        return True
    return terminal and read_variable("TERM") != "dumb" and read_variable("CLICOLOR") != "0"


def safe(text: str, *, keep: str = "") -> str:
    """Return text that cannot control a terminal.

    Control characters and invalid bytes are escaped.
    """
    if text.isprintable():
        return text
    return "".join(char if char in keep else _safe(char) for char in text)


def _safe(char: str) -> str:
    if char.isprintable():
        return char
    if "\udc80" <= char <= "\udcff":
        return f"\\x{ord(char) - 0xDC00:02x}"
    if char.isspace() and ord(char) >= 0xA0:
        return char
    return char.encode("unicode_escape").decode()


def short_id(oid: str) -> str:
    """Return the first digits of an id."""
    return oid[:SHORT_ID_DIGITS]


def title(message: str) -> str:
    """Return the first line of a message."""
    return safe(message.strip().partition("\n")[0])


def single_line(text: str) -> str:
    """Return a text as one line of limited length."""
    from ortet.journal.conversation.text import one_line

    return safe(one_line(text, MAX_TEXT_CHARS))


def format_time(time_ns: int) -> str:
    """Return local time, to the second."""
    try:
        moment = datetime.fromtimestamp(time_ns // 1_000_000_000, UTC).astimezone()
    except (ValueError, OverflowError, OSError):
        return f"{time_ns} ns"
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def format_size(count: float) -> str:
    """Return a size in B, KiB, MiB, GiB or TiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def format_duration(duration: float) -> str:
    """Return a duration in milliseconds or seconds."""
    if duration < 1:
        return f"{duration * 1000:.1f} ms"
    return f"{duration:.1f} s"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun, with an s unless the count is 1."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def table(rows: Iterable[Sequence[str]]) -> list[str]:
    """Format rows as aligned columns, without spaces at the end of a line."""
    cells = [list(row) for row in rows]
    if not cells:
        return []
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


def fields(record: object) -> dict[str, Any]:
    """Return a record as a dict, so that keys can be added."""
    import msgspec

    found: dict[str, Any] = msgspec.structs.asdict(record)  # type: ignore[arg-type]
    return found


def queued_lines(found: UploadBacklog) -> Iterator[str]:
    """Describe what other hosts cannot read yet, if there is anything."""
    if found.objects:
        why = f" ({safe(found.trouble)})" if found.trouble else ""
        what = f"{plural(found.objects, 'pack')}, {format_size(found.bytes)}"
        yield f"queued  {what}: on this host only until uploaded{why}"


def report_text(found: Report) -> str:
    """Return the result of a restore as text."""
    parts = [f"{found.written} written", f"{found.removed} removed"]
    if found.started:
        parts.append(f"running: {', '.join(map(safe, found.started))}")
    return ", ".join(parts)


def change_data(
    found: TreeChange, objects: ObjectStore | None = None, *, patch: bool = False
) -> dict[str, Any]:
    """Return a change for JSON. With `patch`, include its changed lines."""
    data = {
        "path": found.path,
        "kind": found.kind,
        "old_path": found.old_path,
        "content_changed": found.content_changed,
        "fields": found.fields,
        "old_size": found.old.size if found.old else None,
        "new_size": found.new.size if found.new else None,
    }
    return {**data, "patch": patch_text(found, objects)} if patch and objects else data


def patch_text(found: TreeChange, objects: ObjectStore) -> str:
    """Return a change as a unified diff, or in words if there is no content to compare."""
    from ortet.history.diff.tree_diff import file_diff

    old, new = (None if entry and entry.is_dir else entry for entry in (found.old, found.new))
    text = ""
    if old or new:
        text = file_diff(objects, old, new, path=found.path, old_path=found.old_path)
    return text or f"{found.kind}: {_move(found)}\n"


def change_lines(changes: Iterable[TreeChange], paint: Callable[..., str]) -> Iterator[str]:
    """Yield one line for each change."""
    for found in changes:
        mark = paint(CHANGE_MARKS[found.kind], fg=CHANGE_COLORS.get(found.kind))
        slash = "/" if _is_dir(found) else ""
        what = f" ({', '.join(found.fields)})" if found.kind == "metadata" else ""
        yield f"  {mark} {_move(found)}{slash}{what}"


def _is_dir(found: TreeChange) -> bool:
    entry = found.new or found.old
    return entry is not None and entry.is_dir


def _move(found: TreeChange) -> str:
    old = f"{safe(found.old_path)} -> " if found.old_path else ""
    return f"{old}{safe(found.path)}"


def change_counts(changes: Sequence[TreeChange]) -> list[str]:
    """Return a line with the number of changes of each kind."""
    counts = {kind: sum(found.kind == kind for found in changes) for kind in CHANGE_MARKS}
    parts = [f"{count} {kind}" for kind, count in counts.items() if count]
    return [", ".join(parts) or "no difference"]


def conflict_text(found: FileConflict | Mapping[str, Any]) -> str:
    """Return a merge conflict as text."""
    path, kind = (
        (found["path"], found["kind"]) if isinstance(found, Mapping) else (found.path, found.kind)
    )
    return f"{safe(path)}: {CONFLICT_TEXTS.get(kind, kind)}"
