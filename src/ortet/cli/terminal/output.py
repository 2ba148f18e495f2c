"""Formats values for a terminal and for JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from ortet.cli.terminal.progress import Progress
from ortet.errors import OrtetError, code_of

if TYPE_CHECKING:
    from ortet.backends.base import UploadBacklog
    from ortet.cli.terminal.pager import Pager
    from ortet.history.diff.tree_diff import TreeChange
    from ortet.history.merge.tree_merge import FileConflict
    from ortet.machines.base import Loss, Report
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

    values: dict[str, Any] = msgspec.structs.asdict(record)  # type: ignore[arg-type]
    return values


def queued_lines(backlog: UploadBacklog) -> Iterator[str]:
    """Describe what other hosts cannot read yet, if there is anything."""
    if backlog.objects:
        why = f" ({safe(backlog.trouble)})" if backlog.trouble else ""
        what = f"{plural(backlog.objects, 'pack')}, {format_size(backlog.bytes)}"
        yield f"queued  {what}: on this host only until uploaded{why}"


def report_text(report: Report) -> str:
    """Return the result of a restore as text."""
    parts = [f"{report.written} written", f"{report.removed} removed"]
    if report.started:
        parts.append(f"running: {', '.join(map(safe, report.started))}")
    return ", ".join(parts)


def change_data(
    change: TreeChange, objects: ObjectStore | None = None, *, patch: bool = False
) -> dict[str, Any]:
    """Return a change for JSON. With `patch`, include its changed lines."""
    data = {
        "path": change.path,
        "kind": change.kind,
        "old_path": change.old_path,
        "content_changed": change.content_changed,
        "fields": change.fields,
        "old_size": change.old.size if change.old else None,
        "new_size": change.new.size if change.new else None,
    }
    return {**data, "patch": patch_text(change, objects)} if patch and objects else data


def patch_text(change: TreeChange, objects: ObjectStore) -> str:
    """Return a change as a unified diff, or in words if there is no content to compare."""
    from ortet.history.diff.tree_diff import file_diff

    old, new = (None if entry and entry.is_dir else entry for entry in (change.old, change.new))
    text = ""
    if old or new:
        text = file_diff(objects, old, new, path=change.path, old_path=change.old_path)
    return text or f"{change.kind}: {_move(change)}\n"


def change_lines(changes: Iterable[TreeChange], paint: Callable[..., str]) -> Iterator[str]:
    """Yield one line for each change."""
    for change in changes:
        mark = paint(CHANGE_MARKS[change.kind], fg=CHANGE_COLORS.get(change.kind))
        slash = "/" if _is_dir(change) else ""
        what = f" ({', '.join(change.fields)})" if change.kind == "metadata" else ""
        yield f"  {mark} {_move(change)}{slash}{what}"


def _is_dir(change: TreeChange) -> bool:
    entry = change.new or change.old
    return entry is not None and entry.is_dir


def _move(change: TreeChange) -> str:
    old = f"{safe(change.old_path)} -> " if change.old_path else ""
    return f"{old}{safe(change.path)}"


def change_counts(changes: Sequence[TreeChange]) -> list[str]:
    """Return a line with the number of changes of each kind."""
    counts = {kind: sum(found.kind == kind for found in changes) for kind in CHANGE_MARKS}
    parts = [f"{count} {kind}" for kind, count in counts.items() if count]
    return [", ".join(parts) or "no difference"]


def conflict_text(conflict: FileConflict | Mapping[str, Any]) -> str:
    """Return a merge conflict as text."""
    path, kind = (
        (conflict["path"], conflict["kind"])
        if isinstance(conflict, Mapping)
        else (conflict.path, conflict.kind)
    )
    return f"{safe(path)}: {CONFLICT_TEXTS.get(kind, kind)}"


# Prints the results of a command: lines or JSON, colours, a pager, errors.

EXIT_PIPE_CLOSED = 141  # the shell's code for a process that SIGPIPE ended


class CliOutput:
    """Prints the results, remarks and errors of one command."""

    def __init__(self) -> None:
        self.json = False
        self.quiet = False
        self.exit_code = 0
        self.color = "auto"
        self.pages = True  # False with --no-pager
        self.paged = False  # True if the output of this command may be long
        self._pager: Pager | None = None

    def begin_command(self, path: str) -> None:
        """Prepare for a command. `path` is its name with the names of its groups."""
        from ortet.cli.terminal.pager import PAGED_VERBS

        self.paged = path.partition(" ")[2] in PAGED_VERBS

    def emit(self, data: object, lines: Iterable[str] = ()) -> None:
        """Print the result: `data` with --json, nothing with -q, otherwise the lines."""
        if self.json:
            lines = [to_json(data)]
        if self.json or not self.quiet:
            with self.paged_output():
                sys.stdout.writelines(f"{line}\n" for line in lines)

    @contextmanager
    def paged_output(self) -> Iterator[None]:
        """Redirect standard output to the pager, if one is used.

        For code that writes to standard output directly.
        """
        if self._pager is None and (pager := self.start_pager()) is not None:
            self._pager = pager
            pager.redirect_output()
        try:
            yield
        except BrokenPipeError:
            raise SystemExit(self.exit_code if self._is_paging else EXIT_PIPE_CLOSED) from None

    def close_pager(self) -> None:
        """Wait until the user has closed the pager."""
        if self._pager is not None:
            pager, self._pager = self._pager, None
            pager.close()

    def flush(self) -> None:
        """Flush standard output.

        A pager is flushed when it is closed, and may have been quit before.
        """
        if self._pager is None:
            sys.stdout.flush()

    def start_pager(self) -> Pager | None:
        """Start a pager for this command. Return None if none is wanted."""
        if not (self.paged and self.pages) or self.json or self.quiet or not sys.stdout.isatty():
            return None
        from ortet.cli.terminal.pager import start_pager

        return start_pager(self.note)

    @property
    def _is_paging(self) -> bool:
        """True if output goes to a pager, ours or that of the process we run this command for."""
        from ortet.cli.terminal.pager import PAGER_IN_USE_VARIABLE
        from ortet.config.environment import read_variable

        return self._pager is not None or bool(read_variable(PAGER_IN_USE_VARIABLE))

    @property
    def on_terminal(self) -> bool:
        """True if the output is read on a terminal, directly or through a pager."""
        return sys.stdout.isatty() or self._is_paging

    def table(self, rows: Iterable[Sequence[str]]) -> list[str]:
        """Format rows as columns. On a terminal, lines are cut at its width."""
        lines = table(rows)
        if not self.on_terminal:
            return lines
        import shutil

        width = shutil.get_terminal_size().columns
        return [line if len(line) <= width else f"{line[: width - 1]}…" for line in lines]

    def note(self, line: str) -> None:
        """Print a remark to standard error, except with --json or -q."""
        if not self.json and not self.quiet:
            sys.stderr.write(line + "\n")

    def progress(self, label: str) -> Progress:
        """Return a progress bar, as a context manager for slow work."""
        return Progress(label, sys.stderr, shown=self.can_draw)

    @property
    def can_draw(self) -> bool:
        """True if standard error is a terminal that a progress bar can be drawn on."""
        from ortet.config.environment import read_variable

        seen = sys.stderr.isatty() and not self.quiet and not self.json
        return seen and read_variable("TERM") != "dumb"

    def print_losses(self, losses: Iterable[Loss]) -> None:
        """Print what could not be kept."""
        for loss in losses:
            self.note(f"not kept: {safe(loss.path)}: {loss.what} ({safe(loss.why)})")

    def paint(self, text: str, **style: Any) -> str:
        """Colour text, if the output is coloured."""
        return click.style(text, **style) if self.use_color(terminal=self.on_terminal) else text

    def use_color(self, *, terminal: bool) -> bool:
        """Return True if output is coloured. --color overrides the environment."""
        if self.color != "auto":
            return self.color == "always"
        return use_color(terminal=terminal)

    # errors

    def print_error(self, error: OrtetError) -> int:
        """Print an error and return its exit code."""
        _trace(error)
        if self.json:
            sys.stderr.write(to_json(error.as_dict()) + "\n")
        else:
            head = "error:"
            if self.use_color(terminal=sys.stderr.isatty()):
                head = click.style(head, fg="red", bold=True)
            message = safe(error.message, keep="\n")
            sys.stderr.write(f"{head} {message}\n")
            for conflict in error.details.get("conflicts", ()):
                sys.stderr.write(f"  {conflict_text(conflict)}\n")
        return code_of(error).exit_code

    def print_bug(self, error: Exception) -> int:
        """Print a short message about an internal error, and how to see its traceback."""
        _trace(error)
        text = f"{type(error).__name__}: {error}"
        message = f"this is a bug in ortet ({text}); set ORTET_DEBUG=1 to see where, and report it"
        bug = {"error": "bug", "kind": "bug", "message": message, "details": {}}
        line = to_json(bug) if self.json else f"error: {safe(message)}"
        sys.stderr.write(line + "\n")
        return code_of(error).exit_code


def _trace(error: Exception) -> None:
    from ortet.config.environment import is_debug

    if is_debug():
        import traceback

        traceback.print_exception(error)
