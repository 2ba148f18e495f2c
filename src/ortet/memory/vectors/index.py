"""Semantic index: vectors of all visible documents, computed when first needed.

Vectors are stored by embedder and hash of text. A fork, a restore or a rebuilt index therefore
finds them again. Half precision is stored: it changes a cosine by about 1e-4 and halves the space.
The search uses bytes; see `matrix`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ortet._util.fork_safety import reset_in_child
from ortet.errors import OrtetError
from ortet.ids import Clock, SystemClock
from ortet.memory.base import SemanticMatches, VectorStore, WordIndex
from ortet.memory.embedders.base import Embedder
from ortet.memory.lexical.index import IndexLost, text_hash
from ortet.memory.lexical.index_file import index_lost
from ortet.memory.records import EventSpan, Tier
from ortet.memory.vectors.matrix import QuantisedVectors, VectorMatrix, nearest_documents, quantise
from ortet.memory.vectors.store import SqliteVectorStore
from ortet.memory.vectors.worker import EmbeddingBacklog, EmbeddingWorker, WantedText

if TYPE_CHECKING:
    from ortet.memory.records import ReadDocuments

Array = NDArray[np.float32]
_READ_BATCH = 4096  # vectors read at once


class LocalSemanticIndex:
    """Ranks documents with the vectors of one embedder. Thread-safe and fork-safe.

    A search waits at most `query_timeout` seconds for the vector of the query, and `fill_timeout`
    seconds for missing vectors. The background thread computes the rest. Above `max_bytes`, vectors
    of timelines that were not used lately are evicted from memory. A forked child starts with the
    stored vectors.
    """

    def __init__(
        self,
        path: Path | VectorStore,
        embedder: Embedder,
        *,
        clock: Clock | None = None,
        fill_timeout: float = 0.2,
        query_timeout: float = 1.0,
        max_bytes: int = 256 << 20,
    ) -> None:
        self._embedder = embedder
        self._clock = clock or SystemClock()
        self._fill_timeout = fill_timeout
        self._query_timeout = query_timeout
        self._max_bytes = max_bytes
        self._store = SqliteVectorStore(path, embedder.name) if isinstance(path, Path) else path
        self._reset()
        reset_in_child(self._reset)

    def _reset(self) -> None:
        # guards the state in memory; never held while texts are embedded
        self._lock = threading.Lock()
        self._mark = b""
        self._matrix = VectorMatrix(self._max_bytes)
        self._missing: dict[bytes, list[tuple[EventSpan, Tier, int]]] = {}
        self._backlog = EmbeddingBacklog(self._store)
        self._worker = EmbeddingWorker(
            self._embedder, self._backlog, self._store_vectors, clock=self._clock
        )

    def ranker(self, index: WordIndex, read_documents: ReadDocuments) -> LocalRanker:
        """Return a ranker for one query on the documents of `index`."""
        return LocalRanker(self, index, read_documents)

    def rank(
        self,
        index: WordIndex,
        read_documents: ReadDocuments,
        spans: Sequence[EventSpan],
        *,
        tiers: Sequence[Tier],
        text: str,
        limit: int,
    ) -> SemanticMatches:
        """Return the documents nearest to a text.

        Failures of the embedder or the store are reported in the result and do not raise.

        Raises:
            IndexLost: If the word index does not contain the spans.
        """
        try:
            with self._lock:
                self._refresh()
            query = self._worker.embed_query(text_hash(text), text, self._query_timeout)
            with self._lock:
                wants = self._load_spans(index, read_documents, spans, tiers)
            self._worker.fill(wants, self._fill_timeout)
            if query.vector is None:
                return SemanticMatches([], query.status)
            if len(query.vector) != self._worker.size:
                return SemanticMatches([], "late")  # another process stored vectors of another size
            with self._lock:
                self._absorb_finished()
                return self._nearest(spans, tiers, query.vector, limit)
        except IndexLost:
            raise
        except OrtetError as error:
            return SemanticMatches([], f"failed: {error.message}")

    def fill(
        self,
        index: WordIndex,
        read_documents: ReadDocuments,
        spans: Sequence[EventSpan],
        tiers: Sequence[Tier],
        timeout: float,
    ) -> bool:
        """Compute missing vectors for at most `timeout` seconds. Return True if none is missing."""
        with self._lock:
            wants = self._load_spans(index, read_documents, spans, tiers)
        self._worker.fill(wants, timeout)
        with self._lock:
            self._absorb_finished()
            return not any(
                one.line.count_missing(one.rows) for one in self._matrix.visible_rows(spans, tiers)
            )

    def forget(self, hashes: Iterable[bytes]) -> int:
        """Delete the vectors of erased texts, for all processes. Erase the texts first."""
        return self._store.forget(hashes)

    def prune(self) -> int:
        """Delete the vectors of other embedders. Return their number."""
        return self._store.prune()

    def drop(self) -> None:
        """Delete all vectors."""
        self._store.empty()

    def close(self) -> None:
        self._worker.close()
        self._store.close()

    def _load_spans(
        self,
        index: WordIndex,
        read_documents: ReadDocuments,
        spans: Sequence[EventSpan],
        tiers: Sequence[Tier],
    ) -> dict[bytes, WantedText]:
        """Load new documents of the spans. Return the texts to embed, oldest first."""
        self._refresh()
        self._absorb_finished()
        wants: dict[bytes, WantedText] = {}
        for span in spans:
            absent: dict[int, bytes] = {}
            for tier in tiers:
                line = self._matrix.tier_vectors(span, tier)
                if line.upto < span.upto:
                    hashes = _hashes(index, span, tier, line.upto)
                    line.add((seq for seq, _ in hashes), span.upto)
                    for start in range(0, len(hashes), _READ_BATCH):
                        for seq, digest in self._load(
                            span, tier, hashes[start : start + _READ_BATCH]
                        ):
                            self._missing.setdefault(digest, []).append((span, tier, seq))
                            absent[seq] = digest
            for seq in sorted(absent):  # a repeated text counts at its last position
                wants.pop(absent[seq], None)
                wants[absent[seq]] = WantedText(read_documents, span, seq)
        self._matrix.evict(spans)
        if not self._backlog and self._missing:
            wants = self._still_missing(read_documents, spans, wants) | wants
        return wants

    def _refresh(self) -> None:
        """Reload everything if vectors were deleted from the store."""
        mark, size = self._store.state()
        if mark != self._mark:  # vectors were deleted, perhaps by another process
            self._mark, self._matrix = mark, VectorMatrix(self._max_bytes)
            self._missing.clear()
        self._worker.set_size(size)

    def _load(
        self, span: EventSpan, tier: Tier, hashes: Sequence[tuple[int, bytes]]
    ) -> list[tuple[int, bytes]]:
        """Load stored vectors into their rows. Return the documents without one."""
        places, vectors = self._read_vectors(digest for _, digest in hashes)
        here = [(seq, places[digest]) for seq, digest in hashes if digest in places]
        if vectors is not None:
            some = vectors.select([place for _, place in here])
            self._matrix.put(span.timeline, tier, [seq for seq, _ in here], some)
        return [(seq, digest) for seq, digest in hashes if digest not in places]

    def _still_missing(
        self,
        read_documents: ReadDocuments,
        spans: Sequence[EventSpan],
        new: Mapping[bytes, WantedText],
    ) -> dict[bytes, WantedText]:
        """Return texts that were tried without success, with a function that can read them now."""
        ends = {span.timeline: span for span in spans}
        wants: dict[bytes, WantedText] = {}
        for digest, places in self._missing.items():
            for span, _, seq in places if digest not in new else ():
                now = ends.get(span.timeline)
                if now is not None and now.after < seq <= now.upto:
                    wants[digest] = WantedText(read_documents, now, seq)
                    break
        return dict(sorted(wants.items(), key=lambda item: item[1].seq))

    def _absorb_finished(self) -> None:
        finished = self._backlog.take_finished()
        places, vectors = self._read_vectors(digest for digest, fine in finished.items() if fine)
        for digest, fine in finished.items():
            if not fine or digest in places:
                some = vectors.select([places[digest]]) if fine and vectors is not None else None
                for span, tier, seq in self._missing.pop(digest, ()):
                    self._matrix.put(span.timeline, tier, [seq], some)

    def _read_vectors(
        self, hashes: Iterable[bytes]
    ) -> tuple[dict[bytes, int], QuantisedVectors | None]:
        """Return the stored vectors, and the row of each hash."""
        raw = self._store.get(hashes)
        if not raw:
            return {}, None
        size = max(map(len, raw.values()))
        matrix = np.frombuffer(b"".join(one.ljust(size) for one in raw.values()), np.float16)
        half = matrix.reshape(len(raw), -1)
        length = np.sqrt(np.square(half, dtype=np.float64).sum(axis=1))
        if not (np.abs(length - 1) < 0.01).all():  # stored vectors have length 1
            self._store.empty()
            return {}, None
        return {digest: place for place, digest in enumerate(raw)}, quantise(half, length)

    def _store_vectors(self, mark: bytes, vectors: Mapping[bytes, Array]) -> bool:
        size = len(next(iter(vectors.values())))
        rows = [(digest, vector.astype(np.float16).tobytes()) for digest, vector in vectors.items()]
        return self._store.put(mark, size, rows)

    def _nearest(
        self, spans: Sequence[EventSpan], tiers: Sequence[Tier], query: Array, limit: int
    ) -> SemanticMatches:
        seen = self._matrix.visible_rows(spans, tiers)
        absent = sum(one.line.count_missing(one.rows) for one in seen)
        why = self._worker.failure_reason
        if absent and absent == sum(len(one.rows) for one in seen):
            return SemanticMatches([], f"failed: {why}" if why else "late")
        nearest = nearest_documents(seen, query, limit)
        return SemanticMatches(
            [(one.timeline, one.seq, one.cosine) for one in nearest], "some" if absent else "all"
        )


class LocalRanker:
    """Ranker of one query, for `ortet.memory.lexical.search`."""

    def __init__(
        self, vectors: LocalSemanticIndex, index: WordIndex, read_documents: ReadDocuments
    ) -> None:
        self._vectors = vectors
        self._index = index
        self._read_documents = read_documents

    def rank(
        self, spans: Sequence[EventSpan], tiers: Sequence[Tier], text: str, limit: int
    ) -> SemanticMatches:
        return self._vectors.rank(
            self._index, self._read_documents, spans, tiers=tiers, text=text, limit=limit
        )


def _hashes(index: WordIndex, span: EventSpan, tier: Tier, after: int) -> list[tuple[int, bytes]]:
    with index.open_reader() as lookup:
        number, known = lookup.timeline(span.timeline)
        if known < span.upto:
            raise index_lost(
                f"timeline {span.timeline} is in the index of memories only up to {known}"
            )
        return lookup.text_hashes(number, [tier], after, span.upto)
