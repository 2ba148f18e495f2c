"""Vectors in memory, in the order of events: what can be seen is some slices, searched exactly."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ortet.memory.records import Span, Tier
from ortet.memory.vectors.coarse import Question, Rows, full

Array = NDArray[np.float32]
Exact = NDArray[np.float64]
Whole = NDArray[np.int64]

_CHUNK = 8192
"""Rows of a block at most: growing never copies more."""
_ABSENT = 0
_HERE = 1
_NONE = 2


class Near(NamedTuple):
    timeline: str
    seq: int
    cosine: float


class Line:
    """Documents of one tier of one timeline, with after < seq <= upto, in their order."""

    def __init__(self, after: int) -> None:
        self.after = self.upto = after
        self.seqs = array("q")
        self._here = bytearray()
        self._chunks: list[Rows] = []

    def add(self, seqs: Iterable[int], upto: int) -> None:
        """Documents behind the last, without their vectors."""
        self.seqs.extend(seqs)
        self._here.extend(bytes(len(self.seqs) - len(self._here)))
        self.upto = upto

    def put(self, seqs: Sequence[int], vectors: Rows | None) -> None:
        """Of documents, in order; None when they have no meaning to be found by."""
        wanted = np.array(seqs, np.int64)
        places = np.searchsorted(self._seqs(), wanted)
        fits = places < len(self.seqs)
        fits[fits] = self._seqs()[places[fits]] == wanted[fits]
        places = places[fits]
        if vectors is not None:
            vectors = vectors.only(fits)
            for number in np.unique(places // _CHUNK).tolist():
                of = places // _CHUNK == number
                at = places[of] % _CHUNK
                self._room_for(number, int(at.max()), vectors).put(at, vectors.only(of))
        np.frombuffer(self._here, np.uint8)[places] = _NONE if vectors is None else _HERE

    def rows(self, span: Span) -> range:
        return range(bisect_right(self.seqs, span.after), bisect_right(self.seqs, span.upto))

    def absent(self, rows: range) -> int:
        return self._here.count(_ABSENT, rows.start, rows.stop)

    def bounds(self, rows: range, question: Question) -> tuple[Array, Array]:
        """The least and the most each cosine may be; below any where there is no vector."""
        least, most = (np.full(len(rows), -2, np.float32) for _ in range(2))
        for number, at, place in self._parts(rows):
            some = self._chunks[number].only(at)
            to = slice(place - rows.start, place - rows.start + len(some.scale))
            question.bound(some, least[to], most[to])
        if self._here.count(_HERE, rows.start, rows.stop) < len(rows):
            here = np.frombuffer(self._here[rows.start : rows.stop], np.uint8)
            least[here != _HERE] = most[here != _HERE] = -2
        return least, most

    def cosines(self, rows: Whole, query: Exact) -> Exact:
        """Of rows in order, each on its own, so that what else is in memory changes no digit."""
        found = np.empty(len(rows), np.float64)
        for number in np.unique(rows // _CHUNK).tolist():
            of = rows // _CHUNK == number
            at = rows[of] % _CHUNK
            half, length, *_ = self._chunks[number]
            found[of] = cosines(half[at], length[at], query)
        return found

    def seqs_at(self, rows: Whole) -> list[int]:
        found: list[int] = self._seqs()[rows].tolist()
        return found

    @property
    def bytes(self) -> int:
        return sum(part.nbytes for chunk in self._chunks for part in chunk)

    def _seqs(self) -> Whole:
        """Not to be kept: nothing can be added as long as it is."""
        return np.frombuffer(self.seqs, np.int64)

    def _parts(self, rows: range) -> Iterator[tuple[int, slice, int]]:
        """Numbers and slices of chunks, and where each begins: some may have no room yet."""
        start = rows.start
        while start < rows.stop and start // _CHUNK < len(self._chunks):
            number, first = divmod(start, _CHUNK)
            stop = min(rows.stop, (number + 1) * _CHUNK)
            yield number, slice(first, first + stop - start), start
            start = stop

    def _room_for(self, number: int, at: int, like: Rows) -> Rows:
        while len(self._chunks) <= number:
            self._chunks.append(like.only(slice(0)))
        chunk = self._chunks[number]
        if at >= len(chunk.scale):
            known = len(self.seqs) - number * _CHUNK
            count = min(max(16, 2 * len(chunk.scale), known), _CHUNK)
            self._chunks[number] = chunk = chunk.grown(count)
        return chunk


class _Seen(NamedTuple):
    timeline: str
    line: Line
    rows: range


class Matrix:
    """Lines by timeline and tier. Not for several threads at once. Those that were not asked for
    lately are given up when all of them take more than `room` bytes."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._lines: dict[tuple[str, Tier], Line] = {}

    def line(self, span: Span, tier: Tier) -> Line:
        """The line for a span; what it lacks is behind its `upto`."""
        key = span.timeline, tier
        line = self._lines.pop(key, None)
        if line is None or line.after > span.after:
            line = Line(span.after)
        self._lines[key] = line  # now the one used last
        return line

    def put(self, timeline: str, tier: Tier, seqs: Sequence[int], vectors: Rows | None) -> None:
        """Of documents of a line, in order; None when they have none."""
        line = self._lines.get((timeline, tier))
        if line is not None and seqs:
            line.put(seqs, vectors)

    def shrink(self, spans: Sequence[Span]) -> None:
        """Gives up what is too much, but nothing of these spans."""
        needed = {span.timeline for span in spans}
        room = self._room - sum(line.bytes for line in self._lines.values())
        for key in [key for key in self._lines if key[0] not in needed]:
            if room >= 0:
                break
            room += self._lines.pop(key).bytes

    def seen(self, spans: Sequence[Span], tiers: Sequence[Tier]) -> list[_Seen]:
        """Rows of the spans, each once."""
        found = []
        for span in dict.fromkeys(spans):
            for tier in tiers:
                line = self._lines.get((span.timeline, tier))
                if line is not None and (rows := line.rows(span)):
                    found.append(_Seen(span.timeline, line, rows))
        return found


def cosines(half: NDArray[np.float16], length: Exact, query: Exact) -> Exact:
    """Of vectors as they are kept; the same for one, whatever else it stands beside."""
    products = full(half, length).astype(np.float64)
    products *= query
    found: Exact = products.sum(axis=1)
    return found


def nearest(seen: Sequence[_Seen], query: Array, limit: int) -> list[Near]:
    """The `limit` rows with the greatest cosine, the greatest first, then the latest.

    Whatever might be among them, by the bounds of its cosine, is computed, each row on its own: the
    same documents always have the same cosines and order, whatever else is in memory.
    """
    if not seen or limit < 1:
        return []
    question = Question(query)
    bounds = [one.line.bounds(one.rows, question) for one in seen]
    least, most = (np.concatenate(some) for some in zip(*bounds, strict=True))
    needed = -1.5
    if len(least) > limit:
        needed = max(needed, float(np.partition(least, len(least) - limit)[len(least) - limit]))
    chosen = np.flatnonzero(most >= needed)
    starts = np.cumsum([0, *(len(one.rows) for one in seen)])
    cuts = np.searchsorted(chosen, starts)
    found: list[Near] = []
    for number in np.flatnonzero(np.diff(cuts)).tolist():
        timeline, line, rows = seen[number]
        at = chosen[cuts[number] : cuts[number + 1]] - starts[number] + rows.start
        found += map(
            Near, repeat(timeline), line.seqs_at(at), line.cosines(at, question.exact).tolist()
        )
    found.sort(key=lambda near: (-near.cosine, -near.seq, near.timeline))
    return found[:limit]
