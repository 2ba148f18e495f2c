"""Superseded messages: recorded on a path that the conversation has left.

They stay in the journal. They are not part of the conversation, unless it returns to that path.

An "aside" event has `out`, ranges of events whose messages become superseded, and `back`, ranges
whose messages become part of the conversation again. A range is [first, last]. This is a module of
its own because reducers, context and audit all use these ranges.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

SUPERSEDED_KIND = "aside"

SeqRange = tuple[int, int]
"""First and last event number of a range."""


def is_superseded(spans: Sequence[SeqRange], seq: int) -> bool:
    """Return True if an event is in one of the ranges, which are sorted and disjoint."""
    at = bisect_right(spans, (seq + 1, 0)) if spans else 0
    return at > 0 and spans[at - 1][1] >= seq


def merge_ranges(spans: Iterable[SeqRange]) -> list[SeqRange]:
    """Return sorted disjoint ranges. Adjacent ranges are joined."""
    merged: list[SeqRange] = []
    for first, last in sorted(spans):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(merged[-1][1], last)
        else:
            merged.append((first, last))
    return merged


def apply_superseded(spans: Sequence[SeqRange], data: dict[str, Any] | None) -> Sequence[SeqRange]:
    """Return the superseded ranges after an "aside" event with this data."""
    if data is None:
        return spans
    left = subtract_ranges(spans, merge_ranges(ranges_of(data, "back")))
    return merge_ranges([*left, *ranges_of(data, "out")])


def subtract_ranges(spans: Sequence[SeqRange], others: Sequence[SeqRange]) -> list[SeqRange]:
    """Return the parts of `spans` that are not in `others`. Both are sorted and disjoint."""
    rest: list[SeqRange] = []
    at = 0
    for first, last in spans:
        while at < len(others) and others[at][1] < first:
            at += 1
        start, next_ = first, at
        while next_ < len(others) and others[next_][0] <= last:
            if others[next_][0] > start:
                rest.append((start, others[next_][0] - 1))
            start = others[next_][1] + 1
            next_ += 1
        if start <= last:
            rest.append((start, last))
    return rest


def ranges_of(data: dict[str, Any], word: str) -> list[SeqRange]:
    """Return the ranges of an event under the key `word`, "out" or "back"."""
    return [(int(first), int(last)) for first, last in data.get(word, ())]
