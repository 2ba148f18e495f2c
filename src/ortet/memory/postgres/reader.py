"""Reads the word index in PostgreSQL at one moment.

A search uses few statements, however many timelines are visible.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Sized
from itertools import count
from sys import byteorder
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import psycopg

from ortet.memory.lexical.postings import PostingCounter, group_by_range
from ortet.memory.lexical.visible_documents import VisibleDocuments, VisibleRange
from ortet.memory.records import (
    IDS_PER_LINE,
    LINES_PER_TIMELINE,
    SEQ_BITS,
    TIERS,
    DocumentRow,
    FactEndRow,
    IndexPosition,
    Tier,
)

if TYPE_CHECKING:
    from ortet.memory.base import TermPostings


_TIMELINES = (
    "SELECT name, no, known, counts, totals FROM memory_lines WHERE name = ANY (%s::text[])"
)
_PLACES = """SELECT tier, "end", docs.id, total
    FROM unnest(%s::int[]) AS tier, unnest(%s::bigint[]) AS "end", LATERAL (
        SELECT id, total FROM memory_docs
        WHERE line = ("end" >> 32) * 4 + tier AND seq <= ("end" & 4294967295)
        ORDER BY seq DESC LIMIT 1) AS docs"""
_EXACTLY = """SELECT line / 4, seq, id FROM unnest(%s::bigint[], %s::bigint[]) AS w (line, seq)
    JOIN memory_docs USING (line, seq)"""
_SEQS = "SELECT id, seq FROM memory_docs WHERE id = ANY (%s::bigint[])"
_TOTALS = "SELECT id, total FROM memory_docs WHERE id = ANY (%s::bigint[])"
_UNTIL = """SELECT found, coalesce(total, 0)
    FROM unnest(%s::bigint[], %s::bigint[]) WITH ORDINALITY AS w (low, high, n),
        LATERAL memory_until(low, high, %s::bigint) AS found
    LEFT JOIN memory_docs ON id = found ORDER BY n"""
_ENTRIES = """SELECT id, seq, time, importance, since, until, key, scope, length, words, times
    FROM unnest(%s::bigint[]) WITH ORDINALITY AS w (id, n) JOIN memory_docs USING (id) ORDER BY n"""
_BARE = _ENTRIES.replace("words, times", "'', NULL")
_CONTENTS = "SELECT id, length, words, times FROM memory_docs WHERE id = ANY (%s::bigint[])"
_ENDS = "SELECT key, no, seq, time FROM memory_ends WHERE key = ANY (%s::bytea[])"
_HASHES = """SELECT seq, hash FROM memory_docs
    WHERE line = ANY (%s::bigint[]) AND seq > %s::bigint AND seq <= %s::bigint ORDER BY seq"""
# All terms in one scan: a third of the cost of a join.
_SCAN = """SELECT count(*) FILTER (WHERE part = 0){columns}
    FROM unnest(%s::bigint[], %s::bigint[]) AS w (low, high)
    JOIN memory_terms ON id BETWEEN low AND high"""
_COLUMN = ", string_agg(int8send(id), ''::bytea) FILTER (WHERE words @@ %s::tsquery)"
_COLUMNS = 64
# `id + 0` makes the planner use the term index and not a range scan of ids.
_FIND = """SELECT n, (SELECT string_agg(int8send(id), ''::bytea) FROM (
        SELECT id FROM memory_terms
        WHERE words @@ word::tsquery AND id + 0 BETWEEN %s::bigint AND %s::bigint
        LIMIT %s::bigint) AS found)
    FROM unnest(%s::text[]) WITH ORDINALITY AS w (word, n)"""


class IndexDamaged(Exception):
    """The tables lack rows that must exist. Another process deleted them."""


class _TimelineEnd(NamedTuple):
    """End of a timeline: its last event, and documents and tokens of each tier."""

    known: int
    counts: list[int]
    totals: list[int]


class PostgresIndexReader:
    """`IndexReader` for the transaction that it was created in. Reads may raise IndexDamaged."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection
        self._timeline_ends: dict[int, _TimelineEnd] = {}

    def mark(self) -> UUID | None:
        rows = self._query("SELECT mark FROM memory_marks")
        return rows[0][0] if rows else None

    def timeline(self, name: str) -> tuple[int, int]:
        return self.timelines([name]).get(name, (0, 0))

    def timelines(self, names: Iterable[str]) -> dict[str, tuple[int, int]]:
        numbers: dict[str, tuple[int, int]] = {}
        wanted = list(names)
        rows = self._query(_TIMELINES, wanted) if wanted else []
        for name, no, known, counts, totals in rows:
            if known:
                numbers[name] = no, known
                self._timeline_ends[no] = _TimelineEnd(known, counts, totals)
        return numbers

    def last_positions(
        self, tiers: Iterable[Tier], ends: Collection[int]
    ) -> dict[Tier, dict[int, IndexPosition]]:
        """Return the last document of each tier at or before each end.

        The end of a timeline is known from `timelines`. Most requests need only that.
        """
        positions: dict[Tier, dict[int, IndexPosition]] = {tier: {} for tier in tiers}
        numbers = {TIERS.index(tier): places for tier, places in positions.items()}
        rest: list[int] = []
        for end in ends:
            no, seq = end >> SEQ_BITS, end & (IDS_PER_LINE - 1)
            tail = self._timeline_ends.get(no)
            if tail is None or 0 < seq < tail.known:
                rest.append(end)
            elif seq:
                for number, places in numbers.items():
                    if count := tail.counts[number]:
                        id_ = (no * LINES_PER_TIMELINE + number) * IDS_PER_LINE + count
                        places[end] = IndexPosition(id_, tail.totals[number])
        if rest:
            for number, end, id_, total in self._query(_PLACES, list(numbers), rest):
                numbers[number][end] = IndexPosition(id_, total)
        return positions

    def document_ids(self, wanted: Mapping[int, Sequence[int]]) -> dict[tuple[int, int], int]:
        pairs = [
            (no * LINES_PER_TIMELINE + tier, seq)
            for no, seqs in wanted.items()
            for tier in range(len(TIERS))
            for seq in seqs
        ]
        if not pairs:
            return {}
        rows = self._query(_EXACTLY, [line for line, _ in pairs], [seq for _, seq in pairs])
        return {(no, seq): id_ for no, seq, id_ in rows}

    def seqs(self, ids: Collection[int]) -> dict[int, int]:
        return self._read_all(_SEQS, ids)

    def token_totals(self, ids: Collection[int]) -> dict[int, int]:
        firsts = {id_: 0 for id_ in ids if not id_ % IDS_PER_LINE}
        return firsts | self._read_all(_TOTALS, [id_ for id_ in ids if id_ % IDS_PER_LINE])

    def last_before(
        self, pieces: Sequence[tuple[IndexPosition, IndexPosition]], time: int
    ) -> list[IndexPosition]:
        if not pieces:
            return []
        lows, highs = [low.id for low, _ in pieces], [high.id for _, high in pieces]
        rows = self._query(_UNTIL, lows, highs, time)
        return [IndexPosition(*row) for row in rows]

    def entries(self, ids: Iterable[int], *, without_words: bool = False) -> dict[int, DocumentRow]:
        wanted = list(ids)
        if not wanted:
            return {}
        documents: dict[int, DocumentRow] = {}
        for id_, seq, time, importance, since, until, key, scope, *rest in self._query(
            _BARE if without_words else _ENTRIES, wanted
        ):
            when = id_, seq, time, importance, since, until
            documents[id_] = DocumentRow(*when, decode_text(key), decode_text(scope), *rest)
        _check(wanted, documents)
        return documents

    def contents(self, ids: Iterable[int]) -> Iterator[tuple[int, int, str, bytes | None]]:
        wanted = list(ids)
        rows = self._query(_CONTENTS, wanted) if wanted else []
        _check(wanted, rows)
        yield from ((id_, length, words, times) for id_, length, words, times in rows)

    def ends(self, keys: Iterable[str]) -> list[FactEndRow]:
        wanted = sorted({encode_text(key) for key in keys})
        if not wanted:
            return []
        rows = self._query(_ENDS, wanted)
        return [FactEndRow(decode_text(key), no, seq, time) for key, no, seq, time in rows]

    def text_hashes(
        self, timeline: int, tiers: Sequence[Tier], after: int, upto: int
    ) -> list[tuple[int, bytes]]:
        lines = [timeline * LINES_PER_TIMELINE + TIERS.index(tier) for tier in tiers]
        return [(seq, digest) for seq, digest in self._query(_HASHES, lines, after, upto)]

    def postings(self, visible: VisibleDocuments, *, limit: int) -> TermPostings:

        return PostgresPostings(self, visible, limit=limit)

    def scan_terms(
        self, terms: Sequence[str], ranges: Sequence[tuple[int, int]]
    ) -> dict[str, list[int]]:
        """Return the documents with each term among low <= id <= high, sorted by id.

        Every document is scanned.
        """
        lows, highs = [low for low, _ in ranges], [high for _, high in ranges]
        wanted = sum(high - low + 1 for low, high in ranges)
        having: dict[str, list[int]] = {}
        for start in range(0, len(terms), _COLUMNS):
            some = terms[start : start + _COLUMNS]
            statement = _SCAN.format(columns=_COLUMN * len(some))
            quoted = [_quoted(term) for term in some]
            ((has_all, *postings),) = self._query(statement, *quoted, lows, highs)
            if has_all != wanted:
                raise IndexDamaged(f"words of {has_all} documents for {wanted}")
            having |= {term: _ids(raw) for term, raw in zip(some, postings, strict=True) if raw}
        return having

    def find_terms(
        self, terms: Sequence[str], low: int, high: int, limit: int
    ) -> dict[str, list[int]]:
        """Return documents with each term from the term index; at most `limit`, in any choice."""
        rows = self._query(_FIND, low, high, limit, [_quoted(term) for term in terms])
        return {terms[number - 1]: _ids(raw or b"") for number, raw in rows}

    def _read_all(self, statement: str, ids: Collection[int]) -> dict[int, int]:
        values: dict[int, int] = dict(self._query(statement, list(ids))) if ids else {}
        _check(ids, values)
        return values

    def _query(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        # not prepared: the best plan depends on the values
        return self._connection.execute(statement, values, prepare=False, binary=True).fetchall()


def _check(wanted: Sized, rows: Sized) -> None:
    if len(rows) < len(wanted):
        raise IndexDamaged(f"{len(wanted) - len(rows)} of {len(wanted)} documents are not there")


def _ids(raw: bytes) -> list[int]:
    """Decode ids and sort them. They are usually in order, so that sorting is cheap."""
    ids = array("q", raw)
    if byteorder == "little":
        ids.byteswap()
    return sorted(ids)


def _quoted(term: str) -> str:
    """Quote a term for a tsquery, so that nothing in it is syntax."""
    return "'" + term.replace("\\", "\\\\").replace("'", "''") + "'"


def encode_text(text: str) -> bytes:
    """Encode text as bytes: PostgreSQL text cannot contain NUL."""
    return text.encode("utf-8", "surrogatepass")


def decode_text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogatepass")


# Documents with a term, counted in PostgreSQL with few statements.
#
# The results equal those of `SqlitePostings`.

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

    visible_range: VisibleRange
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
        nearest: list[int] = []
        for parts in self._range_batches(_doubled(2 * limit), newest=True):
            ids = self._reader.scan_terms([term], _ranges(parts)).get(term, ())
            for _, some in _by_part(ids, parts):
                nearest += reversed(some)
            if len(nearest) >= limit:
                break
        return nearest[:limit]

    def _count_by_scan(self, tallies: dict[str, PostingCounter], size: int, total: int) -> None:
        """Count terms in documents until each has enough. Rare terms are left to the index."""
        open_ = dict(tallies)
        postings: dict[str, list[tuple[VisibleRange, Sequence[int]]]] = {
            term: [] for term in tallies
        }
        seen = 0
        common = math.sqrt(self._limit / total)

        def many(term: str) -> int:
            return sum(len(some) for _, some in postings[term])

        def sizes() -> Iterator[int]:
            yield size
            while True:  # estimated from the documents seen so far
                left = ((self._limit - many(term)) / many(term) for term in open_)
                yield max(seen, int(SAMPLE_MARGIN * seen * max(left)))

        for parts in self._range_batches(sizes(), newest=False):
            having = self._reader.scan_terms(list(open_), _ranges(parts))
            seen += sum(part.high - part.low + 1 for part in parts)
            for term, ids in having.items():
                for visible_range, some in _by_part(ids, parts):
                    postings[term].append((visible_range, some))
                    if not open_[term].is_full:
                        open_[term].add(some, visible_range)
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
            self._all_ids[term] = _nearest_first(postings[term])

    def _count_by_index(self, terms: Sequence[str], tallies: dict[str, PostingCounter]) -> None:
        """Count terms with the term index."""
        if not terms:
            return
        postings = self._find_all(terms)
        for term in terms:
            tally = tallies[term] = PostingCounter(self._visible.total, self._limit)
            for visible_range, some in postings[term]:
                if tally.is_full:
                    break
                tally.add(some, visible_range)

    def _find_all(
        self, terms: Sequence[str]
    ) -> dict[str, list[tuple[VisibleRange, Sequence[int]]]]:
        visible_ranges = self._visible.ranges
        postings: dict[str, list[tuple[VisibleRange, Sequence[int]]]] = {}
        if visible_ranges:
            low, high = (
                min(one.low for one in visible_ranges),
                max(one.high for one in visible_ranges),
            )
            most = MAX_INDEX_IDS + INDEX_IDS_PER_VISIBLE * self._visible.total
            for term, ids in self._reader.find_terms(terms, low, high, most).items():
                if len(ids) < most:
                    postings[term] = list(group_by_range(self._visible, ids))
        if rest := [term for term in terms if term not in postings]:
            whole = [_RangePart(one, one.low, one.high) for one in visible_ranges]
            having = self._reader.scan_terms(rest, _ranges(whole)) if whole else {}
            postings |= {term: list(_by_part(having.get(term, ()), whole)) for term in rest}
        for term in terms:
            self._all_ids[term] = _nearest_first(postings[term])
        return postings

    def _range_batches(self, sizes: Iterator[int], *, newest: bool) -> Iterator[list[_RangePart]]:
        """Yield the visible documents in batches of the given sizes, nearest ranges first.

        `newest` reads each range from its end, otherwise from its start.
        """
        parts: list[_RangePart] = []
        left = next(sizes)
        for visible_range in self._visible.ranges:
            low, high = visible_range.low, visible_range.high
            while low <= high:
                many = min(left, high - low + 1)
                first = high - many + 1 if newest else low
                parts.append(_RangePart(visible_range, first, first + many - 1))
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
            yield part.visible_range, some


def _nearest_first(postings: Iterable[tuple[VisibleRange, Sequence[int]]]) -> list[int]:
    """Return ids nearest first. Ranges keep their order; each is read from its end."""
    whole: dict[int, list[int]] = {}
    for visible_range, ids in postings:
        whole.setdefault(visible_range.order, []).extend(ids)
    return [id_ for order in sorted(whole) for id_ in reversed(whole[order])]
