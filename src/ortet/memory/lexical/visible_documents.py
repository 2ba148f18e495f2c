"""The documents that a query may see, as ranges of ids in the order of the paths."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from ortet.memory.records import (
    EVERYONE,
    TIERS,
    EventSpan,
    FactEndRow,
    Tier,
    tier_of,
)


class VisibleRange(NamedTuple):
    """Visible documents low <= id <= high of one tier of one span.

    `before` and `behind` are the neighbours of its ends along the path, in any range; 0 means none.
    `order` is its position among the ranges. `nearer` is the number of documents in the ranges
    before it.
    """

    span: EventSpan
    scope: str
    low: int
    high: int
    before: int
    behind: int
    order: int = 0
    nearer: int = 0
    believer: int = 0


class VisibleDocuments:
    """The visible ranges, nearest first: the first path first, each path from its end.

    The order depends on the paths and not on the file. An index that was filled in another order
    gives the same results.
    """

    def __init__(self, ranges: list[VisibleRange], tokens: dict[Tier, int], as_of: int) -> None:
        self.ranges = ranges
        self._as_of = as_of
        self._sorted = sorted(ranges, key=lambda visible_range: visible_range.low)
        self._lows = [visible_range.low for visible_range in self._sorted]
        counts = dict.fromkeys(TIERS, 0)
        for visible_range in ranges:
            counts[tier_of(visible_range.low)] += visible_range.high - visible_range.low + 1
        self.total = sum(counts.values())
        self._averages = {tier: tokens[tier] / counts[tier] for tier in TIERS if counts[tier]}
        self._spans: dict[tuple[int, int], list[EventSpan]] = {}

    def range_of(self, id_: int) -> VisibleRange | None:
        """Return the range of a document, or None if it is not visible."""
        index = bisect_right(self._lows, id_) - 1
        if index < 0 or id_ > self._sorted[index].high:
            return None
        return self._sorted[index]

    def average_length(self, id_: int) -> float:
        """Return the average length of documents of the same tier."""
        return self._averages[tier_of(id_)]

    def neighbours(self, ids: Iterable[int]) -> dict[int, tuple[int, int]]:
        """Return the ids of the messages before and after each one; 0 if there is none."""
        neighbours: dict[int, tuple[int, int]] = {}
        low, high, before, behind = 1, 0, 0, 0  # values of the range of the last id
        for id_ in ids:
            if not low <= id_ <= high:
                visible_range = self.range_of(id_)
                if visible_range is None or tier_of(id_) != "working":
                    neighbours[id_] = 0, 0
                    continue
                _, _, low, high, before, behind, *_ = visible_range
            neighbours[id_] = (
                id_ - 1 if id_ > low else before,
                id_ + 1 if id_ < high else behind,
            )
        return neighbours

    def is_ended_by(self, end: FactEndRow, id_: int) -> bool:
        """Return True if the retraction `end` applies to a document.

        It applies if it is on a path of the same believer, or of EVERYONE.
        """
        visible_range = self.range_of(id_)
        who = visible_range.believer if visible_range is not None else EVERYONE
        return (not self._as_of or end.time <= self._as_of) and any(
            span.after < end.seq <= span.upto
            for believer in {who, EVERYONE}
            for span in self._spans.get((believer, end.timeline), ())
        )

    def add_heard_span(self, believer: int, timeline: int, span: EventSpan) -> None:
        """Add a span in which retractions apply to the documents of a believer."""
        self._spans.setdefault((believer, timeline), []).append(span)
