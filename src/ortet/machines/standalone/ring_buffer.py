"""The last bytes of a stream, counted from its beginning: a reader learns what it missed.

Standard library only: the pid 1 of a machine loads this file by itself. Plain memory, so that it
comes back with the process.
"""

from __future__ import annotations

SIZE = 1 << 20
"""Bytes that a ring keeps."""


class Ring:
    """Forgets its oldest bytes, or, while a reader is being waited for, says that it is full."""

    def __init__(self, size: int = SIZE, *, patient: bool = False) -> None:
        self.patient = patient
        """Nothing that was not taken is forgotten; who adds must stop while `full`."""
        self.end = 0
        """Bytes there ever were."""
        self._size = size
        self._kept = bytearray()

    @property
    def start(self) -> int:
        """The oldest byte that is still here."""
        return self.end - len(self._kept)

    @property
    def full(self) -> bool:
        return self.patient and len(self._kept) >= self._size

    def add(self, data: bytes) -> None:
        self._kept += data
        self.end += len(data)
        if not self.patient:
            self._trim()

    def read(self, cursor: int, most: int) -> tuple[bytes, int, int]:
        """Bytes from `cursor` on, the cursor behind them, and how many were missed before them.

        A cursor that lies ahead, of a reader who knew a later state than this one, reads nothing.
        """
        begin = min(max(cursor, self.start), self.end)
        at = begin - self.start
        data = bytes(self._kept[at : at + most])
        return data, begin + len(data), max(begin - cursor, 0)

    def taken(self, cursor: int) -> None:
        """The one reader of a patient ring has all before `cursor`."""
        if self.patient:
            del self._kept[: max(min(cursor, self.end) - self.start, 0)]

    def loosen(self) -> None:
        """Nobody is waited for any more."""
        self.patient = False
        self._trim()

    def _trim(self) -> None:
        over = len(self._kept) - self._size
        if over > 0:
            del self._kept[:over]
