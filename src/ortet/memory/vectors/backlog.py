"""Backlog of texts without vectors, read from the journal in pages, newest first."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from ortet.memory.base import VectorStore
from ortet.memory.lexical.index import text_hash
from ortet.memory.records import EventSpan

if TYPE_CHECKING:
    from ortet.memory.library import ReadDocuments

_PAGE_EVENTS = 2000
"""Largest range of events in one page."""


class WantedText(NamedTuple):
    """A document by its position, and the function that reads it in any thread."""

    read_documents: ReadDocuments
    span: EventSpan
    seq: int


class EmbeddingBacklog:
    """Texts to embed, by hash, so that each text is embedded once. Thread-safe.

    The mark of the store tells if something was erased after a page was read. `_finished` holds
    finished texts: True if they have a vector, False if they never get one.
    """

    def __init__(self, store: VectorStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._wanted: dict[bytes, WantedText] = {}
        self._reading: dict[bytes, WantedText] = {}
        self._page: dict[bytes, str] = {}
        self._page_mark = b""
        self._deferred: set[bytes] = set()
        self._unusable: set[bytes] = set()
        self._finished: dict[bytes, bool] = {}

    def __bool__(self) -> bool:
        return bool(self._wanted or self._reading or self._page)

    def add(self, wants: Mapping[bytes, WantedText], *, retry_deferred: bool) -> None:
        """Add texts. `retry_deferred` allows texts that failed alone to be tried again."""
        with self._lock:
            if retry_deferred:
                self._deferred.difference_update(wants)
            busy = (self._reading, self._page, self._deferred, self._unusable)
            for digest, want in wants.items():
                if not any(digest in some for some in busy):
                    self._wanted[digest] = want

    def next_batch(self, count: int) -> tuple[bytes, dict[bytes, str]]:
        """Return the mark of the page and up to `count` of its texts."""
        if not self._page:
            self._read()
        with self._lock:
            return self._page_mark, dict(islice(self._page.items(), count))

    def mark_done(self, batch: Mapping[bytes, bool]) -> None:
        """Record for each text of a batch if its vector is usable.

        This process does not try unusable ones again.
        """
        with self._lock:
            for digest, fine in batch.items():
                self._page.pop(digest, None)
                if fine:
                    self._finished[digest] = True
                else:
                    self._unusable.add(digest)

    def mark_failed(self, batch: Mapping[bytes, str]) -> None:
        """Record that a batch failed. A text that fails alone is deferred."""
        with self._lock:
            if len(batch) == 1:
                for digest in batch:
                    self._page.pop(digest, None)
                    self._deferred.add(digest)

    def drop_page(self) -> None:
        """Discard the page after an erasure. Texts that are still needed are added again later."""
        with self._lock:
            self._page.clear()

    def take_finished(self) -> dict[bytes, bool]:
        """Return the texts finished since the last call."""
        with self._lock:
            made, self._finished = self._finished, {}
            return made

    def clear(self) -> None:
        with self._lock:
            self._wanted.clear()
            self._page.clear()

    def _read(self) -> None:
        with self._lock:
            chosen = self._reading = self._choose()
        try:
            mark, _ = self._store.state()
            known = self._store.get(chosen)
            texts = _texts([want for digest, want in chosen.items() if digest not in known])
        except BaseException:
            with self._lock:
                self._deferred.update(chosen)
                self._reading = {}
            raise
        with self._lock:
            self._reading = {}
            self._page_mark = mark
            for digest, want in chosen.items():
                text = texts.get(want.seq, "")
                if digest not in known and text.strip() and text_hash(text) == digest:
                    self._page[digest] = text
                else:  # erased since it was added, or without any text
                    self._finished[digest] = digest in known

    def _choose(self) -> dict[bytes, WantedText]:
        """Choose the newest texts, as long as they are close to each other."""
        chosen: dict[bytes, WantedText] = {}
        last: WantedText | None = None
        while self._wanted:
            digest, want = self._wanted.popitem()
            last = last or want
            if want.span != last.span or abs(want.seq - last.seq) >= _PAGE_EVENTS:
                self._wanted[digest] = want
                break
            chosen[digest] = want
        return chosen


def _texts(chosen: Sequence[WantedText]) -> dict[int, str]:
    """Return the texts by event number."""
    if not chosen:
        return {}
    seqs = {want.seq for want in chosen}
    news, span, _ = chosen[0]
    found: dict[int, str] = {}
    for upto, docs, _ in news(span, min(seqs) - 1):
        found.update((doc.seq, doc.text) for doc in docs if doc.seq in seqs)
        if upto >= max(seqs):
            break
    return found
