"""The layout of a commit graph drawing: commits, newest first, to rows with lanes and edges.

No I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush

import msgspec

Edge = tuple[int, int]
"""From a lane of this row to a lane of the next row."""


class CommitGraphRow(msgspec.Struct, frozen=True):
    """The row of one commit. Edges from its lane lead to its parents; other edges pass by."""

    oid: str
    lane: int
    edges: list[Edge]

    @property
    def passing(self) -> list[int]:
        """The lanes of other commits that pass this row."""
        return [start for start, _ in self.edges if start != self.lane]


def lay_out(commits: Iterable[tuple[str, Sequence[str]]]) -> Iterator[CommitGraphRow]:
    """Yield rows for (oid, parents), children before parents. Free lanes are reused at once.

    Lazy. The cost of a row is the number of its open lanes.
    """
    waiting: dict[str, int] = {}  # parent that has no row yet -> its lane
    free: list[int] = []
    size = 0
    for oid, parents in commits:
        lane = waiting.pop(oid, -1)
        if lane < 0:
            lane, size = (heappop(free), size) if free else (size, size + 1)
        beside = sorted(waiting.values())
        edges: list[Edge] = []
        joined = -1  # a lane that is merged into this one
        mine = True  # True while no parent has the commit's own lane
        for parent in dict.fromkeys(parents):
            to = waiting.get(parent, -1)
            if mine and (to < 0 or to > lane):
                # The older line stays left: a lane further right that waits for the same parent
                # joins it.
                joined, to, mine = to, lane, False
            elif to < 0:
                to, size = (heappop(free), size) if free else (size, size + 1)
            waiting[parent] = to
            edges.append((lane, to))
        for gone in [joined] * (joined >= 0) + [lane] * mine:
            heappush(free, gone)
        passing = [(other, lane if other == joined else other) for other in beside]
        yield CommitGraphRow(oid, lane, passing + edges)


def render_text(rows: Iterable[CommitGraphRow]) -> Iterator[str]:
    """Yield the text to print before each row. A line of edges may follow after a newline."""
    for row in rows:
        cells = dict.fromkeys(row.passing, "|") | {row.lane: "*"}
        text = " ".join(cells.get(lane, " ") for lane in range(max(cells) + 1))
        if any(start != end for start, end in row.edges):
            text += "\n" + _edges(row)
        yield text


def draw(commits: Iterable[tuple[str, Sequence[str]]]) -> Iterator[tuple[str, str]]:
    """Yield lines of text, each with its commit, or with "" for a line of edges only."""
    for row in lay_out(commits):
        for text in render_text([row]):
            first, *rest = text.split("\n")
            yield first, row.oid
            yield from ((line, "") for line in rest)


def _edges(row: CommitGraphRow) -> str:
    """Draw the edges of a row. Lanes are two columns apart.

    An edge runs along the bottom of the line and then to its lane.
    """
    width = 2 * max(max(edge) for edge in row.edges) + 1
    line = [" "] * width
    for start, end in row.edges:
        low, high = 2 * min(start, end), 2 * max(start, end)
        for column in range(low + 1, high - 1):
            line[column] = "_"
    for start, end in row.edges:
        if start == end:
            line[2 * start] = "|"
        elif start < end:
            line[2 * end - 1] = "\\"
        else:
            line[2 * start - 1] = "/"
    return "".join(line).rstrip()
