"""Vectors of items in memory, with exact search by cosine similarity."""

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
        made = [np.frombuffer(raw, np.float32) for raw in vectors]
        size = self._rows.shape[1] or (len(made[0]) if made else 0)
        made = [one for one in made if len(one) == size]
        self._reserve_rows(len(made), size)
        first = self._used
        for number, vector in enumerate(made):
            length = float(np.linalg.norm(vector.astype(np.float64)))
            self._rows[first + number] = vector / length if length else 0
        self._used += len(made)
        item.vectors = range(first, self._used)
        self._owners.append((item, item.vectors))

    def scores(self, items: Sequence[ViewItem], query: Sequence[float]) -> dict[int, float]:
        """Return the best cosine of each item that has vectors, by `id()` of the item."""
        having = [seen for seen in items if seen.vectors]
        asked = np.asarray(query, np.float32)
        if not having or len(asked) != self._rows.shape[1]:
            return {}
        length = float(np.linalg.norm(asked.astype(np.float64)))
        if length:
            asked = asked / np.float32(length)
        counts = np.array([len(seen.vectors) for seen in having])
        if counts.max() == 1:
            rows = np.fromiter((seen.vectors.start for seen in having), np.intp, len(having))
        else:
            rows = np.fromiter((row for seen in having for row in seen.vectors), np.intp)
        whole = len(rows) == self._used and bool((np.diff(rows) == 1).all())
        cosines = (self._rows[: self._used] if whole else self._rows[rows]) @ asked
        starts = np.concatenate(([0], np.cumsum(counts)[:-1]))
        best = np.maximum.reduceat(cosines, starts).tolist()
        return {id(seen): value for seen, value in zip(having, best, strict=True)}

    def _reserve_rows(self, more: int, size: int) -> None:
        if self._used + more <= len(self._rows):
            return
        self._owners = [(seen, rows) for seen, rows in self._owners if seen.vectors is rows]
        used = sum(len(rows) for _, rows in self._owners)
        grown = np.zeros((max(_MIN_ROWS, 2 * (used + more)), size), np.float32)
        self._used, moved = 0, []
        for seen, rows in self._owners:
            seen.vectors = range(self._used, self._used + len(rows))
            grown[self._used : self._used + len(rows)] = self._rows[rows.start : rows.stop]
            self._used += len(rows)
            moved.append((seen, seen.vectors))
        self._rows, self._owners = grown, moved
