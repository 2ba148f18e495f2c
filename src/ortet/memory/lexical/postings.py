"""Documents with a term among the visible ones, and their number."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

import msgspec

from ortet.memory.base import TermPostings
from ortet.memory.lexical.reader import SqliteIndexReader
from ortet.memory.lexical.scoring import Weights, inverse_document_frequency
from ortet.memory.lexical.visibility import VisibleDocuments, VisibleRange

# Select the documents to score: those with the rarest query terms, and their neighbours.

MAX_TERMS = 64
"""Largest number of terms of a long query, the rarest ones."""


class SearchEffort(msgspec.Struct, frozen=True):
    """Limits of one search: `postings` read and `documents` scored.

    Document counts of terms are exact up to `counted`.
    """

    postings: int = 8000
    documents: int = 128
    counted: int = 3000

    def for_results(self, k: int) -> SearchEffort:
        """Return limits that are large enough for `k` results."""
        return msgspec.structs.replace(self, documents=max(self.documents, 2 * k))


class QueryTerms(msgspec.Struct, frozen=True):
    """Query terms that occur in visible documents, in query order, with their weight.

    Documents are searched by `chosen`, rarest first. `pruned` terms are too common for that. They
    count only in documents that other terms found.
    """

    rarities: dict[str, float]
    chosen: tuple[str, ...]
    pruned: tuple[str, ...]


def choose_terms(
    postings: TermPostings, total: int, words: Sequence[str], effort: SearchEffort
) -> QueryTerms:
    """Choose the rarest terms within the limits, at least one."""
    having = postings.count(words)
    rarest = sorted((count, word) for word, count in having.items() if count)[:MAX_TERMS]
    chosen: list[str] = []
    left = float(effort.postings)
    for count, word in rarest:
        if chosen and count > left:
            break
        chosen.append(word)
        left -= count
    kept = {word for _, word in rarest}
    return QueryTerms(
        {
            word: inverse_document_frequency(word, total, having[word])
            for word in words
            if word in kept
        },
        tuple(chosen),
        tuple(word for word in words if word in kept and word not in chosen),
    )


def find_candidates(
    postings: TermPostings,
    visible: VisibleDocuments,
    terms: QueryTerms,
    weights: Weights,
    effort: SearchEffort,
) -> Iterator[list[int]]:
    """Yield lists of candidate ids, best first, at most `effort.documents` each.

    The order uses the weights of the chosen terms in a document and its neighbours. Term frequency
    and length are not used here.
    """
    told = _term_scores(postings, terms, effort.postings)
    given: set[int] = set()
    for seeds in _seed_batches(told, effort.documents):
        window = _window(visible, told, seeds, weights)
        best = top_ids(window, effort.documents)
        yield [id_ for id_ in best if id_ not in given]
        given.update(best)


def _seed_batches(scores: Mapping[int, float], batch_size: int) -> Iterator[list[int]]:
    """Yield batches of ids by score, then nearest first; both sorts are stable.

    Sorting all ids is expensive and rarely needed, so that the first batch avoids it.
    """
    yield top_ids(scores, batch_size)
    if len(scores) > batch_size:
        rest = sorted(scores, key=scores.__getitem__, reverse=True)
        yield from (
            rest[start : start + batch_size] for start in range(batch_size, len(rest), batch_size)
        )


def top_ids(scores: Mapping[int, float], limit: int) -> list[int]:
    """Return the ids with the largest scores, largest first; of equal ones the first.

    Few scores are distinct. Counting them is cheaper than comparing ids one by one.
    """
    if len(scores) <= limit:
        return sorted(scores, key=scores.__getitem__, reverse=True)
    counts = Counter(scores.values())
    left = limit
    least = max(counts)
    for value in sorted(counts, reverse=True):
        least = value
        if counts[value] >= left:
            break
        left -= counts[value]
    above = [id_ for id_, value in scores.items() if value > least]
    equal = (id_ for id_, value in scores.items() if value == least)
    return sorted(above, key=scores.__getitem__, reverse=True) + list(islice(equal, left))


def _term_scores(postings: TermPostings, terms: QueryTerms, limit: int) -> dict[int, float]:
    told: dict[int, float] = {}
    for number, term in enumerate(terms.chosen):
        tells = terms.rarities[term]
        # Only the first term can exceed the limit.
        ids = postings.ids_with_term(term) if number else postings.nearest(term, limit)
        new = dict.fromkeys(ids, tells)
        for id_ in told.keys() & new.keys():
            new[id_] = told[id_] + tells
        told.update(new)
    return told


def _window(
    visible: VisibleDocuments, scores: Mapping[int, float], seeds: Sequence[int], weights: Weights
) -> dict[int, float]:
    """Return scores that include neighbours, for the seeds and their neighbours."""
    around = visible.neighbours(seeds)
    others = {id_: None for pair in around.values() for id_ in pair if id_ and id_ not in around}
    around |= visible.neighbours(id_ for id_ in others if visible.range_of(id_) is not None)
    get = scores.get
    return {
        id_: get(id_, 0.0) + weights.before * get(before, 0.0) + weights.behind * get(behind, 0.0)
        for id_, (before, behind) in around.items()
    }


MAX_RANGES_QUERIED = 4
"""Up to this number of ranges, each is queried alone: about 0.1 ms per range and term."""
MAX_RANGE_READ = 500
"""Up to this size, reading a range is faster than a query for each of several terms."""
MAX_IDS_FILTERED = 20_000
"""If the file has at most this many documents with a term, the visible ones are filtered."""


class SqlitePostings:
    """`TermPostings` of a SQLite file. Counts are exact up to `limit`.

    Three ways give the same result: query each range, filter all documents with the term, or read
    the documents. The content of the file decides only which way is used.
    """

    def __init__(self, reader: SqliteIndexReader, visible: VisibleDocuments, *, limit: int) -> None:
        self._reader = reader
        self._visible = visible
        self._limit = limit
        self._all_ids: dict[str, list[int]] = {}  # nearest first

    def count(self, terms: Iterable[str]) -> dict[str, float]:
        """Return the number of documents with each term.

        The number is exact up to the limit. Above it the number is estimated from the nearest
        ranges.
        """
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
        """Return the ids of all documents with the term, nearest first."""
        if term not in self._all_ids:
            stretches = self._visible.ranges
            found = [self._reader.ids_with_term(term, one.low, one.high) for one in stretches]
            self._all_ids[term] = [id_ for ids in found for id_ in reversed(ids)]
        return self._all_ids[term]

    def nearest(self, term: str, limit: int) -> list[int]:
        """Return the ids of at most `limit` documents with the term, nearest first."""
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
        """Count range by range, until each term has enough documents."""
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
        """Count a term by filtering. Return False if the file has too many documents with it."""
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
    """Return ids by their range. Ids in no range are left out. `ids` is sorted."""
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
    """Counts the documents with one term, range by range."""

    def __init__(self, total: int, limit: int) -> None:
        self._total = total
        self._limit = limit
        self._count = 0
        self._limit_position: tuple[VisibleRange, int] | None = None
        self.ids: list[int] = []
        """nearest first; complete, unless the counter is full"""

    @property
    def is_full(self) -> bool:
        return self._count >= self._limit

    def count_range(
        self, reader: SqliteIndexReader, term: str, visible_range: VisibleRange
    ) -> None:
        left = self._limit - self._count
        # otherwise the limit cannot be reached
        enough = visible_range.high - visible_range.low + 1 >= left
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
        """Return the exact count, or an estimate if the limit was reached."""
        if self._limit_position is None:
            return float(self._count)
        stretch, last = self._limit_position
        return self._count * self._total / (stretch.nearer + last - stretch.low + 1)
