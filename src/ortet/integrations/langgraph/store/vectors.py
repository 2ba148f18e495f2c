"""Vectors of items in memory, with exact search by cosine similarity.

Only `search` imports this module, when a store has an index, because it needs NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ortet.integrations.langgraph.store.view import ViewItem

_MIN_ROWS = 256


class ItemVectors:
    """All vectors in one matrix.

    An item that is put again gets new rows. The old rows stay until the matrix is full, and are
    then compacted.
    """

    def __init__(self) -> None:
        self._rows: NDArray[np.float32] = np.zeros((0, 0), np.float32)
        self._used = 0
        self._owners: list[tuple[ViewItem, range]] = []

    def put(self, item: ViewItem, vectors: Sequence[bytes]) -> None:
        """Add the vectors of an item.

        Vectors of another length than the existing ones are ignored.
        """
        arrays = [np.frombuffer(raw, np.float32) for raw in vectors]
        size = self._rows.shape[1] or (len(arrays[0]) if arrays else 0)
        arrays = [array for array in arrays if len(array) == size]
        self._reserve_rows(len(arrays), size)
        first = self._used
        for number, vector in enumerate(arrays):
            length = float(np.linalg.norm(vector.astype(np.float64)))
            self._rows[first + number] = vector / length if length else 0
        self._used += len(arrays)
        item.vectors = range(first, self._used)
        self._owners.append((item, item.vectors))

    def scores(self, items: Sequence[ViewItem], query: Sequence[float]) -> dict[int, float]:
        """Return the best cosine of each item that has vectors, by `id()` of the item."""
        indexed = [item for item in items if item.vectors]
        target = np.asarray(query, np.float32)
        if not indexed or len(target) != self._rows.shape[1]:
            return {}
        length = float(np.linalg.norm(target.astype(np.float64)))
        if length:
            target = target / np.float32(length)
        counts = np.array([len(item.vectors) for item in indexed])
        if counts.max() == 1:
            rows = np.fromiter((item.vectors.start for item in indexed), np.intp, len(indexed))
        else:
            rows = np.fromiter((row for item in indexed for row in item.vectors), np.intp)
        is_whole = len(rows) == self._used and bool((np.diff(rows) == 1).all())
        cosines = (self._rows[: self._used] if is_whole else self._rows[rows]) @ target
        starts = np.concatenate(([0], np.cumsum(counts)[:-1]))
        best = np.maximum.reduceat(cosines, starts).tolist()
        return {id(item): value for item, value in zip(indexed, best, strict=True)}

    def _reserve_rows(self, more: int, size: int) -> None:
        if self._used + more <= len(self._rows):
            return
        self._owners = [(item, rows) for item, rows in self._owners if item.vectors is rows]
        used = sum(len(rows) for _, rows in self._owners)
        grown = np.zeros((max(_MIN_ROWS, 2 * (used + more)), size), np.float32)
        self._used, moved = 0, []
        for item, rows in self._owners:
            item.vectors = range(self._used, self._used + len(rows))
            grown[self._used : self._used + len(rows)] = self._rows[rows.start : rows.stop]
            self._used += len(rows)
            moved.append((item, item.vectors))
        self._rows, self._owners = grown, moved
