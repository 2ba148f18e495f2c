"""Which of the documents that can be seen have a term, and how many they are."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from ortet.memory.lexical.reader import SqliteIndexReader
from ortet.memory.lexical.visibility import VisibleDocuments, VisibleRange

MAX_RANGES_QUERIED = 4
"""So many stretches are asked one by one, which takes about 0.1 ms for each and each term."""
MAX_RANGE_READ = 500
"""A stretch of so many documents is sooner read than asked for each of several terms."""
MAX_IDS_FILTERED = 20_000
"""When no more documents of the file have a term, those that can be seen are picked out of them."""


class SqlitePostings:
    """Counts exactly as far as `limit`. There are three ways to find the same: ask the index for
    each stretch, pick from all it has, read the documents; what else is in the file decides only
    which of them is taken."""

    def __init__(self, reader: SqliteIndexReader, visible: VisibleDocuments, *, limit: int) -> None:
        self._reader = reader
        self._visible = visible
        self._limit = limit
        self._all_ids: dict[str, list[int]] = {}  # the nearest first

    def count(self, terms: Iterable[str]) -> dict[str, float]:
        """How many documents have each term: counted, or, from the limit on, inferred from how
        many had to be looked at, the nearest stretches first."""
        tallies = {term: PostingCounter(self._visible.total, self._limit) for term in terms}
        if len(self._visible.ranges) <= MAX_RANGES_QUERIED:
            self._count_by_range(tallies)
        else:
            self._count_by_range(
                {
                    term: one
                    for term, one in tallies.items()
                    if not self._count_by_filtering(term, one)
                }
            )
        return {term: tally.count() for term, tally in tallies.items()}

    def ids_with_term(self, term: str) -> list[int]:
        """Ids of all that have it, the nearest first."""
        if term not in self._all_ids:
            stretches = self._visible.ranges
            found = [self._reader.ids_with_term(term, one.low, one.high) for one in stretches]
            self._all_ids[term] = [id_ for ids in found for id_ in reversed(ids)]
        return self._all_ids[term]

    def nearest(self, term: str, limit: int) -> list[int]:
        """The same, and no more than so many."""
        if term in self._all_ids:
            return self._all_ids[term][:limit]
        found: list[int] = []
        for stretch in self._visible.ranges:
            left = limit - len(found)
            found += self._reader.newest_ids_with_term(term, stretch.low, stretch.high, left)
            if len(found) >= limit:
                break
        return found

    def _count_by_range(self, tallies: dict[str, PostingCounter]) -> None:
        """Stretch by stretch, until there are enough of each."""
        many = len(self._visible.ranges) > MAX_RANGES_QUERIED
        open_ = dict(tallies)
        for stretch in self._visible.ranges:
            if not open_:
                return
            if many and stretch.high - stretch.low < MAX_RANGE_READ:
                self._count_by_reading(stretch, open_)
            else:
                for term, tally in open_.items():
                    tally.count_range(self._reader, term, stretch)
            for term in [term for term, tally in open_.items() if tally.is_full]:
                del open_[term]
        for term, tally in open_.items():
            self._all_ids[term] = tally.ids

    def _count_by_reading(
        self, visible_range: VisibleRange, tallies: dict[str, PostingCounter]
    ) -> None:
        having: dict[str, list[int]] = {term: [] for term in tallies}
        for id_, words in self._reader.document_words(visible_range.low, visible_range.high):
            for term in having.keys() & words.split(" "):
                having[term].append(id_)
        for term, ids in having.items():
            tallies[term].add(ids, visible_range)

    def _count_by_filtering(self, term: str, tally: PostingCounter) -> bool:
        """Whether the file has few enough of them to look at all."""
        stretches = self._visible.ranges
        low = min(stretch.low for stretch in stretches)
        high = max(stretch.high for stretch in stretches)
        if self._reader.id_at_count(term, low, high, MAX_IDS_FILTERED):
            return False
        ids = self._reader.ids_with_term(term, low, high)
        whole: list[int] = []
        for stretch, some in group_by_range(self._visible, ids):
            if not tally.is_full:
                tally.add(some, stretch)
            whole += reversed(some)
        self._all_ids[term] = whole
        return True


def group_by_range(
    visible: VisibleDocuments, ids: Sequence[int]
) -> list[tuple[VisibleRange, list[int]]]:
    """Ids by their stretches, as far as they are in any; ids and stretches in order."""
    stretches = visible.ranges
    if len(ids) > len(stretches):
        return [
            (one, list(ids[bisect_left(ids, one.low) : bisect_right(ids, one.high)]))
            for one in stretches
        ]
    parts: dict[int, list[int]] = {}
    for id_ in ids:
        found = visible.range_of(id_)
        if found is not None:
            parts.setdefault(found.order, []).append(id_)
    return [(stretches[order], parts[order]) for order in sorted(parts)]


class PostingCounter:
    """Counts documents that have one term, stretch by stretch."""

    def __init__(self, total: int, limit: int) -> None:
        self._total = total
        self._limit = limit
        self._count = 0
        self._limit_position: tuple[VisibleRange, int] | None = None
        self.ids: list[int] = []
        """The nearest first; all of them, unless it is full."""

    @property
    def is_full(self) -> bool:
        return self._count >= self._limit

    def count_range(
        self, reader: SqliteIndexReader, term: str, visible_range: VisibleRange
    ) -> None:
        left = self._limit - self._count
        enough = visible_range.high - visible_range.low + 1 >= left  # else they cannot be so many
        last = (
            reader.id_at_count(term, visible_range.low, visible_range.high, left) if enough else 0
        )
        if last:
            self._count, self._limit_position = self._limit, (visible_range, last)
        else:
            self.add(
                reader.ids_with_term(term, visible_range.low, visible_range.high), visible_range
            )

    def add(self, ids: Sequence[int], visible_range: VisibleRange) -> None:
        left = self._limit - self._count
        self._count += len(ids)
        self.ids += reversed(ids)
        if self.is_full:
            self._count, self._limit_position = self._limit, (visible_range, ids[left - 1])

    def count(self) -> float:
        if self._limit_position is None:
            return float(self._count)
        stretch, last = self._limit_position
        return self._count * self._total / (stretch.nearer + last - stretch.low + 1)
