"""Messages that are set aside: said on a way that was left since. They stay in the journal, and are
no part of the conversation as long as nobody goes back to that way.

An event "aside" says `out`, spans of events whose messages are set aside, and `back`, spans of
those that are of the conversation again. A span is [first, last].
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

ASIDE = "aside"

Span = tuple[int, int]
"""Numbers of events, the first and the last."""


def is_aside(spans: Sequence[Span], seq: int) -> bool:
    """Whether an event is within one of these, which are in order and apart."""
    at = bisect_right(spans, (seq + 1, 0)) if spans else 0
    return at > 0 and spans[at - 1][1] >= seq


def joined(spans: Iterable[Span]) -> list[Span]:
    """In order, those beside each other as one."""
    found: list[Span] = []
    for first, last in sorted(spans):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return found


def changed(spans: Sequence[Span], data: dict[str, Any] | None) -> Sequence[Span]:
    """What is set aside after an event that says this, or none."""
    if data is None:
        return spans
    left = without(spans, joined(spans_of(data, "back")))
    return joined([*left, *spans_of(data, "out")])


def without(spans: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """What is in the first and not in the others; both are in order and apart."""
    found: list[Span] = []
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


def spans_of(data: dict[str, Any], word: str) -> list[Span]:
    """`out` or `back` of an event."""
    return [(int(first), int(last)) for first, last in data.get(word, ())]
