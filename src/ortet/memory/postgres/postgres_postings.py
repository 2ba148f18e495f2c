"""Which documents have a term, asked of PostgreSQL: the same as of a file, in a few statements."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import NamedTuple

from ortet.memory.lexical.postings import Tally, sorted_out
from ortet.memory.lexical.visibility import Stretch, Visible
from ortet.memory.postgres.reader import PostgresLookup

SMALL = 2000
"""Where no more documents can be seen, each of them is looked at."""
SAMPLE = 500
"""Else so many at first: what is common among them is common."""
SPARE = 1.1
"""So much more is looked at than should do: to look again costs a journey."""
MOST = 20_000
AROUND = 2
"""So many that have a term, and so many more for each document that can be seen: above that it is
sooner told by looking at what can be seen."""


class _Part(NamedTuple):
    """Some of a stretch: low <= id <= high."""

    stretch: Stretch
    low: int
    high: int


class PostgresPostings:
    """`abc.Having`. A term that is common is counted in documents, the nearest first, until there
    are enough; the index of terms tells of the others. Which way is taken changes nothing."""

    def __init__(self, lookup: PostgresLookup, visible: Visible, *, limit: int) -> None:
        self._lookup = lookup
        self._visible = visible
        self._limit = limit
        self._whole: dict[str, list[int]] = {}  # the nearest first

    def count(self, terms: Iterable[str]) -> dict[str, float]:
        total = self._visible.total
        tallies = {term: Tally(total, self._limit) for term in terms}
        if tallies and total:
            self._look(tallies, SMALL if total <= SMALL else SAMPLE, total)
        return {term: tally.count() for term, tally in tallies.items()}

    def having(self, term: str) -> list[int]:
        if term not in self._whole:
            self._find([term])
        return self._whole[term]

    def nearest(self, term: str, most: int) -> list[int]:
        if term in self._whole:
            return self._whole[term][:most]
        found: list[int] = []
        for parts in self._pieces(_doubled(2 * most), newest=True):
            ids = self._lookup.scan([term], _ranges(parts)).get(term, ())
            for _, some in _by_part(ids, parts):
                found += reversed(some)
            if len(found) >= most:
                break
        return found[:most]

    def _look(self, tallies: dict[str, Tally], size: int, total: int) -> None:
        """Document by document, until there are enough of each term; those that turn out to be
        rare are left to the index of terms."""
        open_ = dict(tallies)
        found: dict[str, list[tuple[Stretch, Sequence[int]]]] = {term: [] for term in tallies}
        seen = 0
        common = math.sqrt(self._limit / total)

        def many(term: str) -> int:
            return sum(len(some) for _, some in found[term])

        def sizes() -> Iterator[int]:
            yield size
            while True:  # as many as should do, judging by those that were seen
                left = ((self._limit - many(term)) / many(term) for term in open_)
                yield max(seen, int(SPARE * seen * max(left)))

        for parts in self._pieces(sizes(), newest=False):
            having = self._lookup.scan(list(open_), _ranges(parts))
            seen += sum(part.high - part.low + 1 for part in parts)
            for term, ids in having.items():
                for stretch, some in _by_part(ids, parts):
                    found[term].append((stretch, some))
                    if not open_[term].is_full:
                        open_[term].take(some, stretch)
            if seen >= total:
                break
            rare = [
                term
                for term, tally in open_.items()
                if not tally.is_full and many(term) < common * seen
            ]
            self._count(rare, tallies)
            open_ = {t: one for t, one in open_.items() if not one.is_full and t not in rare}
            if not open_:
                return
        for term in open_:
            self._whole[term] = _nearest_first(found[term])

    def _count(self, terms: Sequence[str], tallies: dict[str, Tally]) -> None:
        """By all that have them."""
        if not terms:
            return
        found = self._find(terms)
        for term in terms:
            tally = tallies[term] = Tally(self._visible.total, self._limit)
            for stretch, some in found[term]:
                if tally.is_full:
                    break
                tally.take(some, stretch)

    def _find(self, terms: Sequence[str]) -> dict[str, list[tuple[Stretch, Sequence[int]]]]:
        stretches = self._visible.stretches
        found: dict[str, list[tuple[Stretch, Sequence[int]]]] = {}
        if stretches:
            low, high = min(one.low for one in stretches), max(one.high for one in stretches)
            most = MOST + AROUND * self._visible.total
            for term, ids in self._lookup.find(terms, low, high, most).items():
                if len(ids) < most:
                    found[term] = list(sorted_out(self._visible, ids))
        if rest := [term for term in terms if term not in found]:
            whole = [_Part(one, one.low, one.high) for one in stretches]
            having = self._lookup.scan(rest, _ranges(whole)) if whole else {}
            found |= {term: list(_by_part(having.get(term, ()), whole)) for term in rest}
        for term in terms:
            self._whole[term] = _nearest_first(found[term])
        return found

    def _pieces(self, sizes: Iterator[int], *, newest: bool) -> Iterator[list[_Part]]:
        """All that can be seen, the nearest stretches first, each from its end or its beginning:
        so many documents at a time."""
        parts: list[_Part] = []
        left = next(sizes)
        for stretch in self._visible.stretches:
            low, high = stretch.low, stretch.high
            while low <= high:
                many = min(left, high - low + 1)
                first = high - many + 1 if newest else low
                parts.append(_Part(stretch, first, first + many - 1))
                low, high = (low, high - many) if newest else (low + many, high)
                left -= many
                if not left:
                    yield parts
                    parts, left = [], next(sizes)
        if parts:
            yield parts


def _doubled(size: int) -> Iterator[int]:
    return (size << times for times in count())


def _ranges(parts: Iterable[_Part]) -> list[tuple[int, int]]:
    return [(part.low, part.high) for part in parts]


def _by_part(ids: Sequence[int], parts: Iterable[_Part]) -> Iterator[tuple[Stretch, list[int]]]:
    """Ids by the parts they are in; ids in order, parts as they come."""
    for part in parts:
        some = list(ids[bisect_left(ids, part.low) : bisect_right(ids, part.high)])
        if some:
            yield part.stretch, some


def _nearest_first(found: Iterable[tuple[Stretch, Sequence[int]]]) -> list[int]:
    """Stretches as they come; of one that comes in parts, the last part is the newest."""
    whole: dict[int, list[int]] = {}
    for stretch, ids in found:
        whole.setdefault(stretch.order, []).extend(ids)
    return [id_ for order in sorted(whole) for id_ in reversed(whole[order])]
