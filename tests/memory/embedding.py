"""Embedders for tests, and documents of a timeline without a journal."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path as Directory

from blake3 import blake3
from tests.fixtures.waiting import WAIT

from ortet.memory.base import SemanticMatches
from ortet.memory.lexical.index import SqliteWordIndex
from ortet.memory.records import TIERS, EventSpan, FactEnd, MemoryDocument
from ortet.memory.vectors.index import LocalSemanticIndex

"""Seconds that no test takes: whoever waits so long hangs."""


class Hashing:
    """A vector of a text's hash: the same text has the same one. Counts what it is asked for."""

    def __init__(self, name: str = "hashing", size: int = 8) -> None:
        self.name = name
        self.size = size
        self.texts: list[str] = []

    def embed(self, texts: Sequence[str], /) -> list[list[float]]:
        self.texts += texts
        return [[byte - 127.5 for byte in blake3(t.encode()).digest(self.size)] for t in texts]


class Gated(Hashing):
    """Answers when it is let, `reached` when it is asked."""

    def __init__(self, name: str = "gated") -> None:
        super().__init__(name)
        self.open = threading.Event()
        self.reached = threading.Event()

    def embed(self, texts: Sequence[str], /) -> list[list[float]]:
        self.reached.set()
        assert self.open.wait(WAIT)
        return super().embed(texts)


class Failing(Hashing):
    """Raises while `error` is set; counts its calls."""

    def __init__(self) -> None:
        super().__init__("failing")
        self.error: BaseException | None = OSError("no such host")
        self.calls = 0

    def embed(self, texts: Sequence[str], /) -> list[list[float]]:
        self.calls += 1
        if self.error is not None:
            raise self.error
        return super().embed(texts)


class Corpus:
    """Timelines of documents, indexed, and asked as a library asks."""

    def __init__(self, directory: Directory) -> None:
        self.directory = directory
        self.index = SqliteWordIndex(directory / "index.db")
        self.docs: dict[str, list[MemoryDocument]] = {}
        self.read: list[tuple[EventSpan, int]] = []

    def tell(self, timeline: str, *texts: str) -> None:
        docs = self.docs.setdefault(timeline, [])
        first = len(docs) + 1
        new = [MemoryDocument(n, TIERS[n % 3], text, n) for n, text in enumerate(texts, first)]
        docs += new
        self.index.add(timeline, first - 1, len(docs), new, [])

    def span(self, timeline: str, upto: int = 0, after: int = 0) -> EventSpan:
        return EventSpan(timeline, after, upto or len(self.docs[timeline]))

    def news(
        self, span: EventSpan, after: int
    ) -> Iterator[tuple[int, list[MemoryDocument], list[FactEnd]]]:
        self.read.append((span, after))
        while after < span.upto:
            upto = min(after + 50, span.upto)
            yield upto, [d for d in self.docs[span.timeline] if after < d.seq <= upto], []
            after = upto

    def ask(
        self, vectors: LocalSemanticIndex, text: str, *spans: EventSpan, limit: int = 10
    ) -> SemanticMatches:
        asked = vectors.ranker(self.index, self.news)
        return asked.rank(spans or [self.span(name) for name in self.docs], TIERS, text, limit)
