"""Vectors in memory, in the order of events: what can be seen is some slices, searched exactly."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ortet.memory.records import Span, Tier

Array = NDArray[np.float32]

_CHUNK = 8192
"""Rows of a block at most: growing never copies more, and a product of so many is fastest."""
_ALONE = 32_768
"""Numbers of a matrix that BLAS does not share out to threads."""
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
        self._chunks: list[Array] = []

    def add(self, seqs: Iterable[int], upto: int) -> None:
        """Documents behind the last, without their vectors."""
        self.seqs.extend(seqs)
        self._here.extend(bytes(len(self.seqs) - len(self._here)))
        self.upto = upto

    def put(self, seq: int, vector: Array | None) -> None:
        """Of a document; None when it has no meaning to be found by."""
        row = bisect_left(self.seqs, seq)
        if row < len(self.seqs) and self.seqs[row] == seq:
            if vector is not None:
                self._room_for(row, len(vector))[row % _CHUNK] = vector
            self._here[row] = _NONE if vector is None else _HERE

    def rows(self, span: Span) -> range:
        return range(bisect_right(self.seqs, span.after), bisect_right(self.seqs, span.upto))

    def absent(self, rows: range) -> int:
        return self._here.count(_ABSENT, rows.start, rows.stop)

    def cosines(self, rows: range, query: Array) -> Array:
        """Below any cosine where there is no vector."""
        found = np.empty(len(rows), np.float32)
        at = 0
        for part, count in self._parts(rows):
            _products(part, query, found[at : at + len(part)])
            at += count
        if self._here.count(_HERE, rows.start, rows.stop) < len(rows):
            here = np.frombuffer(self._here[rows.start : rows.stop], np.uint8)
            found[here != _HERE] = -2
        return found

    def row(self, row: int) -> Array:
        found: Array = self._chunks[row // _CHUNK][row % _CHUNK]
        return found

    @property
    def bytes(self) -> int:
        return sum(chunk.nbytes for chunk in self._chunks)

    def _parts(self, rows: range) -> Iterator[tuple[Array, int]]:
        """Slices of chunks, and how many rows each stands for: some may have no room yet."""
        start = rows.start
        while start < rows.stop and start // _CHUNK < len(self._chunks):
            stop = min(rows.stop, (start // _CHUNK + 1) * _CHUNK)
            first = start % _CHUNK
            yield self._chunks[start // _CHUNK][first : first + stop - start], stop - start
            start = stop

    def _room_for(self, row: int, size: int) -> Array:
        number, at = divmod(row, _CHUNK)
        while len(self._chunks) <= number:
            self._chunks.append(np.zeros((0, size), np.float32))
        chunk = self._chunks[number]
        if at >= len(chunk):
            known = len(self.seqs) - number * _CHUNK
            grown = np.zeros((min(max(16, 2 * len(chunk), known), _CHUNK), size), np.float32)
            grown[: len(chunk)] = chunk
            self._chunks[number] = chunk = grown
        return chunk


def _products(rows: Array, query: Array, out: Array) -> None:
    """Of each row. In small groups, each of which BLAS does in this thread: threads that wait for
    one another on a busy host took 14 to 95 ms for 100 000 rows of 256, this takes 4 to 5."""
    size = len(query)
    group = max(1, _ALONE // size)
    whole = len(rows) // group * group
    if whole:
        np.matmul(rows[:whole].reshape(-1, group, size), query, out=out[:whole].reshape(-1, group))
    if whole < len(rows):
        np.matmul(rows[whole:], query, out=out[whole:])


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

    def put(self, timeline: str, seq: int, tier: Tier, vector: Array | None) -> None:
        line = self._lines.get((timeline, tier))
        if line is not None:
            line.put(seq, vector)

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


def nearest(seen: Sequence[_Seen], query: Array, limit: int) -> list[Near]:
    """The `limit` rows with the greatest cosine, the greatest first, then the latest.

    The products of BLAS depend, in their last digits, on where in a matrix a row stands. They only
    choose: whatever might be among the first is computed again, each row on its own, so that the
    same documents always have the same cosines and order, whatever else is in memory.
    """
    if not seen or limit < 1:
        return []
    cosines = np.concatenate([one.line.cosines(one.rows, query) for one in seen])
    least = -1.5
    if len(cosines) > limit:
        kth = np.partition(cosines, len(cosines) - limit)[len(cosines) - limit]
        least = max(least, float(kth) - len(query) * 1.2e-7)  # twice the error of a product
    chosen = np.flatnonzero(cosines >= least)
    starts = np.cumsum([0, *(len(one.rows) for one in seen)])
    of = np.searchsorted(starts, chosen, side="right") - 1
    exact = query.astype(np.float64)
    found: list[Near] = []
    for begin in range(0, len(chosen), _CHUNK):  # a thousand times the same text is possible
        places = [
            (seen[one], seen[one].rows[int(at - starts[one])])
            for one, at in zip(
                of[begin : begin + _CHUNK], chosen[begin : begin + _CHUNK], strict=True
            )
        ]
        rows: NDArray[Any] = np.array([one.line.row(row) for one, row in places], np.float64)
        rows *= exact
        found += [
            Near(one.timeline, one.line.seqs[row], cosine)
            for (one, row), cosine in zip(places, rows.sum(axis=1).tolist(), strict=True)
        ]
    found.sort(key=lambda near: (-near.cosine, -near.seq, near.timeline))
    return found[:limit]
