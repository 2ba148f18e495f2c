"""Documents with a term among the visible ones, and their number, in a SQLite file."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

import apsw

from ortet.memory.lexical.visible_documents import VisibleDocuments, VisibleRange

MAX_RANGES_QUERIED = 4
"""Up to this number of ranges, each is queried alone: about 0.1 ms per range and term."""
MAX_RANGE_READ = 500
"""Up to this size, reading a range is faster than a query for each of several terms."""
MAX_IDS_FILTERED = 20_000
"""If the file has at most this many documents with a term, the visible ones are filtered."""


_HAVING = "SELECT rowid FROM terms WHERE terms MATCH ? AND rowid BETWEEN ? AND ? ORDER BY rowid"
_NEWEST = _HAVING + " DESC LIMIT ?"
_REACHED = _HAVING + " LIMIT 1 OFFSET ?"
_WORDS = "SELECT id, words FROM docs WHERE id BETWEEN ? AND ? ORDER BY id"


class TermTable:
    """Reads which documents have a term, in the transaction of a connection."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def id_at_count(self, term: str, low: int, high: int, count: int) -> int:
        """Return the first low <= id <= high at which `count` documents have the term, or 0."""
        row = self._connection.execute(_REACHED, (_quoted(term), low, high, count - 1)).get
        return int(row or 0)

    def ids_with_term(self, term: str, low: int, high: int) -> list[int]:
        """Return the ids of documents with the term, sorted."""
        return _ids(self._connection.execute(_HAVING, (_quoted(term), low, high)).get)

    def newest_ids_with_term(self, term: str, low: int, high: int, limit: int) -> list[int]:
        """Return the newest documents with the term, newest first. Slower per id."""
        return _ids(self._connection.execute(_NEWEST, (_quoted(term), low, high, limit)).get)

    def document_words(self, low: int, high: int) -> list[tuple[int, str]]:
        """Return (id, words) of all documents with low <= id <= high, in order."""
        rows = self._connection.execute(_WORDS, (low, high))
        return [(id_, words) for id_, words in rows]


class SqlitePostings:
    """`TermPostings` of a SQLite file. Counts are exact up to `limit`.

    Three ways give the same result: query each range, filter all documents with the term, or read
    the documents. The content of the file decides only which way is used.
    """

    def __init__(self, table: TermTable, visible: VisibleDocuments, *, limit: int) -> None:
        self._table = table
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
            visible_ranges = self._visible.ranges
            id_lists = [
                self._table.ids_with_term(term, visible_range.low, visible_range.high)
                for visible_range in visible_ranges
            ]
            self._all_ids[term] = [id_ for ids in id_lists for id_ in reversed(ids)]
        return self._all_ids[term]

    def nearest(self, term: str, limit: int) -> list[int]:
        """Return the ids of at most `limit` documents with the term, nearest first."""
        if term in self._all_ids:
            return self._all_ids[term][:limit]
        ids: list[int] = []
        for visible_range in self._visible.ranges:
            left = limit - len(ids)
            ids += self._table.newest_ids_with_term(
                term, visible_range.low, visible_range.high, left
            )
            if len(ids) >= limit:
                break
        return ids

    def _count_by_range(self, tallies: dict[str, PostingCounter]) -> None:
        """Count range by range, until each term has enough documents."""
        many = len(self._visible.ranges) > MAX_RANGES_QUERIED
        open_ = dict(tallies)
        for visible_range in self._visible.ranges:
            if not open_:
                return
            if many and visible_range.high - visible_range.low < MAX_RANGE_READ:
                self._count_by_reading(visible_range, open_)
            else:
                for term, tally in open_.items():
                    tally.count_range(self._table, term, visible_range)
            for term in [term for term, tally in open_.items() if tally.is_full]:
                del open_[term]
        for term, tally in open_.items():
            self._all_ids[term] = tally.ids

    def _count_by_reading(
        self, visible_range: VisibleRange, tallies: dict[str, PostingCounter]
    ) -> None:
        having: dict[str, list[int]] = {term: [] for term in tallies}
        for id_, words in self._table.document_words(visible_range.low, visible_range.high):
            for term in having.keys() & words.split(" "):
                having[term].append(id_)
        for term, ids in having.items():
            tallies[term].add(ids, visible_range)

    def _count_by_filtering(self, term: str, tally: PostingCounter) -> bool:
        """Count a term by filtering. Return False if the file has too many documents with it."""
        visible_ranges = self._visible.ranges
        low = min(visible_range.low for visible_range in visible_ranges)
        high = max(visible_range.high for visible_range in visible_ranges)
        if self._table.id_at_count(term, low, high, MAX_IDS_FILTERED):
            return False
        ids = self._table.ids_with_term(term, low, high)
        whole: list[int] = []
        for visible_range, some in group_by_range(self._visible, ids):
            if not tally.is_full:
                tally.add(some, visible_range)
            whole += reversed(some)
        self._all_ids[term] = whole
        return True


def group_by_range(
    visible: VisibleDocuments, ids: Sequence[int]
) -> list[tuple[VisibleRange, list[int]]]:
    """Return ids by their range. Ids in no range are left out. `ids` is sorted."""
    visible_ranges = visible.ranges
    if len(ids) > len(visible_ranges):
        return [
            (one, list(ids[bisect_left(ids, one.low) : bisect_right(ids, one.high)]))
            for one in visible_ranges
        ]
    parts: dict[int, list[int]] = {}
    for id_ in ids:
        visible_range = visible.range_of(id_)
        if visible_range is not None:
            parts.setdefault(visible_range.order, []).append(id_)
    return [(visible_ranges[order], parts[order]) for order in sorted(parts)]


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

    def count_range(self, table: TermTable, term: str, visible_range: VisibleRange) -> None:
        left = self._limit - self._count
        # otherwise the limit cannot be reached
        enough = visible_range.high - visible_range.low + 1 >= left
        last = table.id_at_count(term, visible_range.low, visible_range.high, left) if enough else 0
        if last:
            self._count, self._limit_position = self._limit, (visible_range, last)
        else:
            self.add(
                table.ids_with_term(term, visible_range.low, visible_range.high), visible_range
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
        visible_range, last = self._limit_position
        return self._count * self._total / (visible_range.nearer + last - visible_range.low + 1)


def _ids(got: list[int] | int | None) -> list[int]:
    """Return a list: apsw returns a single row as a plain value."""
    return got if isinstance(got, list) else [] if got is None else [got]


def _quoted(term: str) -> str:
    """Quote a term as an FTS5 string, so that nothing in it is syntax."""
    return '"' + term.replace('"', '""') + '"'
