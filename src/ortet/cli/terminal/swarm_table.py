"""Shows a running swarm: a live table on a terminal, otherwise a line for each ended attempt."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import IO

from ortet.cli.terminal import output
from ortet.sessions.swarm_api import Attempt, SwarmResult

_MAX_ROWS = 12
"""The maximum number of attempts shown: first the running ones, then the best."""

_BAR_WIDTH = 24


class SwarmTable:
    """Called with each new state of a swarm."""

    def __init__(self, stream: IO[str], on_ended: Callable[[Attempt], None], *, live: bool) -> None:
        self._stream = stream
        self._on_ended = on_ended
        self._live = live
        self._reported: set[int] = set()
        self._drawn_lines = 0

    def __call__(self, found: SwarmResult) -> None:
        for one in found.attempts:
            if one.state not in ("waiting", "running") and one.i not in self._reported:
                self._reported.add(one.i)
                self._on_ended(one)
        if self._live:
            self._draw(_table_lines(found))

    def close(self) -> None:
        """Remove the table from the terminal."""
        if self._live:
            self._draw([])

    def _draw(self, lines: list[str]) -> None:
        try:
            width = os.get_terminal_size(self._stream.fileno()).columns or 80
        except OSError:
            width = 80
        up = f"\x1b[{self._drawn_lines}F" if self._drawn_lines else ""
        body = "".join(f"{line[: width - 1]}\x1b[K\n" for line in lines)
        self._stream.write(f"{up}{body}\x1b[J")
        self._stream.flush()
        self._drawn_lines = len(lines)


def _table_lines(result: SwarmResult) -> list[str]:
    total = len(result.attempts)
    over = total - result.count("waiting") - result.count("running")
    bar = "#" * (_BAR_WIDTH * over // total) + "-" * (_BAR_WIDTH - _BAR_WIDTH * over // total)
    best = f"  best {result.best.score:g} (attempt {result.best.i})" if result.best else ""
    failed = f"  {result.count('failed')} failed" if result.count("failed") else ""
    head = f"swarm {result.name} [{bar}] {over}/{total}{best}{failed}"
    running = [one for one in result.attempts if one.state == "running"]
    return [head, *(attempt_line(one) for one in [*running, *result.ranked][:_MAX_ROWS])]


def attempt_line(attempt: Attempt) -> str:
    """Return one attempt as a line."""
    score = "" if attempt.score is None else f"{attempt.score:g}"
    took = f"{attempt.seconds:.1f} s" if attempt.seconds else ""
    mark = "*" if attempt.kept else " "
    error = f"  {attempt.reason}: {output.title(attempt.error)}" if attempt.reason else ""
    return f"{mark} {attempt.i:>4}  {attempt.state:<8}{score:>10}  {took:>8}{error}".rstrip()


def attempt_lines(result: SwarmResult) -> list[str]:
    """Return all attempts as lines."""
    return [attempt_line(one) for one in result.attempts]
