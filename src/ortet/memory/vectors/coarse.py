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
Which = Sequence[int] | slice | NDArray[np.int64] | NDArray[np.bool_]

_ALONE = 32_768
"""Numbers of a matrix that BLAS does not share out to threads, which wait for one another."""
_GROUPS = 8
"""So many such matrices at a time stay where they are quick to reach, as floats."""
_ROUNDING = 1.2e-7
"""Twice that of a float: what each step of a sum can add to its error, in whatever order."""


class Rows(NamedTuple):
    """Vectors of length 1: as they are kept, in half precision, with the length they have so; and
    each as bytes to be multiplied by `scale`, of which no cosine is farther away than `error`."""

    half: NDArray[np.float16]
    length: NDArray[np.float64]
    bytes: NDArray[np.int8]
    scale: Array
    error: Array

    def only(self, which: Which) -> Rows:
        return Rows._make(part[which] for part in self)

    def put(self, at: Which, rows: Rows) -> None:
        self.half[at], self.length[at], self.bytes[at], self.scale[at], self.error[at] = rows

    def grown(self, count: int) -> Rows:
        """The same, with room behind them."""
        more = Rows._make(np.zeros((count, *part.shape[1:]), part.dtype) for part in self)
        more.put(slice(len(self.scale)), self)
        return more


def rows_of(half: NDArray[np.float16], length: NDArray[np.float64]) -> Rows:
    exact = full(half, length)
    scale = np.abs(exact).max(axis=1) / np.float32(127)
    small = np.rint(exact / scale[:, None])
    exact -= small * scale[:, None]
    # By Cauchy and Schwarz; a little more, since all this is rounded, and a question's length too.
    error = np.sqrt(np.square(exact).sum(axis=1)) * np.float32(1.001)
    error += np.float32((half.shape[1] + 16) * _ROUNDING)
    return Rows(half, length, small.astype(np.int8), scale, error)


def full(half: NDArray[np.float16], length: NDArray[np.float64]) -> Array:
    """In single precision; the same numbers for a vector, whatever else it stands beside."""
    rows = half.astype(np.float32)
    rows /= length[:, None]
    return rows


class Question:
    """A vector to be compared with rows."""

    def __init__(self, vector: Array) -> None:
        self.exact = vector.astype(np.float64)
        self._vector = vector
        self._group = max(1, _ALONE // len(vector))
        self._block: Array = np.empty((_GROUPS * self._group, len(vector)), np.float32)

    def bound(self, rows: Rows, least: Array, most: Array) -> None:
        """The least and the most that the cosine of each row may be."""
        for start in range(0, len(most), len(self._block)):
            part = rows.bytes[start : start + len(self._block)]
            floats = self._block[: len(part)]
            floats[...] = part
            _products(floats, self._vector, self._group, most[start : start + len(part)])
        most *= rows.scale
        np.subtract(most, rows.error, out=least)
        most += rows.error


def _products(rows: Array, query: Array, group: int, out: Array) -> None:
    whole = len(rows) // group * group
    if whole:
        shape = -1, group, len(query)
        np.matmul(rows[:whole].reshape(shape), query, out=out[:whole].reshape(-1, group))
    if whole < len(rows):
        np.matmul(rows[whole:], query, out=out[whole:])
