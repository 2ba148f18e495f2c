"""The common lines of two texts: the core of text diff and text merge. No I/O.

Lines that are unique in both texts anchor the match, because people see blocks, not the shortest
edit. Between anchors, lines are matched by shortest edit, up to a limit that bounds the time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_MAX_EDITS = 400
"""A range without an anchor and with more edits than this counts as rewritten."""


class MatchingBlock(NamedTuple):
    """A common run of lines: a[a : a + size] equals b[b : b + size]."""

    a: int
    b: int
    size: int


class LineChange(NamedTuple):
    """A change of lines: a[a0:a1] became b[b0:b1]. One of them may be empty."""

    a0: int
    a1: int
    b0: int
    b1: int


def split_lines(data: bytes) -> list[bytes]:
    """Split into lines with their ends. Only LF ends a line.

    CR LF and a missing LF at the end are preserved.
    """
    lines = [line + b"\n" for line in data.split(b"\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def matching_blocks(a: Sequence[bytes], b: Sequence[bytes]) -> list[MatchingBlock]:
    """Return the common runs in order. No run is empty or adjacent to the next in both texts."""
    ids: dict[bytes, int] = {}
    left = [ids.setdefault(line, len(ids)) for line in a]
    right = [ids.setdefault(line, len(ids)) for line in b]
    pairs = sorted(_pairs(left, right))
    blocks: list[MatchingBlock] = []
    for i, j in pairs:
        if blocks and blocks[-1].a + blocks[-1].size == i and blocks[-1].b + blocks[-1].size == j:
            blocks[-1] = blocks[-1]._replace(size=blocks[-1].size + 1)
        else:
            blocks.append(MatchingBlock(i, j, 1))
    return blocks


def line_changes(a: Sequence[bytes], b: Sequence[bytes]) -> list[LineChange]:
    """Return the changes between the common runs."""
    changes, i, j = [], 0, 0
    for block in [*matching_blocks(a, b), MatchingBlock(len(a), len(b), 0)]:
        if i < block.a or j < block.b:
            changes.append(LineChange(i, block.a, j, block.b))
        i, j = block.a + block.size, block.b + block.size
    return changes


def unified_diff(a: Sequence[bytes], b: Sequence[bytes], context: int = 3) -> list[str]:
    """Return the hunks of a unified diff. Bytes that are not UTF-8 are escaped."""
    out: list[str] = []
    group: list[LineChange] = []
    for change in line_changes(a, b):
        if group and change.a0 - group[-1].a1 > 2 * context:
            out += _hunk(a, b, group, context)
            group = []
        group.append(change)
    return out + (_hunk(a, b, group, context) if group else [])


def _hunk(
    a: Sequence[bytes], b: Sequence[bytes], group: list[LineChange], context: int
) -> list[str]:
    before = min(context, group[0].a0)
    after = min(context, len(a) - group[-1].a1)
    a0, a1 = group[0].a0 - before, group[-1].a1 + after
    b0, b1 = group[0].b0 - before, group[-1].b1 + after
    out = [f"@@ -{_span(a0, a1)} +{_span(b0, b1)} @@\n"]
    at = a0
    for change in group:
        out += [_line(" ", line) for line in a[at : change.a0]]
        out += [_line("-", line) for line in a[change.a0 : change.a1]]
        out += [_line("+", line) for line in b[change.b0 : change.b1]]
        at = change.a1
    return out + [_line(" ", line) for line in a[at:a1]]


def _span(start: int, end: int) -> str:
    """Format a range for a unified diff header: lines count from 1, an empty range from 0."""
    size = end - start
    return f"{start + 1}" if size == 1 else f"{start + bool(size)},{size}"


def _line(sign: str, line: bytes) -> str:
    text = sign + line.decode(errors="backslashreplace")
    return text if text.endswith("\n") else text + "\n\\ No newline at end of file\n"


def _pairs(a: list[int], b: list[int]) -> Iterator[tuple[int, int]]:
    """Yield matching positions. Uses a stack: the depth depends on the input."""
    todo = [(0, len(a), 0, len(b))]
    while todo:
        a0, a1, b0, b1 = todo.pop()
        while a0 < a1 and b0 < b1 and a[a0] == b[b0]:
            yield a0, b0
            a0, b0 = a0 + 1, b0 + 1
        while a0 < a1 and b0 < b1 and a[a1 - 1] == b[b1 - 1]:
            a1, b1 = a1 - 1, b1 - 1
            yield a1, b1
        if a0 == a1 or b0 == b1:
            continue
        anchors = _anchors(a[a0:a1], b[b0:b1])
        if not anchors:
            yield from ((a0 + i, b0 + j) for i, j in _shortest_edit(a[a0:a1], b[b0:b1]))
            continue
        i, j = a0, b0
        for at, to in anchors:
            todo.append((i, a0 + at, j, b0 + to))
            yield a0 + at, b0 + to
            i, j = a0 + at + 1, b0 + to + 1
        todo.append((i, a1, j, b1))


def _anchors(a: list[int], b: list[int]) -> list[tuple[int, int]]:
    """Return the longest increasing sequence of lines that occur once in each text."""
    once_a, once_b = Counter(a), Counter(b)
    where = {line: j for j, line in enumerate(b) if once_b[line] == 1}
    tops: list[int] = []  # smallest end of an increasing sequence of each length
    chain: list[tuple[int, int, int]] = []  # (i, j, index of the previous one)
    ends: list[int] = []
    for i, line in enumerate(a):
        j = where.get(line, -1) if once_a[line] == 1 else -1
        if j < 0:
            continue
        at = bisect_left(tops, j)
        chain.append((i, j, ends[at - 1] if at else -1))
        tops[at : at + 1] = [j]
        ends[at : at + 1] = [len(chain) - 1]
    anchors: list[tuple[int, int]] = []
    at = ends[-1] if ends else -1
    while at >= 0:
        i, j, at = chain[at]
        anchors.append((i, j))
    return anchors[::-1]


def _shortest_edit(a: list[int], b: list[int]) -> list[tuple[int, int]]:
    """Return the matches of a shortest edit (Myers' greedy algorithm). None if it is too long."""
    size_a, size_b = len(a), len(b)
    if set(a).isdisjoint(b):
        return []
    reach = {1: 0}
    trace: list[dict[int, int]] = []
    for edits in range(min(size_a + size_b, _MAX_EDITS) + 1):
        trace.append(reach.copy())
        for k in range(-edits, edits + 1, 2):
            down = k == -edits or (k != edits and reach[k - 1] < reach[k + 1])
            x = reach[k + 1] if down else reach[k - 1] + 1
            while x < size_a and x - k < size_b and a[x] == b[x - k]:
                x += 1
            reach[k] = x
            if x >= size_a and x - k >= size_b:
                return _trace_back(trace, size_a, size_b)
    return []


def _trace_back(trace: list[dict[int, int]], x: int, y: int) -> list[tuple[int, int]]:
    pairs: list[tuple[int, int]] = []
    for edits in range(len(trace) - 1, -1, -1):
        reach, k = trace[edits], x - y
        down = k == -edits or (k != edits and reach[k - 1] < reach[k + 1])
        before = k + 1 if down else k - 1
        x0 = reach[before] if edits else 0
        y0 = x0 - before if edits else 0
        while x > x0 and y > y0 and x and y:
            x, y = x - 1, y - 1
            pairs.append((x, y))
        x, y = x0, y0
    return pairs
