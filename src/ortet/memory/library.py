"""Everything that can be recalled in a store: the index of words, and the meanings beside it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path as Directory
from typing import TYPE_CHECKING

from ortet.errors import Unsupported
from ortet.ids import Clock
from ortet.memory.base import Meanings, Page, Shelves, VectorStore, WordIndex
from ortet.memory.lexical.index import Index, Lost, text_hash
from ortet.memory.lexical.scoring import Weights
from ortet.memory.lexical.search import Near, search
from ortet.memory.records import Answer, Doc, End, Path, Query, Span, Tier

if TYPE_CHECKING:
    from ortet.memory.embedders.base import Embedder
    from ortet.memory.lexical.search import Vectors as Asked

News = Callable[[Span, int], Iterator[tuple[int, list[Doc], list[End]]]]
"""Pages of a span behind an event: up to which event each is, and what is in it. It is also called
later, in another thread, for texts that have no vectors yet."""

_TRIES = 3


class Library:
    """Derived from the journals: what is lost here is read from them again."""

    def __init__(
        self,
        directory: Directory,
        clock: Clock,
        *,
        embedder: Embedder | str | None = None,
        shelves: Shelves | None = None,
    ) -> None:
        """In files of a directory, unless hosts share it on `shelves`."""
        self._directory = directory
        self._clock = clock
        self._embedder = embedder
        self._index: WordIndex = (
            shelves.words() if shelves is not None else Index(directory / "index.db", shared=True)
        )
        self._shelves = shelves
        self._vectors: Meanings | None = None
        self._trust = Weights().cosine

    def search(self, paths: Sequence[Path], query: Query, news: News) -> Answer:
        """What is nearest to the query, with all that was appended before the call."""
        for _ in range(_TRIES):
            try:
                self._catch_up(paths, news)
                meanings = self._meanings(news)
                weights = Weights(cosine=self._trust)
                return search(self._index, paths, query, vectors=meanings, weights=weights)
            except Lost as lost:
                last = lost
        raise last

    def _catch_up(self, paths: Sequence[Path], news: News) -> None:
        standing = self._index.standing({span.timeline for path in paths for span in path.spans})
        self._index.take(_behind(paths, standing.known, news), standing.mark)

    def _meant(self, embedder: Embedder) -> Meanings:
        if self._shelves is not None:
            return self._shelves.meanings(embedder, self._clock)
        from ortet.memory.vectors.index import Vectors

        return Vectors(self._directory / "vectors.db", embedder, clock=self._clock)

    def _meanings(self, news: News) -> Asked | None:
        if self._vectors is None and self._embedder is not None:
            from ortet.memory.embedders.base import find_embedder, need, trust_of

            try:
                need("numpy", "embed")  # which vectors import
                found = find_embedder(self._embedder)
            except Unsupported as missing:  # on this host; the words are there all the same
                return _Missing(f"failed: {missing.message}")
            self._trust = trust_of(found)
            self._vectors = self._meant(found)
        return self._vectors.over(self._index, news) if self._vectors is not None else None

    def forget(
        self, texts: Iterable[str] | None = None, *, timelines: Collection[str] | None = None
    ) -> None:
        """These texts were erased, on these timelines; None: which ones is not known any more. The
        index is read from the journals again; to make every vector again would be dear."""
        self._index.forget(timelines)
        stored = self._stored()
        if stored is None:
            return
        with closing(stored) as file:
            if texts is None:
                file.empty()
            else:
                file.forget(text_hash(text) for text in texts)

    def _stored(self) -> VectorStore | None:
        """The vectors of all embedders, if there may be any."""
        if self._shelves is not None:
            return self._shelves.vectors("")
        if not (self._directory / "vectors.db").exists():
            return None
        from ortet.memory.vectors.store import VectorFile

        return VectorFile(self._directory / "vectors.db", "")

    def close(self) -> None:
        self._index.close()
        if self._vectors is not None:
            self._vectors.close()


def _behind(paths: Sequence[Path], ends: dict[str, int], news: News) -> Iterator[Page]:
    """What is not known yet."""
    for path in paths:
        for span in path.spans:
            known = ends.get(span.timeline, 0)
            if known < span.upto:
                for upto, docs, gone in news(span, max(known, span.after)):
                    yield Page(span.timeline, known, upto, docs, gone)
                    known = ends[span.timeline] = upto


class _Missing:
    """Meanings that cannot be had."""

    def __init__(self, why: str) -> None:
        self._why = why

    def rank(self, spans: Sequence[Span], tiers: Sequence[Tier], text: str, limit: int) -> Near:  # noqa: ARG002
        return Near([], self._why)
