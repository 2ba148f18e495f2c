"""Semantic index with pgvector: exact search in the database.

The cosines of the nearest vectors are computed again on this host, as everywhere else. The results
are therefore equal.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import numpy as np
import psycopg
from numpy.typing import NDArray

from ortet._util.fork_safety import reset_in_child
from ortet.errors import Invalid, OrtetError
from ortet.ids import Clock
from ortet.memory.base import SemanticMatches, WordIndex
from ortet.memory.embedders.base import Embedder
from ortet.memory.lexical.index import IndexLost, text_hash
from ortet.memory.postgres.index import MemoryDatabase
from ortet.memory.records import TIERS, EventSpan, Tier
from ortet.memory.vectors.matrix import cosines
from ortet.memory.vectors.worker import EmbeddingBacklog, EmbeddingWorker, WantedText

if TYPE_CHECKING:
    from ortet.memory.records import ReadDocuments


# Vectors in PostgreSQL, by embedder and hash of text.
#
# No host embeds a text that another host has embedded.

# ruff: noqa: PLC0415 - who erases needs no numpy


_TYPE = """SELECT format_type(atttypid, atttypmod) FROM pg_attribute
    WHERE attrelid = to_regclass('memory_vectors') AND attname = 'vector'
    AND to_regclass('memory_embedders') IS NOT NULL
    AND to_regclass('memory_vector_marks') IS NOT NULL"""
_STATE = """SELECT mark, coalesce((SELECT size FROM memory_embedders WHERE name = %s), 0)
    FROM memory_vector_marks"""
_GET = """SELECT hash, {sent} FROM memory_vectors WHERE hash = ANY (%s::bytea[])
    AND embedder = (SELECT no FROM memory_embedders WHERE name = %s)"""
_PUT = """SELECT memory_put_vectors(%s, %s, %s::int, %b::bytea[], %s::text[], %b::bytea[])"""
_WALKED = "; ".join(
    f"SET LOCAL {setting} = off" for setting in ("enable_nestloop", "enable_mergejoin", "jit")
)
_NO_TABLE = "42P01"
_BATCH_SIZE = 4096
_HEADER = 4
"""Bytes of a halfvec before its numbers."""
_ROW = 64
"""Bytes of a row beside its vector."""


class PostgresVectorStore:
    """`VectorStore` of a store that several hosts share.

    `column_type` is "bytea", or the halfvec type of pgvector with its schema. Missing tables are
    created.
    """

    def __init__(self, database: MemoryDatabase, embedder: str) -> None:
        self.name = embedder
        self._database = database
        self._column_type = ""

    @property
    def column_type(self) -> str:
        """Type of the vector column. Missing tables are created."""
        if not self._column_type:
            rows = self._database.run(_TYPE)
            if not rows:
                self._database.run("SELECT memory_make_vectors()")
                rows = self._database.run(_TYPE)
            self._column_type = rows[0][0]
        return self._column_type

    @property
    def schema(self) -> str:
        """Schema of pgvector with a trailing dot, or "" without pgvector."""
        return self.column_type.removesuffix("halfvec") if self.column_type != "bytea" else ""

    @property
    def has_pgvector(self) -> bool:
        """True if the database can search for the nearest vectors."""
        return self.column_type != "bytea"

    def vector_expression(self, column: str = "vector") -> str:
        return f"{self.schema}halfvec_send({column})" if self.has_pgvector else column

    def state(self) -> tuple[bytes, int]:
        ((mark, size),) = self.run(_STATE, (self.name,)) or [(UUID(int=0), 0)]
        return mark.bytes, size

    def get(self, hashes: Iterable[bytes]) -> dict[bytes, bytes]:
        wanted = list(dict.fromkeys(hashes))
        vectors: dict[bytes, bytes] = {}
        for start in range(0, len(wanted), _BATCH_SIZE):
            statement = _GET.format(sent=self.vector_expression())
            rows = self.run(statement, (wanted[start : start + _BATCH_SIZE], self.name))
            vectors.update((digest, self.to_float16(raw)) for digest, raw in rows)
        return vectors

    def to_float16(self, raw: bytes) -> bytes:
        """Return a vector as float16 bytes, as a file stores it."""
        if not self.has_pgvector:
            return raw
        import numpy as np

        return np.frombuffer(raw, ">f2", offset=_HEADER).astype(np.float16).tobytes()

    def put(self, mark: bytes, size: int, rows: Sequence[tuple[bytes, bytes]]) -> bool:
        hashes = [digest for digest, _ in rows]
        texts = [to_pgvector_text(raw) for _, raw in rows] if self.has_pgvector else None
        raws = None if self.has_pgvector else [raw for _, raw in rows]
        values = (UUID(bytes=mark), self.name, size, hashes, texts, raws)
        ((done,),) = self.run(_PUT, values)
        if done is None:
            raise Invalid(
                "vector_size",
                f"{self.name} gave {size} numbers a text, and {self.state()[1]} before: "
                "a model that changed needs another name",
            )
        return bool(done)

    def forget(self, hashes: Iterable[bytes]) -> int:
        return self._drop_vectors(list(hashes), None)

    def prune(self) -> int:
        return self._drop_vectors(None, self.name)

    def empty(self) -> None:
        self._drop_vectors(None, None)

    def _drop_vectors(self, hashes: list[bytes] | None, keep_embedder: str | None) -> int:
        if not self._database.run(_TYPE):
            return 0
        statement = "SELECT memory_drop_vectors(%s::bytea[], %s::text)"
        many = int(self.run(statement, (hashes, keep_embedder))[0][0])
        if many:
            with self._database.dedicated_connection() as connection:
                # otherwise the pages still contain the deleted rows
                connection.execute("VACUUM (FULL) memory_vectors")
        return many

    def close(self) -> None:
        """Do nothing: the database belongs to the catalog."""

    def estimated_rows(self, size: int) -> int:
        """Estimate the number of rows from the size of the table."""
        ((bytes_,),) = self.run("SELECT pg_relation_size('memory_vectors')")
        return int(bytes_) // (2 * size + _ROW)

    def walk(self, statement: str, values: Any) -> list[tuple[Any, ...]]:
        """Run a statement that joins so many rows that index lookups are slower than a scan."""
        rows: list[tuple[Any, ...]]
        with self._database.read_transaction(_WALKED) as connection:
            rows = connection.execute(statement, values, prepare=False, binary=True).fetchall()
        return rows

    def run(self, statement: str, values: Any = ()) -> list[tuple[Any, ...]]:
        assert self.column_type  # creates missing tables
        try:
            return self._database.run(statement, values)
        except OrtetError as error:
            cause = error.__cause__
            if not isinstance(cause, psycopg.Error) or cause.sqlstate != _NO_TABLE:
                raise
        self._column_type = ""  # the tables were dropped; create them again
        assert self.column_type
        return self._database.run(statement, values)


def to_pgvector_text(raw: bytes) -> str:
    """Return a vector as text for pgvector, without loss."""
    import numpy as np

    return str(np.frombuffer(raw, np.float16).astype(np.float64).tolist())


Array = NDArray[np.float32]

_VISIBLE_DOCS = """unnest(%(names)s::text[], %(afters)s::bigint[], %(uptos)s::bigint[])
        AS span (name, after, upto)
    JOIN memory_lines USING (name) CROSS JOIN unnest(%(tiers)s::int[]) AS tier
    JOIN memory_docs AS docs
        ON docs.line = no * 4 + tier AND docs.seq > span.after AND docs.seq <= span.upto"""
_ABSENT = f"""SELECT span.name, tier, docs.seq, docs.hash FROM {_VISIBLE_DOCS}
    WHERE NOT EXISTS (SELECT 1 FROM memory_vectors AS v WHERE v.hash = docs.hash
        AND v.embedder = (SELECT e.no FROM memory_embedders AS e WHERE e.name = %(embedder)s))
    ORDER BY docs.seq"""
_EMBEDDER_NO = "(SELECT e.no FROM memory_embedders AS e WHERE e.name = %(embedder)s)"
# Select near candidates by half-precision distance, then read their stored vectors.
_NEAREST = f"""WITH far AS MATERIALIZED (
        SELECT span.name, docs.seq, v.hash,
            v.vector OPERATOR({{schema}}<=>) %(query)s::{{kind}} AS away
        FROM {_VISIBLE_DOCS} JOIN memory_vectors AS v ON v.hash = docs.hash
            AND v.embedder = {_EMBEDDER_NO}
    ), last AS (SELECT away FROM far ORDER BY away LIMIT 1 OFFSET %(limit)s::bigint - 1),
    chosen AS MATERIALIZED (
        SELECT DISTINCT far.name, far.seq, far.hash FROM far
        WHERE away <= coalesce((SELECT away FROM last), 3) + %(margin)s::float8)
    SELECT chosen.name, chosen.seq, {{sent}} FROM chosen JOIN memory_vectors AS v USING (hash)
    WHERE v.embedder = {_EMBEDDER_NO}"""
# Variant for queries that need most vectors: each is read once and joined by hash. It runs without
# nested loops. LATERAL and OFFSET 0 keep them where an index is intended.
_WALK = f"""WITH far AS MATERIALIZED (
        SELECT n, docs.seq, v.hash, v.vector OPERATOR({{schema}}<=>) %(query)s::{{kind}} AS away
        FROM unnest(%(names)s::text[], %(afters)s::bigint[], %(uptos)s::bigint[])
            WITH ORDINALITY AS span (name, after, upto, n)
        CROSS JOIN LATERAL (
            SELECT no FROM memory_lines AS l WHERE l.name = span.name OFFSET 0) AS line
        CROSS JOIN unnest(%(tiers)s::int[]) AS tier
        CROSS JOIN LATERAL (SELECT seq, hash FROM memory_docs WHERE line = no * 4 + tier
            AND seq > span.after AND seq <= span.upto OFFSET 0) AS docs
        JOIN memory_vectors AS v ON v.hash = docs.hash AND v.embedder = {_EMBEDDER_NO}
    ), last AS (SELECT away FROM far ORDER BY away LIMIT 1 OFFSET %(limit)s::bigint - 1),
    chosen AS MATERIALIZED (
        SELECT DISTINCT (%(names)s::text[])[n] AS name, far.seq, far.hash FROM far
        WHERE away <= coalesce((SELECT away FROM last), 3) + %(margin)s::float8)
    SELECT chosen.name, chosen.seq, {{sent}} FROM chosen CROSS JOIN LATERAL (
        SELECT vector FROM memory_vectors
        WHERE hash = chosen.hash AND embedder = {_EMBEDDER_NO} OFFSET 0) AS v"""
SCAN_MIN_EVENTS = 5000
"""Number of events from which a scan of all vectors can be faster than lookups."""
SCAN_MAX_RATIO = 4
"""A scan is faster if there are at most this many vectors per event. A lookup costs ten reads."""
_MARGIN = 4e-3
"""Half precision changes a cosine by less than a quarter of this."""


class _MissingVector(NamedTuple):
    timeline: str
    tier: int
    seq: int


class PostgresSemanticIndex:
    """`SemanticIndex` in PostgreSQL. Timeouts work as in `LocalSemanticIndex`.

    Memory holds only texts without a vector, and the ranges that were checked for them.
    """

    def __init__(
        self,
        store: PostgresVectorStore,
        embedder: Embedder,
        clock: Clock,
        *,
        fill_timeout: float = 0.2,
        query_timeout: float = 1.0,
    ) -> None:
        self._store = store
        self._embedder = embedder
        self._clock = clock
        self._fill_timeout = fill_timeout
        self._query_timeout = query_timeout
        self._reset()
        reset_in_child(self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._mark = b""
        self._checked: dict[tuple[str, int], tuple[int, int]] = {}
        self._missing: dict[bytes, set[_MissingVector]] = {}
        self._backlog = EmbeddingBacklog(self._store)
        self._worker = EmbeddingWorker(
            self._embedder, self._backlog, self._store_vectors, clock=self._clock
        )

    def ranker(self, index: WordIndex, read_documents: ReadDocuments) -> PostgresRanker:  # noqa: ARG002 - it is in the database
        return PostgresRanker(self, read_documents)

    def rank(
        self,
        read_documents: ReadDocuments,
        spans: Sequence[EventSpan],
        tiers: Sequence[Tier],
        text: str,
        limit: int,
    ) -> SemanticMatches:
        """Return the documents nearest to a text.

        Failures of the embedder or the database are reported in the result and do not raise.
        """
        try:
            query = self._worker.embed_query(text_hash(text), text, self._query_timeout)
            with self._lock:
                wants = self._find_missing(read_documents, spans, tiers)
            self._worker.fill(wants, self._fill_timeout)
            if query.vector is None:
                return SemanticMatches([], query.status)
            if len(query.vector) != self._worker.size:
                return SemanticMatches([], "late")  # another process stored vectors of another size
            with self._lock:
                self._absorb_finished()
                absent = self._count_missing(spans, tiers)
            places = self._nearest(spans, tiers, query.vector, limit)
        except IndexLost:
            raise
        except OrtetError as error:
            return SemanticMatches([], f"failed: {error.message}")
        if absent and not places:
            return SemanticMatches(
                [],
                f"failed: {self._worker.failure_reason}" if self._worker.failure_reason else "late",
            )
        return SemanticMatches(places, "some" if absent else "all")

    def close(self) -> None:
        self._worker.close()

    def _find_missing(
        self, read_documents: ReadDocuments, spans: Sequence[EventSpan], tiers: Sequence[Tier]
    ) -> dict[bytes, WantedText]:
        """Return the texts to embed, oldest first. Checked ranges are not checked again."""
        mark, size = self._store.state()
        if mark != self._mark:
            self._mark = mark
            self._checked.clear()
            self._missing.clear()
        self._worker.set_size(size)
        self._absorb_finished()
        new = [span for span in spans if self._is_unchecked(span, tiers)]
        if new:
            for name, tier, seq, digest in self._store.run(_ABSENT, self._values(new, tiers)):
                self._missing.setdefault(digest, set()).add(_MissingVector(name, tier, seq))
            for span in new:
                for tier in tiers:
                    key = span.timeline, TIERS.index(tier)
                    after, upto = self._checked.get(key, (span.after, span.upto))
                    self._checked[key] = min(after, span.after), max(upto, span.upto)
        if not new and self._backlog:
            return {}
        return self._wanted_texts(read_documents, spans)

    def _is_unchecked(self, span: EventSpan, tiers: Sequence[Tier]) -> bool:
        for tier in tiers:
            looked = self._checked.get((span.timeline, TIERS.index(tier)))
            if looked is None or span.after < looked[0] or looked[1] < span.upto:
                return True
        return False

    def _wanted_texts(
        self, read_documents: ReadDocuments, spans: Sequence[EventSpan]
    ) -> dict[bytes, WantedText]:
        ends: dict[str, list[EventSpan]] = {}
        for span in spans:
            ends.setdefault(span.timeline, []).append(span)
        wants: dict[bytes, WantedText] = {}
        for digest, places in self._missing.items():
            for place in places:
                for span in ends.get(place.timeline, ()):
                    if span.after < place.seq <= span.upto:
                        wants[digest] = WantedText(read_documents, span, place.seq)
        return dict(sorted(wants.items(), key=lambda item: item[1].seq))

    def _absorb_finished(self) -> None:
        for digest in self._backlog.take_finished():  # also texts that never get a vector
            self._missing.pop(digest, None)

    def _count_missing(self, spans: Sequence[EventSpan], tiers: Sequence[Tier]) -> int:
        """Return the number of visible documents without a vector."""
        numbers = {TIERS.index(tier) for tier in tiers}
        return len(
            {
                place
                for places in self._missing.values()
                for place in places
                if place.tier in numbers
                and any(
                    span.timeline == place.timeline and span.after < place.seq <= span.upto
                    for span in spans
                )
            }
        )

    def _nearest(
        self, spans: Sequence[EventSpan], tiers: Sequence[Tier], query: Array, limit: int
    ) -> list[tuple[str, int, float]]:
        store = self._store
        if limit < 1 or not spans:
            return []
        parts = {
            "schema": store.schema,
            "kind": store.column_type,
            "sent": store.vector_expression("v.vector"),
        }
        asked = to_pgvector_text(query.astype(np.float16).tobytes())
        values = {**self._values(spans, tiers), "query": asked, "limit": limit, "margin": _MARGIN}
        rows = None
        if self._should_scan(spans, len(query)):
            with suppress(OrtetError):  # one attempt; the other statement reports the error
                rows = store.walk(_WALK.format(**parts), values)
        if rows is None:
            rows = store.run(_NEAREST.format(**parts), values)
        if not rows:
            return []
        half = np.frombuffer(b"".join(store.to_float16(raw) for _, _, raw in rows), np.float16)
        half = half.reshape(len(rows), -1)
        length = np.sqrt(np.square(half, dtype=np.float64).sum(axis=1))
        exact = cosines(half, length, query.astype(np.float64)).tolist()
        scored = [(name, seq, one) for (name, seq, _), one in zip(rows, exact, strict=True)]
        scored.sort(key=lambda near: (-near[2], -near[1], near[0]))
        return scored[:limit]

    def _should_scan(self, spans: Sequence[EventSpan], size: int) -> bool:
        many = sum(span.upto - span.after for span in set(spans))
        return many >= SCAN_MIN_EVENTS and self._store.estimated_rows(size) <= SCAN_MAX_RATIO * many

    def _values(self, spans: Iterable[EventSpan], tiers: Sequence[Tier]) -> dict[str, object]:
        some = list(dict.fromkeys(spans))
        return {
            "names": [span.timeline for span in some],
            "afters": [span.after for span in some],
            "uptos": [span.upto for span in some],
            "tiers": [TIERS.index(tier) for tier in tiers],
            "embedder": self._store.name,
        }

    def _store_vectors(self, mark: bytes, vectors: Mapping[bytes, Array]) -> bool:
        size = len(next(iter(vectors.values())))
        rows = [(digest, vector.astype(np.float16).tobytes()) for digest, vector in vectors.items()]
        return self._store.put(mark, size, rows)


class PostgresRanker:
    """Ranker of one query, for `ortet.memory.lexical.search`."""

    def __init__(self, index: PostgresSemanticIndex, read_documents: ReadDocuments) -> None:
        self._index = index
        self._read_documents = read_documents

    def rank(
        self, spans: Sequence[EventSpan], tiers: Sequence[Tier], text: str, limit: int
    ) -> SemanticMatches:
        return self._index.rank(self._read_documents, spans, tiers, text, limit)
