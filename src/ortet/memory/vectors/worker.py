"""The only thread that calls an embedder, which may be slow, fail, hang or return nonsense."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ortet.errors import Invalid, OrtetError
from ortet.ids import Clock
from ortet.memory.base import VectorStore
from ortet.memory.embedders.base import Embedder
from ortet.memory.lexical.index import text_hash
from ortet.memory.records import EventSpan

if TYPE_CHECKING:
    from ortet.memory.embedders.base import Floats
    from ortet.memory.records import ReadDocuments


# Backlog of texts without vectors, read from the journal in pages, newest first.

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
            finished, self._finished = self._finished, {}
            return finished

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
    texts: dict[int, str] = {}
    for upto, docs, _ in news(span, min(seqs) - 1):
        texts.update((doc.seq, doc.text) for doc in docs if doc.seq in seqs)
        if upto >= max(seqs):
            break
    return texts


Array = NDArray[np.float32]
StoreVectors = Callable[[bytes, Mapping[bytes, Array]], bool]
"""Function that stores vectors by hash of text.

Its first argument is the mark from when the texts were read. It returns False if something was
erased since.
"""

STATUS_LATE = "late"
_FIRST_PAUSE_NS = 1_000_000_000
_MAX_PAUSE_NS = 300_000_000_000
_MIN_BATCH, _INITIAL_BATCH, _MAX_BATCH = 1, 16, 256  # after a failure, at the start, at most
_FAST_BATCH_SECONDS, _SLOW_BATCH_SECONDS = (
    0.05,
    0.2,
)  # below the first the batch grows, above the second it shrinks
_MAX_CACHED_QUERIES = 64  # number of query vectors that are kept
_MAX_WAITING_QUERIES = 4  # queries that are still computed although no caller waits for them


class RetryBackoff:
    """Delays retries after a failure. The delay doubles with each further failure."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since = 0
        self._length = 0
        self.reason = ""

    def is_over(self) -> bool:
        """Return True if the next attempt is allowed."""
        passed = self._clock.now_ns() - self._since
        return not self.reason or not 0 <= passed < self._length  # the clock may have been set back

    def begin(self, why: str) -> None:
        """Start or prolong the delay after a failure."""
        self.reason = why
        self._since = self._clock.now_ns()
        self._length = min(max(2 * self._length, _FIRST_PAUSE_NS), _MAX_PAUSE_NS)

    def end(self) -> None:
        """End the delay after a success."""
        self.reason = ""
        self._length = 0


class QueryEmbedding(NamedTuple):
    """The vector of a query, or the reason why there is none: "late" or "failed: REASON"."""

    vector: Array | None
    status: str = ""


class EmbeddingWorker:
    """Embeds queries first, then the backlog, newest texts first.

    The thread runs only while there is work. Errors of the embedder never raise here.
    """

    def __init__(
        self,
        embedder: Embedder,
        backlog: EmbeddingBacklog,
        store_vectors: StoreVectors,
        *,
        clock: Clock,
    ) -> None:
        self._embedder = embedder
        self._backlog = backlog
        self._store_vectors = store_vectors
        self.size = int(getattr(embedder, "size", None) or 0)
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._call_started = 0.0  # start time of the call that has not returned; 0.0: none
        self._queries: dict[bytes, str] = {}
        self._query_vectors: dict[bytes, Array] = {}
        self._query_backoff = RetryBackoff(clock)
        self._backlog_backoff = RetryBackoff(clock)
        self._batch_size = _INITIAL_BATCH
        self._closed = False

    @property
    def failure_reason(self) -> str:
        """Reason why the last texts have no vectors, or ""."""
        return self._query_backoff.reason or self._backlog_backoff.reason

    def embed_query(self, digest: bytes, text: str, timeout: float) -> QueryEmbedding:
        """Return the vector of a query. Wait at most `timeout` seconds.

        A vector that arrives later is kept for the next call.
        """
        with self._changed:
            if digest not in self._query_vectors:
                if not self._query_backoff.is_over():
                    return QueryEmbedding(None, f"failed: {self._query_backoff.reason}")
                self._queries[digest] = text
                while len(self._queries) > _MAX_WAITING_QUERIES:
                    del self._queries[next(iter(self._queries))]
                self._start()
                self._changed.wait_for(
                    lambda: digest not in self._queries, self._remaining_wait(timeout)
                )
            if digest in self._query_vectors:
                return QueryEmbedding(self._query_vectors[digest])
            failed = digest not in self._queries and self._query_backoff.reason
            return QueryEmbedding(None, f"failed: {failed}" if failed else STATUS_LATE)

    def fill(self, wants: Mapping[bytes, WantedText], timeout: float) -> None:
        """Embed texts. Wait until all were tried, at most `timeout` seconds."""
        with self._changed:
            self._backlog.add(wants, retry_deferred=self._backlog_backoff.is_over())
            self._start()
            self._changed.wait_for(lambda: self._thread is None, self._remaining_wait(timeout))

    def set_size(self, size: int) -> None:
        """Set the size of the stored vectors; 0 if there are none."""
        self.size = size or self.size

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._queries.clear()
            self._backlog.clear()
            self._changed.notify_all()

    def _remaining_wait(self, seconds: float) -> float:
        """Return the time to wait: 0 if the running call already took longer."""
        late = self._call_started and time.monotonic() - self._call_started > seconds
        return 0 if late or self._closed else seconds

    def _start(self) -> None:
        if self._thread is None and self._next_task() is not None:
            self._thread = threading.Thread(target=self._run, name="ortet-embedder", daemon=True)
            self._thread.start()

    def _next_task(self) -> Callable[[], None] | None:
        if self._closed or not self._query_backoff.is_over():
            return None
        if self._queries:
            return self._embed_next_query
        if self._backlog and self._backlog_backoff.is_over():
            return self._embed_next_batch
        return None

    def _run(self) -> None:
        while True:
            with self._changed:
                do = self._next_task()
                if do is None:
                    self._thread = None
                    self._changed.notify_all()
                    return
            do()

    def _embed_next_query(self) -> None:
        with self._changed:
            digest, text = next(reversed(self._queries.items()))
        try:
            vectors, good = self._embed([text])
            if not good.all():
                raise _nonsense(self._embedder, "a vector that is zero or not of numbers")
        except BaseException as error:
            with self._changed:
                self._query_backoff.begin(_reason(error))
                self._queries.clear()
                self._changed.notify_all()
            return
        with self._changed:
            self._query_backoff.end()
            self._queries.pop(digest, None)
            while len(self._query_vectors) >= _MAX_CACHED_QUERIES:
                del self._query_vectors[next(iter(self._query_vectors))]
            self._query_vectors[digest] = vectors[0]
            self._changed.notify_all()

    def _embed_next_batch(self) -> None:
        batch: dict[bytes, str] = {}
        try:
            mark, batch = self._backlog.next_batch(self._batch_size)
            if not batch:
                return
            began = time.monotonic()
            vectors, good = self._embed(list(batch.values()))
            took = time.monotonic() - began
            if not good.any():
                raise _nonsense(self._embedder, "vectors that are zero or not of numbers")
            rows = zip(batch, vectors, good, strict=True)
            if not self._store_vectors(
                mark, {digest: vector for digest, vector, fine in rows if fine}
            ):
                self._backlog.drop_page()
                return
        except BaseException as error:
            with self._changed:
                self._backlog_backoff.begin(_reason(error))
                self._batch_size = _MIN_BATCH  # perhaps a single text cannot be embedded
            self._backlog.mark_failed(batch)
            return
        self._backlog.mark_done(dict(zip(batch, good.tolist(), strict=True)))
        with self._changed:
            self._backlog_backoff.end()
            if took < _FAST_BATCH_SECONDS:
                self._batch_size = min(2 * self._batch_size, _MAX_BATCH)
            elif took > _SLOW_BATCH_SECONDS:
                self._batch_size = max(self._batch_size // 2, _MIN_BATCH)

    def _embed(self, texts: Sequence[str]) -> tuple[Array, NDArray[np.bool_]]:
        self._call_started = time.monotonic()
        try:
            answer = self._embedder.embed(texts)
        finally:
            self._call_started = 0.0
        vectors, good = normalise_vectors(self._embedder, answer, len(texts), self.size)
        self.size = vectors.shape[1]
        return vectors, good


def normalise_vectors(
    embedder: Embedder, vectors: Floats, count: int, size: int
) -> tuple[Array, NDArray[np.bool_]]:
    """Return unit vectors, and which of them are usable.

    Raises:
        Invalid: If the embedder returned no usable array.
    """
    try:
        exact = np.asarray(vectors, np.float64)
    except (TypeError, ValueError) as error:
        raise _nonsense(embedder, f"what are no vectors of one size ({error})") from error
    if exact.ndim != 2 or len(exact) != count or not exact.shape[1]:
        raise _nonsense(embedder, f"an array of shape {exact.shape} for {count} texts")
    if size and exact.shape[1] != size:
        raise _nonsense(
            embedder,
            f"{exact.shape[1]} numbers a text, where {size} are expected: a model that changed "
            "needs another name",
        )
    with np.errstate(all="ignore"):
        # avoids an overflow of the squares
        exact = exact / np.abs(exact).max(axis=1, keepdims=True)
        exact /= np.sqrt(np.square(exact).sum(axis=1, keepdims=True))
        good: NDArray[np.bool_] = np.isfinite(exact).all(axis=1)
    return exact.astype(np.float32), good


def _nonsense(embedder: Embedder, what: str) -> Invalid:
    return Invalid("bad_vectors", f"the embedder {embedder.name} gave {what}")


def _reason(error: BaseException) -> str:
    if isinstance(error, OrtetError):
        return error.message
    return f"{type(error).__name__}: {error}"[:300]
