"""Memories by their meaning: vectors of all that can be seen, made when they are first needed.

What a text means is asked once: vectors are kept in a file by embedder and hash of text, so that a
fork, a restore or an index made anew finds them there. Half precision is kept (it moves a cosine
by about 1e-4, and takes half the space); bytes are searched, see `coarse`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ortet._util.fork_safety import begin_in_child
from ortet.errors import OrtetError
from ortet.ids import Clock, SystemClock
from ortet.memory.base import VectorStore, WordIndex
from ortet.memory.embedders.base import Embedder
from ortet.memory.lexical.index import Lost, text_hash
from ortet.memory.lexical.index_file import lost
from ortet.memory.lexical.search import Near
from ortet.memory.records import Span, Tier
from ortet.memory.vectors.backlog import Backlog, Want
from ortet.memory.vectors.coarse import Rows, rows_of
from ortet.memory.vectors.matrix import Matrix, nearest
from ortet.memory.vectors.store import VectorFile
from ortet.memory.vectors.worker import Filler

if TYPE_CHECKING:
    from ortet.memory.library import News

Array = NDArray[np.float32]
_PART = 4096  # vectors read at once


class Vectors:
    """All that one embedder has made, for any thread; a child of fork(2) begins with what is in
    the file.

    A question is waited for as long as `patience`, texts that have no vectors yet as long as
    `allowance`, both in seconds; the rest of them is made in the background. Vectors of lines
    that were not asked for lately are dropped from memory above `room` bytes.
    """

    def __init__(
        self,
        path: Path | VectorStore,
        embedder: Embedder,
        *,
        clock: Clock | None = None,
        allowance: float = 0.2,
        patience: float = 1.0,
        room: int = 256 << 20,
    ) -> None:
        self._embedder = embedder
        self._clock = clock or SystemClock()
        self._allowance = allowance
        self._patience = patience
        self._room = room
        self._file = VectorFile(path, embedder.name) if isinstance(path, Path) else path
        self._begin()
        begin_in_child(self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()  # of what is in memory; never held while texts are embedded
        self._mark = b""
        self._matrix = Matrix(self._room)
        self._absent: dict[bytes, list[tuple[Span, Tier, int]]] = {}
        self._backlog = Backlog(self._file)
        self._filler = Filler(self._embedder, self._backlog, self._keep, clock=self._clock)

    def over(self, index: WordIndex, news: News) -> Asked:
        """To be searched with, for one question: what the index has, as far as `news` reads it."""
        return Asked(self, index, news)

    def rank(
        self,
        index: WordIndex,
        news: News,
        spans: Sequence[Span],
        *,
        tiers: Sequence[Tier],
        text: str,
        limit: int,
    ) -> Near:
        """Raises Lost when the index lacks some of the spans; of itself, nothing."""
        try:
            with self._lock:
                self._look()
            query = self._filler.ask(text_hash(text), text, self._patience)
            with self._lock:
                wants = self._cover(index, news, spans, tiers)
            self._filler.fill(wants, self._allowance)
            if query.vector is None:
                return Near([], query.status)
            if len(query.vector) != self._filler.size:
                return Near([], "late")  # another process began with vectors of another size
            with self._lock:
                self._absorb()
                return self._nearest(spans, tiers, query.vector, limit)
        except Lost:
            raise
        except OrtetError as error:
            return Near([], f"failed: {error.message}")

    def fill(
        self,
        index: WordIndex,
        news: News,
        spans: Sequence[Span],
        tiers: Sequence[Tier],
        timeout: float,
    ) -> bool:
        """Whether all there is has a vector, after so many seconds at most."""
        with self._lock:
            wants = self._cover(index, news, spans, tiers)
        self._filler.fill(wants, timeout)
        with self._lock:
            self._absorb()
            return not any(one.line.absent(one.rows) for one in self._matrix.seen(spans, tiers))

    def forget(self, hashes: Iterable[bytes]) -> int:
        """Takes the vectors of erased texts out of the file, and of every process. Erase first."""
        return self._file.forget(hashes)

    def prune(self) -> int:
        """Takes out what other embedders made. Returns how many vectors."""
        return self._file.prune()

    def drop(self) -> None:
        """Takes out everything."""
        self._file.empty()

    def close(self) -> None:
        self._filler.close()
        self._file.close()

    def _cover(
        self, index: WordIndex, news: News, spans: Sequence[Span], tiers: Sequence[Tier]
    ) -> dict[bytes, Want]:
        """Takes in what the spans have more than before; returns which texts are to be embedded,
        the oldest first."""
        self._look()
        self._absorb()
        wants: dict[bytes, Want] = {}
        for span in spans:
            absent: dict[int, bytes] = {}
            for tier in tiers:
                line = self._matrix.line(span, tier)
                if line.upto < span.upto:
                    found = _hashes(index, span, tier, line.upto)
                    line.add((seq for seq, _ in found), span.upto)
                    for start in range(0, len(found), _PART):
                        for seq, digest in self._load(span, tier, found[start : start + _PART]):
                            self._absent.setdefault(digest, []).append((span, tier, seq))
                            absent[seq] = digest
            for seq in sorted(absent):  # a text that was said again stands where it was said last
                wants.pop(absent[seq], None)
                wants[absent[seq]] = Want(news, span, seq)
        self._matrix.shrink(spans)
        if not self._backlog and self._absent:
            wants = self._wanted_still(news, spans, wants) | wants
        return wants

    def _look(self) -> None:
        """Whether the file still is as it was known to be."""
        mark, size = self._file.state()
        if mark != self._mark:  # something was taken out, perhaps by another process
            self._mark, self._matrix = mark, Matrix(self._room)
            self._absent.clear()
        self._filler.expect(size)

    def _load(
        self, span: Span, tier: Tier, found: Sequence[tuple[int, bytes]]
    ) -> list[tuple[int, bytes]]:
        """Puts what the file has into its rows; returns what it has not."""
        places, vectors = self._vectors(digest for _, digest in found)
        here = [(seq, places[digest]) for seq, digest in found if digest in places]
        if vectors is not None:
            some = vectors.only([place for _, place in here])
            self._matrix.put(span.timeline, tier, [seq for seq, _ in here], some)
        return [(seq, digest) for seq, digest in found if digest not in places]

    def _wanted_still(
        self, news: News, spans: Sequence[Span], new: Mapping[bytes, Want]
    ) -> dict[bytes, Want]:
        """What was tried in vain, with who can read it now."""
        ends = {span.timeline: span for span in spans}
        wants: dict[bytes, Want] = {}
        for digest, places in self._absent.items():
            for span, _, seq in places if digest not in new else ():
                now = ends.get(span.timeline)
                if now is not None and now.after < seq <= now.upto:
                    wants[digest] = Want(news, now, seq)
                    break
        return dict(sorted(wants.items(), key=lambda item: item[1].seq))

    def _absorb(self) -> None:
        made = self._backlog.made()
        places, vectors = self._vectors(digest for digest, fine in made.items() if fine)
        for digest, fine in made.items():
            if not fine or digest in places:
                some = vectors.only([places[digest]]) if fine and vectors is not None else None
                for span, tier, seq in self._absent.pop(digest, ()):
                    self._matrix.put(span.timeline, tier, [seq], some)

    def _vectors(self, hashes: Iterable[bytes]) -> tuple[dict[bytes, int], Rows | None]:
        """Those that the file has, and at which row each is."""
        raw = self._file.get(hashes)
        if not raw:
            return {}, None
        size = max(map(len, raw.values()))
        made = np.frombuffer(b"".join(one.ljust(size) for one in raw.values()), np.float16)
        half = made.reshape(len(raw), -1)
        length = np.sqrt(np.square(half, dtype=np.float64).sum(axis=1))
        if not (np.abs(length - 1) < 0.01).all():  # what was kept had length 1
            self._file.empty()
            return {}, None
        return {digest: place for place, digest in enumerate(raw)}, rows_of(half, length)

    def _keep(self, mark: bytes, made: Mapping[bytes, Array]) -> bool:
        size = len(next(iter(made.values())))
        rows = [(digest, vector.astype(np.float16).tobytes()) for digest, vector in made.items()]
        return self._file.put(mark, size, rows)

    def _nearest(
        self, spans: Sequence[Span], tiers: Sequence[Tier], query: Array, limit: int
    ) -> Near:
        seen = self._matrix.seen(spans, tiers)
        absent = sum(one.line.absent(one.rows) for one in seen)
        why = self._filler.why
        if absent and absent == sum(len(one.rows) for one in seen):
            return Near([], f"failed: {why}" if why else "late")
        found = nearest(seen, query, limit)
        return Near(
            [(one.timeline, one.seq, one.cosine) for one in found], "some" if absent else "all"
        )


class Asked:
    """What a search asks: `ortet.memory.lexical.search.Vectors`."""

    def __init__(self, vectors: Vectors, index: WordIndex, news: News) -> None:
        self._vectors = vectors
        self._index = index
        self._news = news

    def rank(self, spans: Sequence[Span], tiers: Sequence[Tier], text: str, limit: int) -> Near:
        return self._vectors.rank(
            self._index, self._news, spans, tiers=tiers, text=text, limit=limit
        )


def _hashes(index: WordIndex, span: Span, tier: Tier, after: int) -> list[tuple[int, bytes]]:
    with index.reading() as lookup:
        number, known = lookup.timeline(span.timeline)
        if known < span.upto:
            raise lost(f"timeline {span.timeline} is in the index of memories only up to {known}")
        return lookup.hashes(number, [tier], after, span.upto)
