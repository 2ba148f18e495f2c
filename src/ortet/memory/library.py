"""Everything that can be recalled in a store: the index of words, and the meanings beside it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path as Directory
from typing import TYPE_CHECKING

from ortet.errors import Unsupported
from ortet.ids import Clock
from ortet.memory.base import IndexFactory, IndexPage, SemanticIndex, VectorStore, WordIndex
from ortet.memory.lexical.index import IndexLost, SqliteWordIndex, text_hash
from ortet.memory.lexical.scoring import Weights
from ortet.memory.lexical.search import SemanticMatches, search
from ortet.memory.records import (
    EventSpan,
    FactEnd,
    MemoryDocument,
    Query,
    SearchResult,
    Tier,
    TimelinePath,
)

if TYPE_CHECKING:
    from ortet.memory.embedders.base import Embedder
    from ortet.memory.lexical.search import SemanticRanker as Asked

ReadDocuments = Callable[
    [EventSpan, int], Iterator[tuple[int, list[MemoryDocument], list[FactEnd]]]
]
"""Pages of a span behind an event: up to which event each is, and what is in it. It is also called
later, in another thread, for texts that have no vectors yet."""

_MAX_SEARCH_ATTEMPTS = 3


class Library:
    """Derived from the journals: what is lost here is read from them again."""

    def __init__(
        self,
        directory: Directory,
        clock: Clock,
        *,
        embedder: Embedder | str | None = None,
        index_factory: IndexFactory | None = None,
    ) -> None:
        """In files of a directory, unless hosts share it on `shelves`."""
        self._directory = directory
        self._clock = clock
        self._embedder = embedder
        self._index: WordIndex = (
            index_factory.word_index()
            if index_factory is not None
            else SqliteWordIndex(directory / "index.db", shared=True)
        )
        self._index_factory = index_factory
        self._semantic_index: SemanticIndex | None = None
        self._cosine_weight = Weights().cosine

    def search(
        self, paths: Sequence[TimelinePath], query: Query, read_documents: ReadDocuments
    ) -> SearchResult:
        """What is nearest to the query, with all that was appended before the call."""
        for _ in range(_MAX_SEARCH_ATTEMPTS):
            try:
                self._catch_up(paths, read_documents)
                meanings = self._ranker(read_documents)
                weights = Weights(cosine=self._cosine_weight)
                return search(self._index, paths, query, ranker=meanings, weights=weights)
            except IndexLost as lost:
                last = lost
        raise last

    def _catch_up(self, paths: Sequence[TimelinePath], read_documents: ReadDocuments) -> None:
        standing = self._index.index_state({span.timeline for path in paths for span in path.spans})
        self._index.add_pages(
            _missing_pages(paths, standing.indexed, read_documents), standing.mark
        )

    def _create_semantic_index(self, embedder: Embedder) -> SemanticIndex:
        if self._index_factory is not None:
            return self._index_factory.semantic_index(embedder, self._clock)
        from ortet.memory.vectors.index import LocalSemanticIndex

        return LocalSemanticIndex(self._directory / "vectors.db", embedder, clock=self._clock)

    def _ranker(self, read_documents: ReadDocuments) -> Asked | None:
        if self._semantic_index is None and self._embedder is not None:
            from ortet.memory.embedders.base import find_embedder, require_package, trust_of

            try:
                require_package("numpy", "embed")  # which vectors import
                found = find_embedder(self._embedder)
            except Unsupported as missing:  # on this host; the words are there all the same
                return _UnavailableRanker(f"failed: {missing.message}")
            self._cosine_weight = trust_of(found)
            self._semantic_index = self._create_semantic_index(found)
        return (
            self._semantic_index.ranker(self._index, read_documents)
            if self._semantic_index is not None
            else None
        )

    def forget(
        self, texts: Iterable[str] | None = None, *, timelines: Collection[str] | None = None
    ) -> None:
        """These texts were erased, on these timelines; None: which ones is not known any more. The
        index is read from the journals again; to make every vector again would be dear."""
        self._index.forget(timelines)
        stored = self._vector_store()
        if stored is None:
            return
        with closing(stored) as file:
            if texts is None:
                file.empty()
            else:
                file.forget(text_hash(text) for text in texts)

    def _vector_store(self) -> VectorStore | None:
        """The vectors of all embedders, if there may be any."""
        if self._index_factory is not None:
            return self._index_factory.vector_store("")
        if not (self._directory / "vectors.db").exists():
            return None
        from ortet.memory.vectors.store import SqliteVectorStore

        return SqliteVectorStore(self._directory / "vectors.db", "")

    def close(self) -> None:
        self._index.close()
        if self._semantic_index is not None:
            self._semantic_index.close()


def _missing_pages(
    paths: Sequence[TimelinePath], indexed: dict[str, int], read_documents: ReadDocuments
) -> Iterator[IndexPage]:
    """What is not known yet."""
    for path in paths:
        for span in path.spans:
            known = indexed.get(span.timeline, 0)
            if known < span.upto:
                for upto, docs, gone in read_documents(span, max(known, span.after)):
                    yield IndexPage(span.timeline, known, upto, docs, gone)
                    known = indexed[span.timeline] = upto


class _UnavailableRanker:
    """Meanings that cannot be had."""

    def __init__(self, why: str) -> None:
        self._why = why

    def rank(
        self, spans: Sequence[EventSpan], tiers: Sequence[Tier], text: str, limit: int
    ) -> SemanticMatches:
        del spans, tiers, text, limit
        return SemanticMatches([], self._why)
