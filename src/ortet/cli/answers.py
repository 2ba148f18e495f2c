"""Prints the results of a command: lines or JSON, colours, a pager, errors."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from ortet.cli import output
from ortet.cli.progress import Progress
from ortet.errors import OrtetError, code_of

if TYPE_CHECKING:
    from ortet.cli.pager import Pager
    from ortet.machines.base import Loss

EXIT_PIPE_CLOSED = 141  # the shell's code for a process that SIGPIPE ended


class CliOutput:
    """The output half of CliCall."""

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
        from ortet.cli.pager import PAGED_VERBS

        self.paged = path.partition(" ")[2] in PAGED_VERBS

    def emit(self, data: object, lines: Iterable[str] = ()) -> None:
        """Print the result: `data` with --json, nothing with -q, otherwise the lines."""
        if self.json:
            lines = [output.to_json(data)]
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
        from ortet.cli.pager import start_pager

        return start_pager(self.note)

    @property
    def _is_paging(self) -> bool:
        """True if output goes to a pager, ours or that of the process we run this command for."""
        from ortet.cli.pager import PAGER_IN_USE_VARIABLE
        from ortet.config.environment import read_variable

        return self._pager is not None or bool(read_variable(PAGER_IN_USE_VARIABLE))

    @property
    def on_terminal(self) -> bool:
        """True if the output is read on a terminal, directly or through a pager."""
        return sys.stdout.isatty() or self._is_paging

    def table(self, rows: Iterable[Sequence[str]]) -> list[str]:
        """Format rows as columns. On a terminal, lines are cut at its width."""
        lines = output.table(rows)
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
            self.note(f"not kept: {output.safe(loss.path)}: {loss.what} ({output.safe(loss.why)})")

    def paint(self, text: str, **style: Any) -> str:
        """Colour text, if the output is coloured."""
        return click.style(text, **style) if self.use_color(terminal=self.on_terminal) else text

    def use_color(self, *, terminal: bool) -> bool:
        """Return True if output is coloured. --color overrides the environment."""
        if self.color != "auto":
            return self.color == "always"
        return output.use_color(terminal=terminal)

    # errors

    def print_error(self, error: OrtetError) -> int:
        """Print an error and return its exit code."""
        _trace(error)
        if self.json:
            sys.stderr.write(output.to_json(error.as_dict()) + "\n")
        else:
            head = "error:"
            if self.use_color(terminal=sys.stderr.isatty()):
                head = click.style(head, fg="red", bold=True)
            message = output.safe(error.message, keep="\n")
            sys.stderr.write(f"{head} {message}\n")
            for conflict in error.details.get("conflicts", ()):
                sys.stderr.write(f"  {output.conflict_text(conflict)}\n")
        return code_of(error).exit_code

    def print_bug(self, error: Exception) -> int:
        """Print a short message about an internal error, and how to see its traceback."""
        _trace(error)
        text = f"{type(error).__name__}: {error}"
        message = f"this is a bug in ortet ({text}); set ORTET_DEBUG=1 to see where, and report it"
        bug = {"error": "bug", "kind": "bug", "message": message, "details": {}}
        line = output.to_json(bug) if self.json else f"error: {output.safe(message)}"
        sys.stderr.write(line + "\n")
        return code_of(error).exit_code


def _trace(error: Exception) -> None:
    from ortet.config.environment import is_debug

    if is_debug():
        import traceback

        traceback.print_exception(error)
