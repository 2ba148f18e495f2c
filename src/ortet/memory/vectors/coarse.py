"""Vectors as single bytes, and how far their cosines can be from the true ones.

To look at all vectors takes as long as to read them from memory, which a busy host makes slower
than all else. A byte for each number is a quarter of that: it tells which few may be the nearest,
never wrongly, and those are computed from what was kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
RowSelector = Sequence[int] | slice | NDArray[np.int64] | NDArray[np.bool_]

_SINGLE_THREAD_ELEMENTS = 32_768
"""Numbers of a matrix that BLAS does not share out to threads, which wait for one another."""
_GROUPS_PER_BLOCK = 8
"""So many such matrices at a time stay where they are quick to reach, as floats."""
_ROUNDING_ERROR = 1.2e-7
"""Twice that of a float: what each step of a sum can add to its error, in whatever order."""


class QuantisedVectors(NamedTuple):
    """Vectors of length 1: as they are kept, in half precision, with the length they have so; and
    each as bytes to be multiplied by `scale`, of which no cosine is farther away than `error`."""

    half: NDArray[np.float16]
    length: NDArray[np.float64]
    quantised: NDArray[np.int8]
    scale: Array
    error: Array

    def select(self, selector: RowSelector) -> QuantisedVectors:
        return QuantisedVectors._make(part[selector] for part in self)

    def put(self, at: RowSelector, rows: QuantisedVectors) -> None:
        self.half[at], self.length[at], self.quantised[at], self.scale[at], self.error[at] = rows

    def with_capacity(self, count: int) -> QuantisedVectors:
        """The same, with room behind them."""
        more = QuantisedVectors._make(
            np.zeros((count, *part.shape[1:]), part.dtype) for part in self
        )
        more.put(slice(len(self.scale)), self)
        return more


def quantise(half: NDArray[np.float16], length: NDArray[np.float64]) -> QuantisedVectors:
    exact = to_float32(half, length)
    scale = np.abs(exact).max(axis=1) / np.float32(127)
    small = np.rint(exact / scale[:, None])
    exact -= small * scale[:, None]
    # By Cauchy and Schwarz; a little more, since all this is rounded, and a question's length too.
    error = np.sqrt(np.square(exact).sum(axis=1)) * np.float32(1.001)
    error += np.float32((half.shape[1] + 16) * _ROUNDING_ERROR)
    return QuantisedVectors(half, length, small.astype(np.int8), scale, error)


def to_float32(half: NDArray[np.float16], length: NDArray[np.float64]) -> Array:
    """In single precision; the same numbers for a vector, whatever else it stands beside."""
    rows = half.astype(np.float32)
    rows /= length[:, None]
    return rows


class QueryVector:
    """A vector to be compared with rows."""

    def __init__(self, vector: Array) -> None:
        self.exact = vector.astype(np.float64)
        self._vector = vector
        self._group = max(1, _SINGLE_THREAD_ELEMENTS // len(vector))
        self._block: Array = np.empty((_GROUPS_PER_BLOCK * self._group, len(vector)), np.float32)

    def bound_cosines(self, rows: QuantisedVectors, lower: Array, upper: Array) -> None:
        """The least and the most that the cosine of each row may be."""
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
