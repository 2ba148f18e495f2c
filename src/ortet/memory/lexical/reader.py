"""Reads the word index in a SQLite file at one moment."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import apsw
import msgspec

from ortet.memory.records import TIERS, Tier

if TYPE_CHECKING:
    from ortet.memory.base import TermPostings
    from ortet.memory.lexical.visibility import VisibleDocuments

LINES_PER_TIMELINE = 4
"""Lines of a timeline: one for each tier, and one reserve."""
IDS_PER_LINE = 1 << 32
"""Ids of line n are n * IDS_PER_LINE + 1 and up."""

SEQ_BITS = 32
"""Bits of an event number that is packed together with a timeline number."""
_TIMELINE = "SELECT no, known FROM timelines WHERE name = ?"
_TIMELINES = """SELECT name, no, known
    FROM json_each(?) AS wanted CROSS JOIN timelines ON name = wanted.value"""
_EXACTLY = """SELECT seq, docs.id FROM json_each(?) AS wanted
    CROSS JOIN docs ON line IN (?, ?, ?) AND seq = wanted.value"""
_LINE = f"(wanted.value >> {SEQ_BITS}) * {LINES_PER_TIMELINE} + tiers.value"
_PLACES = f"""SELECT tiers.value, wanted.value, docs.id, total
    FROM json_each(?) AS tiers CROSS JOIN json_each(?) AS wanted CROSS JOIN docs ON line = {_LINE}
    AND seq = (SELECT max(seq) FROM docs
        WHERE line = {_LINE} AND seq <= wanted.value & {(1 << SEQ_BITS) - 1})"""
_TIME = "SELECT time FROM docs WHERE id = ?"
_SEQ = "SELECT seq FROM docs WHERE id = ?"
_TOTAL = "SELECT total FROM docs WHERE id = ?"
_HAVING = "SELECT rowid FROM terms WHERE terms MATCH ? AND rowid BETWEEN ? AND ? ORDER BY rowid"
_NEWEST = _HAVING + " DESC LIMIT ?"
_REACHED = _HAVING + " LIMIT 1 OFFSET ?"
_ENTRIES = """SELECT docs.id, seq, time, importance, since, until, docs.key, scope,
    length, words, counts FROM json_each(?) AS wanted JOIN docs ON docs.id = wanted.value"""
_BARE = _ENTRIES.replace("words, counts", "'', NULL")
_CONTENTS = """SELECT docs.id, length, words, counts
    FROM json_each(?) AS wanted JOIN docs ON docs.id = wanted.value"""
_WORDS = "SELECT id, words FROM docs WHERE id BETWEEN ? AND ? ORDER BY id"
_HASHES = "SELECT seq, hash FROM docs WHERE line = ? AND seq > ? AND seq <= ? ORDER BY seq"
_ENDS = """SELECT ends.key, timeline, seq, time
    FROM json_each(?) AS wanted JOIN ends ON ends.key = wanted.value"""


class IndexPosition(NamedTuple):
    """A document of a line, or the start of the line, and the number of tokens up to it."""

    id: int
    total: int


class DocumentRow(NamedTuple):
    """A document as the index stores it."""

    id: int
    seq: int
    time: int
    importance: float
    since: int
    until: int
    key: str
    scope: str
    length: int
    words: str
    counts: bytes | None


class FactEndRow(NamedTuple):
    """An event that retracts the fact `key`."""

    key: str
    timeline: int
    seq: int
    time: int


def tier_of(id_: int) -> Tier:
    """Return the tier of a document."""
    return TIERS[(id_ // IDS_PER_LINE) % LINES_PER_TIMELINE]


def pack_timeline_seq(timeline: int, seq: int) -> int:
    """Pack a timeline number and an event number into one integer."""
    return timeline << SEQ_BITS | min(seq, (1 << SEQ_BITS) - 1)


class SqliteIndexReader:
    """`IndexReader` of a SQLite file, for the transaction that it was created in."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def timeline(self, name: str) -> tuple[int, int]:
        """Return the number of a timeline and its last indexed event, or (0, 0)."""
        row = self._connection.execute(_TIMELINE, (name,)).get
        return (row[0], row[1]) if row else (0, 0)

    def timelines(self, names: Iterable[str]) -> dict[str, tuple[int, int]]:
        """Return number and last indexed event of many timelines. Unknown ones are left out."""
        rows = self._connection.execute(_TIMELINES, (_json(names),))
        return {name: (no, known) for name, no, known in rows}

    def last_positions(
        self, tiers: Iterable[Tier], ends: Collection[int]
    ) -> dict[Tier, dict[int, IndexPosition]]:
        """Return the last document of each tier at or before each end, if there is one."""
        found: dict[Tier, dict[int, IndexPosition]] = {tier: {} for tier in tiers}
        numbers = (TIERS.index(tier) for tier in found)
        rows = self._connection.execute(_PLACES, (_json(numbers), _json(ends)))
        for tier, end, id_, total in rows:
            found[TIERS[tier]][end] = IndexPosition(id_, total)
        return found

    def document_ids(self, wanted: Mapping[int, Sequence[int]]) -> dict[tuple[int, int], int]:
        found: dict[tuple[int, int], int] = {}
        for timeline, seqs in wanted.items():
            lines = (timeline * LINES_PER_TIMELINE + tier for tier in range(len(TIERS)))
            rows = self._connection.execute(_EXACTLY, (_json(seqs), *lines))
            found.update(((timeline, seq), id_) for seq, id_ in rows)
        return found

    def seqs(self, ids: Collection[int]) -> dict[int, int]:
        return {id_: int(self._connection.execute(_SEQ, (id_,)).get) for id_ in ids}

    def last_before(
        self, pieces: Sequence[tuple[IndexPosition, IndexPosition]], time: int
    ) -> list[IndexPosition]:
        return [self._last_before(low, high, time) for low, high in pieces]

    def _last_before(self, low: IndexPosition, high: IndexPosition, time: int) -> IndexPosition:
        left, right = low.id, high.id
        while left < right:
            middle = (left + right + 1) // 2
            if self._connection.execute(_TIME, (middle,)).get <= time:
                left = middle
            else:
                right = middle - 1
        if left in (low.id, high.id):
            return low if left == low.id else high
        return IndexPosition(left, self.token_totals([left])[left])

    def token_totals(self, ids: Collection[int]) -> dict[int, int]:
        return {id_: int(self._connection.execute(_TOTAL, (id_,)).get or 0) for id_ in ids}

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

    def entries(self, ids: Iterable[int], *, without_words: bool = False) -> dict[int, DocumentRow]:
        """Return rows in the order of the ids. `without_words` leaves out their words."""
        rows = self._connection.execute(_BARE if without_words else _ENTRIES, (_json(ids),))
        return {row[0]: DocumentRow._make(row) for row in rows}

    def contents(self, ids: Iterable[int]) -> Iterator[tuple[int, int, str, bytes | None]]:
        """Yield (id, length, words, counts) of documents."""
        yield from self._connection.execute(_CONTENTS, (_json(ids),))

    def ends(self, keys: Iterable[str]) -> list[FactEndRow]:
        wanted = sorted(set(keys))
        if not wanted:
            return []
        rows = self._connection.execute(_ENDS, (_json(wanted),))
        return [FactEndRow(*row) for row in rows]

    def text_hashes(
        self, timeline: int, tiers: Sequence[Tier], after: int, upto: int
    ) -> list[tuple[int, bytes]]:
        """Return (seq, hash of the text) of the documents of events after < seq <= upto."""
        found: list[tuple[int, bytes]] = []
        for tier in tiers:
            line = timeline * LINES_PER_TIMELINE + TIERS.index(tier)
            found += self._connection.execute(_HASHES, (line, after, upto))
        return sorted(found)

    def postings(self, visible: VisibleDocuments, *, limit: int) -> TermPostings:
        from ortet.memory.lexical.postings import SqlitePostings  # noqa: PLC0415 - which reads with this

        return SqlitePostings(self, visible, limit=limit)


def _json(values: Iterable[int] | Iterable[str]) -> str:
    return msgspec.json.encode(list(values)).decode()


def _ids(got: list[int] | int | None) -> list[int]:
    """Return a list: apsw returns a single row as a plain value."""
    return got if isinstance(got, list) else [] if got is None else [got]


def _quoted(term: str) -> str:
    """Quote a term as an FTS5 string, so that nothing in it is syntax."""
    return '"' + term.replace('"', '""') + '"'
