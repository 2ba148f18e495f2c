"""Documents with a term, counted in PostgreSQL with few statements.

The results equal those of `SqlitePostings`.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import NamedTuple

from ortet.memory.lexical.postings import PostingCounter, group_by_range
from ortet.memory.lexical.visibility import VisibleDocuments, VisibleRange
from ortet.memory.postgres.reader import PostgresIndexReader

SCAN_ALL_LIMIT = 2000
"""Up to this number of visible documents, all of them are scanned."""
SAMPLE_SIZE = 500
"""Number of documents in the first sample. Terms that are common in it are common."""
SAMPLE_MARGIN = 1.1
"""Factor for the size of the next sample. Another round trip costs more than a larger one."""
MAX_INDEX_IDS = 20_000
INDEX_IDS_PER_VISIBLE = 2
"""Limit of ids from the term index: a constant, plus this number for each visible document.

Above it, scanning the visible documents is faster.
"""


class _RangePart(NamedTuple):
    """Part of a visible range: low <= id <= high."""

    stretch: VisibleRange
    low: int
    high: int


class PostgresPostings:
    """`TermPostings` in PostgreSQL.

    Common terms are counted in documents, nearest first, up to the limit. Other terms are counted
    with the term index. Both ways give the same result.
    """

    def __init__(
        self, reader: PostgresIndexReader, visible: VisibleDocuments, *, limit: int
    ) -> None:
        self._reader = reader
        self._visible = visible
        self._limit = limit
        self._all_ids: dict[str, list[int]] = {}  # nearest first

    def count(self, terms: Iterable[str]) -> dict[str, float]:
        total = self._visible.total
        tallies = {term: PostingCounter(total, self._limit) for term in terms}
        if tallies and total:
            self._count_by_scan(
                tallies, SCAN_ALL_LIMIT if total <= SCAN_ALL_LIMIT else SAMPLE_SIZE, total
            )
        return {term: tally.count() for term, tally in tallies.items()}

    def ids_with_term(self, term: str) -> list[int]:
        if term not in self._all_ids:
            self._find_all([term])
        return self._all_ids[term]

    def nearest(self, term: str, limit: int) -> list[int]:
        if term in self._all_ids:
            return self._all_ids[term][:limit]
        found: list[int] = []
        for parts in self._range_batches(_doubled(2 * limit), newest=True):
            ids = self._reader.scan_terms([term], _ranges(parts)).get(term, ())
            for _, some in _by_part(ids, parts):
                found += reversed(some)
            if len(found) >= limit:
                break
        return found[:limit]

    def _count_by_scan(self, tallies: dict[str, PostingCounter], size: int, total: int) -> None:
        """Count terms in documents until each has enough. Rare terms are left to the index."""
        open_ = dict(tallies)
        found: dict[str, list[tuple[VisibleRange, Sequence[int]]]] = {term: [] for term in tallies}
        seen = 0
        common = math.sqrt(self._limit / total)

        def many(term: str) -> int:
            return sum(len(some) for _, some in found[term])

        def sizes() -> Iterator[int]:
            yield size
            while True:  # estimated from the documents seen so far
                left = ((self._limit - many(term)) / many(term) for term in open_)
                yield max(seen, int(SAMPLE_MARGIN * seen * max(left)))

        for parts in self._range_batches(sizes(), newest=False):
            having = self._reader.scan_terms(list(open_), _ranges(parts))
            seen += sum(part.high - part.low + 1 for part in parts)
            for term, ids in having.items():
                for stretch, some in _by_part(ids, parts):
                    found[term].append((stretch, some))
                    if not open_[term].is_full:
                        open_[term].add(some, stretch)
            if seen >= total:
                break
            rare = [
                term
                for term, tally in open_.items()
                if not tally.is_full and many(term) < common * seen
            ]
            self._count_by_index(rare, tallies)
            open_ = {t: one for t, one in open_.items() if not one.is_full and t not in rare}
            if not open_:
                return
        for term in open_:
            self._all_ids[term] = _nearest_first(found[term])

    def _count_by_index(self, terms: Sequence[str], tallies: dict[str, PostingCounter]) -> None:
        """Count terms with the term index."""
        if not terms:
            return
        found = self._find_all(terms)
        for term in terms:
            tally = tallies[term] = PostingCounter(self._visible.total, self._limit)
            for stretch, some in found[term]:
                if tally.is_full:
                    break
                tally.add(some, stretch)

    def _find_all(
        self, terms: Sequence[str]
    ) -> dict[str, list[tuple[VisibleRange, Sequence[int]]]]:
        stretches = self._visible.ranges
        found: dict[str, list[tuple[VisibleRange, Sequence[int]]]] = {}
        if stretches:
            low, high = min(one.low for one in stretches), max(one.high for one in stretches)
            most = MAX_INDEX_IDS + INDEX_IDS_PER_VISIBLE * self._visible.total
            for term, ids in self._reader.find_terms(terms, low, high, most).items():
                if len(ids) < most:
                    found[term] = list(group_by_range(self._visible, ids))
        if rest := [term for term in terms if term not in found]:
            whole = [_RangePart(one, one.low, one.high) for one in stretches]
            having = self._reader.scan_terms(rest, _ranges(whole)) if whole else {}
            found |= {term: list(_by_part(having.get(term, ()), whole)) for term in rest}
        for term in terms:
            self._all_ids[term] = _nearest_first(found[term])
        return found

    def _range_batches(self, sizes: Iterator[int], *, newest: bool) -> Iterator[list[_RangePart]]:
        """Yield the visible documents in batches of the given sizes, nearest ranges first.

        `newest` reads each range from its end, otherwise from its start.
        """
        parts: list[_RangePart] = []
        left = next(sizes)
        for stretch in self._visible.ranges:
            low, high = stretch.low, stretch.high
            while low <= high:
                many = min(left, high - low + 1)
                first = high - many + 1 if newest else low
                parts.append(_RangePart(stretch, first, first + many - 1))
                low, high = (low, high - many) if newest else (low + many, high)
                left -= many
                if not left:
                    yield parts
                    parts, left = [], next(sizes)
        if parts:
            yield parts


def _doubled(size: int) -> Iterator[int]:
    return (size << times for times in count())


def _ranges(parts: Iterable[_RangePart]) -> list[tuple[int, int]]:
    return [(part.low, part.high) for part in parts]


def _by_part(
    ids: Sequence[int], parts: Iterable[_RangePart]
) -> Iterator[tuple[VisibleRange, list[int]]]:
    """Yield the ids of each part. `ids` is sorted."""
    for part in parts:
        some = list(ids[bisect_left(ids, part.low) : bisect_right(ids, part.high)])
        if some:
            yield part.stretch, some


def _nearest_first(found: Iterable[tuple[VisibleRange, Sequence[int]]]) -> list[int]:
    """Return ids nearest first. Ranges keep their order; each is read from its end."""
    whole: dict[int, list[int]] = {}
    for stretch, ids in found:
        whole.setdefault(stretch.order, []).extend(ids)
    return [id_ for order in sorted(whole) for id_ in reversed(whole[order])]
