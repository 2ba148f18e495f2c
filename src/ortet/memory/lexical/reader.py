"""Reads the word index in a SQLite file at one moment."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import apsw
import msgspec

from ortet.memory.base import TermPostings
from ortet.memory.lexical.postings import SqlitePostings, TermTable
from ortet.memory.lexical.visible_documents import VisibleDocuments
from ortet.memory.records import (
    LINES_PER_TIMELINE,
    SEQ_BITS,
    TIERS,
    DocumentRow,
    FactEndRow,
    IndexPosition,
    Tier,
)

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
_ENTRIES = """SELECT docs.id, seq, time, importance, since, until, docs.key, scope,
    length, words, counts FROM json_each(?) AS wanted JOIN docs ON docs.id = wanted.value"""
_BARE = _ENTRIES.replace("words, counts", "'', NULL")
_CONTENTS = """SELECT docs.id, length, words, counts
    FROM json_each(?) AS wanted JOIN docs ON docs.id = wanted.value"""
_HASHES = "SELECT seq, hash FROM docs WHERE line = ? AND seq > ? AND seq <= ? ORDER BY seq"
_ENDS = """SELECT ends.key, timeline, seq, time
    FROM json_each(?) AS wanted JOIN ends ON ends.key = wanted.value"""


class SqliteIndexReader:
    """`IndexReader` of a SQLite file, for the transaction that it was created in."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self.terms = TermTable(connection)

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
        positions: dict[Tier, dict[int, IndexPosition]] = {tier: {} for tier in tiers}
        numbers = (TIERS.index(tier) for tier in positions)
        rows = self._connection.execute(_PLACES, (_json(numbers), _json(ends)))
        for tier, end, id_, total in rows:
            positions[TIERS[tier]][end] = IndexPosition(id_, total)
        return positions

    def document_ids(self, wanted: Mapping[int, Sequence[int]]) -> dict[tuple[int, int], int]:
        ids: dict[tuple[int, int], int] = {}
        for timeline, seqs in wanted.items():
            lines = (timeline * LINES_PER_TIMELINE + tier for tier in range(len(TIERS)))
            rows = self._connection.execute(_EXACTLY, (_json(seqs), *lines))
            ids.update(((timeline, seq), id_) for seq, id_ in rows)
        return ids

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
        hashes: list[tuple[int, bytes]] = []
        for tier in tiers:
            line = timeline * LINES_PER_TIMELINE + TIERS.index(tier)
            hashes += self._connection.execute(_HASHES, (line, after, upto))
        return sorted(hashes)

    def postings(self, visible: VisibleDocuments, *, limit: int) -> TermPostings:
        return SqlitePostings(self.terms, visible, limit=limit)


def _json(values: Iterable[int] | Iterable[str]) -> str:
    return msgspec.json.encode(list(values)).decode()
