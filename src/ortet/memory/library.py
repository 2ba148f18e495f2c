"""The library of a store: the word index and the semantic index, searched together."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path as Directory
from typing import TYPE_CHECKING

from ortet.errors import Unsupported
from ortet.ids import Clock
from ortet.memory.base import (
    IndexFactory,
    IndexPage,
    SemanticIndex,
    SemanticMatches,
    VectorStore,
    WordIndex,
)
from ortet.memory.lexical.index import IndexLost, SqliteWordIndex, text_hash
from ortet.memory.lexical.scoring import Weights
from ortet.memory.lexical.search import search
from ortet.memory.records import (
    EventSpan,
    Query,
    ReadDocuments,
    SearchResult,
    Tier,
    TimelinePath,
)

if TYPE_CHECKING:
    from ortet.memory.base import SemanticRanker as Asked
    from ortet.memory.embedders.base import Embedder


_MAX_SEARCH_ATTEMPTS = 3


class Library:
    """Searches the memories of a store. Everything in it can be rebuilt from the journals."""

    def __init__(
        self,
        directory: Directory,
        clock: Clock,
        *,
        embedder: Embedder | str | None = None,
        index_factory: IndexFactory | None = None,
    ) -> None:
        """Create a library in files of `directory`, or in the index of `index_factory`."""
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
        """Return the best matches of a query.

        All events that were appended before the call are included.
        """
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
        state = self._index.index_state({span.timeline for path in paths for span in path.spans})
        self._index.add_pages(_missing_pages(paths, state.indexed, read_documents), state.mark)

    def _create_semantic_index(self, embedder: Embedder) -> SemanticIndex:
        if self._index_factory is not None:
            return self._index_factory.semantic_index(embedder, self._clock)
        from ortet.memory.vectors.index import LocalSemanticIndex

        return LocalSemanticIndex(self._directory / "vectors.db", embedder, clock=self._clock)

    def _ranker(self, read_documents: ReadDocuments) -> Asked | None:
        if self._semantic_index is None and self._embedder is not None:
            from ortet.memory.embedders.base import require_package, trust_of
            from ortet.memory.embedders.lookup import find_embedder

            try:
                require_package("numpy", "embed")  # needed by the vector modules
                embedder = find_embedder(self._embedder)
            except Unsupported as missing:  # words can still be searched on this host
                return _UnavailableRanker(f"failed: {missing.message}")
            self._cosine_weight = trust_of(embedder)
            self._semantic_index = self._create_semantic_index(embedder)
        return (
            self._semantic_index.ranker(self._index, read_documents)
            if self._semantic_index is not None
            else None
        )

    def forget(
        self, texts: Iterable[str] | None = None, *, timelines: Collection[str] | None = None
    ) -> None:
        """Remove erased texts from the index and the vectors.

        The index of the timelines is rebuilt later. Vectors of other texts are kept, because they
        are expensive.

        Args:
            texts: The erased texts. None means unknown: all vectors are deleted.
            timelines: The timelines of these texts. None means all.
        """
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
        """Return the vectors of all embedders, or None if there are none."""
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
    """Yield the pages that are not indexed yet."""
    for path in paths:
        for span in path.spans:
            known = indexed.get(span.timeline, 0)
            if known < span.upto:
                for upto, docs, gone in read_documents(span, max(known, span.after)):
                    yield IndexPage(span.timeline, known, upto, docs, gone)
                    known = indexed[span.timeline] = upto


class _UnavailableRanker:
    """Ranker that returns no matches, with the reason."""

    def __init__(self, why: str) -> None:
        self._why = why

    def rank(
        self, spans: Sequence[EventSpan], tiers: Sequence[Tier], text: str, limit: int
    ) -> SemanticMatches:
        del spans, tiers, text, limit
        return SemanticMatches([], self._why)
