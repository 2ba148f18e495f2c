"""Which of the documents that can be seen have a term, and how many they are."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from ortet.memory.lexical.reader import Lookup
from ortet.memory.lexical.visibility import Stretch, Visible

FEW = 4
"""So many stretches are asked one by one, which takes about 0.1 ms for each and each term."""
SMALL = 500
"""A stretch of so many documents is sooner read than asked for each of several terms."""
AROUND = 20_000
"""When no more documents of the file have a term, those that can be seen are picked out of them."""


class Postings:
    """Counts exactly as far as `limit`. There are three ways to find the same: ask the index for
    each stretch, pick from all it has, read the documents; what else is in the file decides only
    which of them is taken."""

    def __init__(self, lookup: Lookup, visible: Visible, *, limit: int) -> None:
        self._lookup = lookup
        self._visible = visible
        self._limit = limit
        self._whole: dict[str, list[int]] = {}  # the nearest first

    def count(self, terms: Iterable[str]) -> dict[str, float]:
        """How many documents have each term: counted, or, from the limit on, inferred from how
        many had to be looked at, the nearest stretches first."""
        tallies = {term: Tally(self._visible.total, self._limit) for term in terms}
        if len(self._visible.stretches) <= FEW:
            self._ask(tallies)
        else:
            self._ask({term: one for term, one in tallies.items() if not self._pick(term, one)})
        return {term: tally.count() for term, tally in tallies.items()}

    def having(self, term: str) -> list[int]:
        """Ids of all that have it, the nearest first."""
        if term not in self._whole:
            stretches = self._visible.stretches
            found = [self._lookup.having(term, one.low, one.high) for one in stretches]
            self._whole[term] = [id_ for ids in found for id_ in reversed(ids)]
        return self._whole[term]

    def nearest(self, term: str, most: int) -> list[int]:
        """The same, and no more than so many."""
        if term in self._whole:
            return self._whole[term][:most]
        found: list[int] = []
        for stretch in self._visible.stretches:
            left = most - len(found)
            found += self._lookup.newest(term, stretch.low, stretch.high, left)
            if len(found) >= most:
                break
        return found

    def _ask(self, tallies: dict[str, Tally]) -> None:
        """Stretch by stretch, until there are enough of each."""
        many = len(self._visible.stretches) > FEW
        open_ = dict(tallies)
        for stretch in self._visible.stretches:
            if not open_:
                return
            if many and stretch.high - stretch.low < SMALL:
                self._read(stretch, open_)
            else:
                for term, tally in open_.items():
                    tally.ask(self._lookup, term, stretch)
            for term in [term for term, tally in open_.items() if tally.is_full]:
                del open_[term]
        for term, tally in open_.items():
            self._whole[term] = tally.ids

    def _read(self, stretch: Stretch, tallies: dict[str, Tally]) -> None:
        having: dict[str, list[int]] = {term: [] for term in tallies}
        for id_, words in self._lookup.words(stretch.low, stretch.high):
            for term in having.keys() & words.split(" "):
                having[term].append(id_)
        for term, ids in having.items():
            tallies[term].take(ids, stretch)

    def _pick(self, term: str, tally: Tally) -> bool:
        """Whether the file has few enough of them to look at all."""
        stretches = self._visible.stretches
        low = min(stretch.low for stretch in stretches)
        high = max(stretch.high for stretch in stretches)
        if self._lookup.reached(term, low, high, AROUND):
            return False
        ids = self._lookup.having(term, low, high)
        whole: list[int] = []
        for stretch, some in sorted_out(self._visible, ids):
            if not tally.is_full:
                tally.take(some, stretch)
            whole += reversed(some)
        self._whole[term] = whole
        return True


def sorted_out(visible: Visible, ids: Sequence[int]) -> list[tuple[Stretch, list[int]]]:
    """Ids by their stretches, as far as they are in any; ids and stretches in order."""
    stretches = visible.stretches
    if len(ids) > len(stretches):
        return [
            (one, list(ids[bisect_left(ids, one.low) : bisect_right(ids, one.high)]))
            for one in stretches
        ]
    parts: dict[int, list[int]] = {}
    for id_ in ids:
        found = visible.stretch(id_)
        if found is not None:
            parts.setdefault(found.order, []).append(id_)
    return [(stretches[order], parts[order]) for order in sorted(parts)]


class Tally:
    """Counts documents that have one term, stretch by stretch."""

    def __init__(self, total: int, limit: int) -> None:
        self._total = total
        self._limit = limit
        self._count = 0
        self._reached: tuple[Stretch, int] | None = None
        self.ids: list[int] = []
        """The nearest first; all of them, unless it is full."""

    @property
    def is_full(self) -> bool:
        return self._count >= self._limit

    def ask(self, lookup: Lookup, term: str, stretch: Stretch) -> None:
        left = self._limit - self._count
        enough = stretch.high - stretch.low + 1 >= left  # else they cannot be so many
        last = lookup.reached(term, stretch.low, stretch.high, left) if enough else 0
        if last:
            self._count, self._reached = self._limit, (stretch, last)
        else:
            self.take(lookup.having(term, stretch.low, stretch.high), stretch)

    def take(self, ids: Sequence[int], stretch: Stretch) -> None:
        left = self._limit - self._count
        self._count += len(ids)
        self.ids += reversed(ids)
        if self.is_full:
            self._count, self._reached = self._limit, (stretch, ids[left - 1])

    def count(self) -> float:
        if self._reached is None:
            return float(self._count)
        stretch, last = self._reached
        return self._count * self._total / (stretch.nearer + last - stretch.low + 1)
