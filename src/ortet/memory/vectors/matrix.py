"""Vectors in memory, in event order. Visible documents are slices that are searched exactly."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ortet.memory.records import EventSpan, Tier

# Vectors quantised to single bytes, with exact error bounds of their cosines.
#
# A full scan is limited by memory bandwidth. One byte per number needs a quarter of it. The bounds
# select the few rows that may be nearest, and never miss one. Exact cosines are computed only for
# those.

Array = NDArray[np.float32]
RowSelector = Sequence[int] | slice | NDArray[np.int64] | NDArray[np.bool_]

_SINGLE_THREAD_ELEMENTS = 32_768
"""Size of a matrix that BLAS does not split over threads. Threads would wait for each other."""
_GROUPS_PER_BLOCK = 8
"""Number of such matrices converted to floats at a time, so that they stay in the CPU cache."""
_ROUNDING_ERROR = 1.2e-7
"""Twice the rounding error of a float: the error that each step of a sum can add."""


class QuantisedVectors(NamedTuple):
    """Unit vectors in half precision with their real length, and quantised to bytes.

    A quantised row times `scale` gives each cosine with an error of at most `error`.
    """

    half: NDArray[np.float16]
    length: NDArray[np.float64]
    quantised: NDArray[np.int8]
    scale: Array
    error: Array

    def select(self, selector: RowSelector) -> QuantisedVectors:
        return QuantisedVectors._make(part[selector] for part in self)

    def put(self, target: RowSelector, rows: QuantisedVectors) -> None:
        (
            self.half[target],
            self.length[target],
            self.quantised[target],
            self.scale[target],
            self.error[target],
        ) = rows

    def with_capacity(self, count: int) -> QuantisedVectors:
        """Return a copy with room for `count` rows."""
        more = QuantisedVectors._make(
            np.zeros((count, *part.shape[1:]), part.dtype) for part in self
        )
        more.put(slice(len(self.scale)), self)
        return more


def quantise(half: NDArray[np.float16], length: NDArray[np.float64]) -> QuantisedVectors:
    """Quantise vectors to bytes, with the error bound of each row."""
    exact = to_float32(half, length)
    scale = np.abs(exact).max(axis=1) / np.float32(127)
    small = np.rint(exact / scale[:, None])
    exact -= small * scale[:, None]
    # Cauchy-Schwarz bound, slightly enlarged for rounding and for the length of the query.
    error = np.sqrt(np.square(exact).sum(axis=1)) * np.float32(1.001)
    error += np.float32((half.shape[1] + 16) * _ROUNDING_ERROR)
    return QuantisedVectors(half, length, small.astype(np.int8), scale, error)


def to_float32(half: NDArray[np.float16], length: NDArray[np.float64]) -> Array:
    """Return the vectors in single precision. Each row is independent of the others."""
    rows = half.astype(np.float32)
    rows /= length[:, None]
    return rows


class QueryVector:
    """A query vector that is compared with rows."""

    def __init__(self, vector: Array) -> None:
        self.exact = vector.astype(np.float64)
        self._vector = vector
        self._group = max(1, _SINGLE_THREAD_ELEMENTS // len(vector))
        self._block: Array = np.empty((_GROUPS_PER_BLOCK * self._group, len(vector)), np.float32)

    def bound_cosines(self, rows: QuantisedVectors, lower: Array, upper: Array) -> None:
        """Write the lower and the upper bound of the cosine of each row."""
        for start in range(0, len(upper), len(self._block)):
            part = rows.quantised[start : start + len(self._block)]
            floats = self._block[: len(part)]
            floats[...] = part
            _products(floats, self._vector, self._group, upper[start : start + len(part)])
        upper *= rows.scale
        np.subtract(upper, rows.error, out=lower)
        upper += rows.error


def _products(rows: Array, query: Array, group: int, out: Array) -> None:
    whole = len(rows) // group * group
    if whole:
        shape = -1, group, len(query)
        np.matmul(rows[:whole].reshape(shape), query, out=out[:whole].reshape(-1, group))
    if whole < len(rows):
        np.matmul(rows[whole:], query, out=out[whole:])


Float64Array = NDArray[np.float64]
Int64Array = NDArray[np.int64]

_CHUNK_ROWS = 8192
"""Largest number of rows of a chunk. Growing never copies more."""
_VECTOR_MISSING = 0
_VECTOR_PRESENT = 1
_NO_VECTOR = 2


class NearestDocument(NamedTuple):
    """A document and its cosine."""

    timeline: str
    seq: int
    cosine: float


class TierVectors:
    """Vectors of one tier of one timeline, for events after < seq <= upto, in order."""

    def __init__(self, after: int) -> None:
        self.after = self.upto = after
        self.seqs = array("q")
        self._vector_states = bytearray()
        self._chunks: list[QuantisedVectors] = []

    def add(self, seqs: Iterable[int], upto: int) -> None:
        """Append documents without vectors."""
        self.seqs.extend(seqs)
        self._vector_states.extend(bytes(len(self.seqs) - len(self._vector_states)))
        self.upto = upto

    def put(self, seqs: Sequence[int], vectors: QuantisedVectors | None) -> None:
        """Set the vectors of documents, in order. None means that they never get one."""
        wanted = np.array(seqs, np.int64)
        places = np.searchsorted(self._seqs(), wanted)
        fits = places < len(self.seqs)
        fits[fits] = self._seqs()[places[fits]] == wanted[fits]
        places = places[fits]
        if vectors is not None:
            vectors = vectors.select(fits)
            for number in np.unique(places // _CHUNK_ROWS).tolist():
                of = places // _CHUNK_ROWS == number
                chunk_rows = places[of] % _CHUNK_ROWS
                self._grown_chunk(number, int(chunk_rows.max()), vectors).put(
                    chunk_rows, vectors.select(of)
                )
        np.frombuffer(self._vector_states, np.uint8)[places] = (
            _NO_VECTOR if vectors is None else _VECTOR_PRESENT
        )

    def rows_in(self, span: EventSpan) -> range:
        """Return the rows of the documents in a span."""
        return range(bisect_right(self.seqs, span.after), bisect_right(self.seqs, span.upto))

    def count_missing(self, rows: range) -> int:
        """Return the number of rows whose vector is still missing."""
        return self._vector_states.count(_VECTOR_MISSING, rows.start, rows.stop)

    def cosine_bounds(self, rows: range, question: QueryVector) -> tuple[Array, Array]:
        """Return lower and upper bounds of the cosines; -2 for rows without a vector."""
        least, most = (np.full(len(rows), -2, np.float32) for _ in range(2))
        for number, at, place in self._parts(rows):
            some = self._chunks[number].select(at)
            to = slice(place - rows.start, place - rows.start + len(some.scale))
            question.bound_cosines(some, least[to], most[to])
        if self._vector_states.count(_VECTOR_PRESENT, rows.start, rows.stop) < len(rows):
            here = np.frombuffer(self._vector_states[rows.start : rows.stop], np.uint8)
            least[here != _VECTOR_PRESENT] = most[here != _VECTOR_PRESENT] = -2
        return least, most

    def cosines(self, rows: Int64Array, query: Float64Array) -> Float64Array:
        """Return exact cosines. Each row is computed alone, so that other rows change no digit."""
        result = np.empty(len(rows), np.float64)
        for number in np.unique(rows // _CHUNK_ROWS).tolist():
            of = rows // _CHUNK_ROWS == number
            chunk_rows = rows[of] % _CHUNK_ROWS
            half, length, *_ = self._chunks[number]
            result[of] = cosines(half[chunk_rows], length[chunk_rows], query)
        return result

    def seqs_at(self, rows: Int64Array) -> list[int]:
        seqs: list[int] = self._seqs()[rows].tolist()
        return seqs

    @property
    def size_bytes(self) -> int:
        return sum(part.nbytes for chunk in self._chunks for part in chunk)

    def _seqs(self) -> Int64Array:
        """Return a view of `seqs`. Do not keep it: `seqs` cannot grow while it exists."""
        return np.frombuffer(self.seqs, np.int64)

    def _parts(self, rows: range) -> Iterator[tuple[int, slice, int]]:
        """Yield chunk number, slice and first row. The last chunks may not exist yet."""
        start = rows.start
        while start < rows.stop and start // _CHUNK_ROWS < len(self._chunks):
            number, first = divmod(start, _CHUNK_ROWS)
            stop = min(rows.stop, (number + 1) * _CHUNK_ROWS)
            yield number, slice(first, first + stop - start), start
            start = stop

    def _grown_chunk(self, number: int, end: int, like: QuantisedVectors) -> QuantisedVectors:
        while len(self._chunks) <= number:
            self._chunks.append(like.select(slice(0)))
        chunk = self._chunks[number]
        if end >= len(chunk.scale):
            known = len(self.seqs) - number * _CHUNK_ROWS
            count = min(max(16, 2 * len(chunk.scale), known), _CHUNK_ROWS)
            self._chunks[number] = chunk = chunk.with_capacity(count)
        return chunk


class _VisibleRows(NamedTuple):
    timeline: str
    line: TierVectors
    rows: range


class VectorMatrix:
    """Vectors by timeline and tier. Not thread-safe.

    Above `max_bytes`, those that were not used lately are evicted.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lines: dict[tuple[str, Tier], TierVectors] = {}

    def tier_vectors(self, span: EventSpan, tier: Tier) -> TierVectors:
        """Return the vectors for a span. Documents after its `upto` are missing."""
        key = span.timeline, tier
        line = self._lines.pop(key, None)
        if line is None or line.after > span.after:
            line = TierVectors(span.after)
        self._lines[key] = line  # moves the entry to the end: most recently used
        return line

    def put(
        self, timeline: str, tier: Tier, seqs: Sequence[int], vectors: QuantisedVectors | None
    ) -> None:
        """Set the vectors of documents of a timeline. None means that they never get one."""
        line = self._lines.get((timeline, tier))
        if line is not None and seqs:
            line.put(seqs, vectors)

    def evict(self, spans: Sequence[EventSpan]) -> None:
        """Evict vectors above the limit, but none of these spans."""
        needed = {span.timeline for span in spans}
        room = self._max_bytes - sum(line.size_bytes for line in self._lines.values())
        for key in [key for key in self._lines if key[0] not in needed]:
            if room >= 0:
                break
            room += self._lines.pop(key).size_bytes

    def visible_rows(self, spans: Sequence[EventSpan], tiers: Sequence[Tier]) -> list[_VisibleRows]:
        """Return the rows of the spans, each span once."""
        ranges = []
        for span in dict.fromkeys(spans):
            for tier in tiers:
                line = self._lines.get((span.timeline, tier))
                if line is not None and (rows := line.rows_in(span)):
                    ranges.append(_VisibleRows(span.timeline, line, rows))
        return ranges


def cosines(half: NDArray[np.float16], length: Float64Array, query: Float64Array) -> Float64Array:
    """Return the cosines of stored vectors. Each row is independent of the others."""
    products = to_float32(half, length).astype(np.float64)
    products *= query
    sums: Float64Array = products.sum(axis=1)
    return sums


def nearest_documents(
    visible: Sequence[_VisibleRows], query: Array, limit: int
) -> list[NearestDocument]:
    """Return the `limit` rows with the largest cosine, then the newest.

    Bounds select all rows that may belong to the result. Exact cosines are computed for those, each
    row alone. Equal documents therefore always get equal cosines and the same order.
    """
    if not visible or limit < 1:
        return []
    question = QueryVector(query)
    bounds = [one.line.cosine_bounds(one.rows, question) for one in visible]
    least, most = (np.concatenate(some) for some in zip(*bounds, strict=True))
    needed = -1.5
    if len(least) > limit:
        needed = max(needed, float(np.partition(least, len(least) - limit)[len(least) - limit]))
    chosen = np.flatnonzero(most >= needed)
    starts = np.cumsum([0, *(len(one.rows) for one in visible)])
    cuts = np.searchsorted(chosen, starts)
    documents: list[NearestDocument] = []
    for number in np.flatnonzero(np.diff(cuts)).tolist():
        timeline, line, rows = visible[number]
        positions = chosen[cuts[number] : cuts[number + 1]] - starts[number] + rows.start
        documents += map(
            NearestDocument,
            repeat(timeline),
            line.seqs_at(positions),
            line.cosines(positions, question.exact).tolist(),
        )
    documents.sort(key=lambda near: (-near.cosine, -near.seq, near.timeline))
    return documents[:limit]
