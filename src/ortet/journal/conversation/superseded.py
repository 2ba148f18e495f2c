"""Messages that are set aside: said on a way that was left since. They stay in the journal, and are
no part of the conversation as long as nobody goes back to that way.

An event "aside" says `out`, spans of events whose messages are set aside, and `back`, spans of
those that are of the conversation again. A span is [first, last].
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

SUPERSEDED_KIND = "aside"

SeqRange = tuple[int, int]
"""Numbers of events, the first and the last."""


def is_superseded(spans: Sequence[SeqRange], seq: int) -> bool:
    """Whether an event is within one of these, which are in order and apart."""
    at = bisect_right(spans, (seq + 1, 0)) if spans else 0
    return at > 0 and spans[at - 1][1] >= seq


def merge_ranges(spans: Iterable[SeqRange]) -> list[SeqRange]:
    """In order, those beside each other as one."""
    found: list[SeqRange] = []
    for first, last in sorted(spans):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return found


def apply_superseded(spans: Sequence[SeqRange], data: dict[str, Any] | None) -> Sequence[SeqRange]:
    """What is set aside after an event that says this, or none."""
    if data is None:
        return spans
    left = subtract_ranges(spans, merge_ranges(ranges_of(data, "back")))
    return merge_ranges([*left, *ranges_of(data, "out")])


def subtract_ranges(spans: Sequence[SeqRange], others: Sequence[SeqRange]) -> list[SeqRange]:
    """What is in the first and not in the others; both are in order and apart."""
    found: list[SeqRange] = []
    at = 0
    for first, last in spans:
        while at < len(others) and others[at][1] < first:
            at += 1
        start, next_ = first, at
        while next_ < len(others) and others[next_][0] <= last:
            if others[next_][0] > start:
                found.append((start, others[next_][0] - 1))
            start = others[next_][1] + 1
            next_ += 1
        if start <= last:
            found.append((start, last))
    return found


def ranges_of(data: dict[str, Any], word: str) -> list[SeqRange]:
    """`out` or `back` of an event."""
    return [(int(first), int(last)) for first, last in data.get(word, ())]
