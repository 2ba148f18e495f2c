"""Vectors quantised to single bytes, with exact error bounds of their cosines.

A full scan is limited by memory bandwidth. One byte per number needs a quarter of it. The bounds
select the few rows that may be nearest, and never miss one. Exact cosines are computed only for
those.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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

    def put(self, at: RowSelector, rows: QuantisedVectors) -> None:
        self.half[at], self.length[at], self.quantised[at], self.scale[at], self.error[at] = rows

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
