"""How things look on a terminal and in JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ortet.backends.base import Queued
    from ortet.history.diff.tree_diff import Change
    from ortet.history.merge.tree_merge import FileConflict
    from ortet.machines.base import Report
    from ortet.objects.base import Objects

SHORT = 12
"""Digits of an id shown to people."""

LONGEST = 2000
"""Characters of a text in a list; a terminal shows as many as fit."""

MARKS = {"added": "A", "removed": "D", "modified": "M", "metadata": "m", "renamed": "R"}
CONFLICTS = {
    "content": "both sides changed it",
    "added": "both sides added it",
    "deleted_by_us": "deleted here, changed there",
    "deleted_by_them": "changed here, deleted there",
    "type": "it became different things",
    "metadata": "both sides changed its owner, mode or attributes",
}
COLOURS = {"added": "green", "removed": "red", "modified": "yellow", "renamed": "cyan"}


def to_json(data: object) -> str:
    """One line of ASCII: undecodable bytes of a path stay as escapes that Python reads back."""
    import json

    import msgspec

    return json.dumps(msgspec.to_builtins(data, enc_hook=str))


def coloured(*, terminal: bool) -> bool:
    """Whether to colour what is said to a terminal, or not to one, unless --color says so."""
    from ortet.config.environment import variable

    if variable("NO_COLOR") or variable("FORCE_COLOR") == "0":
        return False
    if variable("FORCE_COLOR") or variable("CLICOLOR_FORCE") not in (None, "", "0"):
        return True
    return terminal and variable("TERM") != "dumb" and variable("CLICOLOR") != "0"


def safe(text: str, *, keep: str = "") -> str:
    """Text that cannot drive a terminal: control characters and stray bytes become escapes."""
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


def short(oid: str) -> str:
    return oid[:SHORT]


def title(message: str) -> str:
    """The first line of a message."""
    return safe(message.strip().partition("\n")[0])


def line(text: str) -> str:
    """All of a text in one line, cut where nobody reads on."""
    from ortet.journal.conversation.text import one_line

    return safe(one_line(text, LONGEST))


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


def queued_lines(found: Queued) -> Iterator[str]:
    """What other hosts cannot read yet, if there is anything."""
    if found.objects:
        why = f" ({safe(found.trouble)})" if found.trouble else ""
        what = f"{plural(found.objects, 'pack')}, {size(found.bytes)}"
        yield f"queued  {what}: on this host only until uploaded{why}"


def report(found: Report) -> str:
    parts = [f"{found.written} written", f"{found.removed} removed"]
    if found.started:
        parts.append(f"running: {', '.join(map(safe, found.started))}")
    return ", ".join(parts)


def change(found: Change, objects: Objects | None = None, *, patch: bool = False) -> dict[str, Any]:
    """A change for JSON; with `patch`, its changed lines too."""
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


def patch_text(found: Change, objects: Objects) -> str:
    """The change as a unified diff; a line in words where there is no content to compare."""
    from ortet.history.diff.tree_diff import file_diff

    old, new = (None if entry and entry.is_dir else entry for entry in (found.old, found.new))
    text = ""
    if old or new:
        text = file_diff(objects, old, new, path=found.path, old_path=found.old_path)
    return text or f"{found.kind}: {_move(found)}\n"


def change_lines(changes: Iterable[Change], paint: Callable[..., str]) -> Iterator[str]:
    for found in changes:
        mark = paint(MARKS[found.kind], fg=COLOURS.get(found.kind))
        slash = "/" if _is_dir(found) else ""
        what = f" ({', '.join(found.fields)})" if found.kind == "metadata" else ""
        yield f"  {mark} {_move(found)}{slash}{what}"


def _is_dir(found: Change) -> bool:
    entry = found.new or found.old
    return entry is not None and entry.is_dir


def _move(found: Change) -> str:
    old = f"{safe(found.old_path)} -> " if found.old_path else ""
    return f"{old}{safe(found.path)}"


def tally(changes: Sequence[Change]) -> list[str]:
    counts = {kind: sum(found.kind == kind for found in changes) for kind in MARKS}
    parts = [f"{count} {kind}" for kind, count in counts.items() if count]
    return [", ".join(parts) or "no difference"]


def conflict(found: FileConflict | Mapping[str, Any]) -> str:
    path, kind = (
        (found["path"], found["kind"]) if isinstance(found, Mapping) else (found.path, found.kind)
    )
    return f"{safe(path)}: {CONFLICTS.get(kind, kind)}"
