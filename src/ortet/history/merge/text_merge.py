"""Three-way merge of text, line by line. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from ortet.history.diff import line_diff
from ortet.history.diff.line_diff import LineChange

Favor = Literal["ours", "theirs"]
Range = tuple[int, int]
"""A half-open range of line numbers, counted from 0."""


class TextConflict(msgspec.Struct, frozen=True):
    """Lines that both sides changed differently, as ranges in each of the three texts."""

    base: Range
    ours: Range
    theirs: Range


class TextMerge(msgspec.Struct, frozen=True):
    """The merged text. `data` has one side's lines at each conflict.

    Binary texts that differ are one conflict.
    """

    data: bytes
    conflicts: list[TextConflict] = []


def merge_text(base: bytes, ours: bytes, theirs: bytes, *, favor: Favor = "ours") -> TextMerge:
    """Apply both sides' changes to `base`.

    Different changes that overlap or touch are conflicts.
    """
    if theirs in (ours, base):
        return TextMerge(ours)
    if ours == base:
        return TextMerge(theirs)
    if any(is_binary(text) for text in (base, ours, theirs)):
        whole = TextConflict((0, 0), (0, 0), (0, 0))
        return TextMerge(theirs if favor == "theirs" else ours, [whole])
    old, left, right = (
        line_diff.split_lines(base),
        line_diff.split_lines(ours),
        line_diff.split_lines(theirs),
    )
    out: list[bytes] = []
    conflicts: list[TextConflict] = []
    done = 0
    for a, b, c in _hunks(line_diff.line_changes(old, left), line_diff.line_changes(old, right)):
        out += old[done : a[0]]
        done = a[1]
        mine, other = left[b[0] : b[1]], right[c[0] : c[1]]
        if mine != other and old[a[0] : a[1]] not in (mine, other):
            conflicts.append(TextConflict(a, b, c))
            out += other if favor == "theirs" else mine
        else:
            out += other if mine == old[a[0] : a[1]] else mine
    out += old[done:]
    return TextMerge(b"".join(out), conflicts)


def is_binary(data: bytes) -> bool:
    """Return True if the data contains a NUL byte."""
    return b"\0" in data


def _hunks(
    ours: list[LineChange], theirs: list[LineChange]
) -> Iterator[tuple[Range, Range, Range]]:
    """Yield groups of changes that overlap or touch, as ranges of base, ours and theirs."""
    i = j = 0
    while i < len(ours) or j < len(theirs):
        first_i, first_j = i, j
        start = min(
            ours[i].a0 if i < len(ours) else 1 << 62, theirs[j].a0 if j < len(theirs) else 1 << 62
        )
        end = start
        while True:
            if i < len(ours) and ours[i].a0 <= end:
                end = max(end, ours[i].a1)
                i += 1
            elif j < len(theirs) and theirs[j].a0 <= end:
                end = max(end, theirs[j].a1)
                j += 1
            else:
                break
        yield (
            (start, end),
            _map(ours, first_i, i, start, end),
            _map(theirs, first_j, j, start, end),
        )


def _map(side: list[LineChange], first: int, after: int, start: int, end: int) -> Range:
    """Return the lines of one side that correspond to base[start:end].

    The changes of that side in this range are side[first:after].
    """
    if first < after:
        head, tail = side[first], side[after - 1]
        return head.b0 - (head.a0 - start), tail.b1 + (end - tail.a1)
    # This side has no change here: shift by its earlier changes.
    shift = side[first - 1].b1 - side[first - 1].a1 if first else 0
    return start + shift, end + shift
