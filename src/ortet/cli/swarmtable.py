"""How a swarm looks while it runs: a table that is drawn anew in a terminal, else a line for each
attempt that has ended."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import IO

from ortet.cli import output
from ortet.sessions.swarm_api import Attempt, SwarmResult

_ROWS = 12
"""Attempts that are shown at once: what runs, then the best."""

_BAR = 24


class SwarmTable:
    """Called with each state of a swarm."""

    def __init__(self, stream: IO[str], ended: Callable[[Attempt], None], *, live: bool) -> None:
        self._stream = stream
        self._ended = ended
        self._live = live
        self._told: set[int] = set()
        self._drawn = 0

    def __call__(self, found: SwarmResult) -> None:
        for one in found.attempts:
            if one.state not in ("waiting", "running") and one.i not in self._told:
                self._told.add(one.i)
                self._ended(one)
        if self._live:
            self._draw(_lines(found))

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._live:
            self._draw([])

    def _draw(self, lines: list[str]) -> None:
        try:
            width = os.get_terminal_size(self._stream.fileno()).columns or 80
        except OSError:
            width = 80
        up = f"\x1b[{self._drawn}F" if self._drawn else ""
        body = "".join(f"{line[: width - 1]}\x1b[K\n" for line in lines)
        self._stream.write(f"{up}{body}\x1b[J")
        self._stream.flush()
        self._drawn = len(lines)


def _lines(found: SwarmResult) -> list[str]:
    total = len(found.attempts)
    over = total - found.count("waiting") - found.count("running")
    bar = "#" * (_BAR * over // total) + "-" * (_BAR - _BAR * over // total)
    best = f"  best {found.best.score:g} (attempt {found.best.i})" if found.best else ""
    failed = f"  {found.count('failed')} failed" if found.count("failed") else ""
    head = f"swarm {found.name} [{bar}] {over}/{total}{best}{failed}"
    running = [one for one in found.attempts if one.state == "running"]
    return [head, *(line_of(one) for one in [*running, *found.ranked][:_ROWS])]


def line_of(one: Attempt) -> str:
    score = "" if one.score is None else f"{one.score:g}"
    took = f"{one.seconds:.1f} s" if one.seconds else ""
    mark = "*" if one.kept else " "
    error = f"  {one.reason}: {output.title(one.error)}" if one.reason else ""
    return f"{mark} {one.i:>4}  {one.state:<8}{score:>10}  {took:>8}{error}".rstrip()


def lines_of(found: SwarmResult) -> list[str]:
    """All of it."""
    return [line_of(one) for one in found.attempts]
