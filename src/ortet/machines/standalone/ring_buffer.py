"""The last bytes of a stream, counted from its beginning: a reader learns what it missed.

Standard library only: the pid 1 of a machine loads this file by itself. Plain memory, so that it
comes back with the process.
"""

from __future__ import annotations

RING_BYTES = 1 << 20
"""Bytes that a ring keeps."""


class RingBuffer:
    """Forgets its oldest bytes, or, while a reader is being waited for, says that it is full."""

    def __init__(self, size: int = RING_BYTES, *, keep_unread: bool = False) -> None:
        self.keep_unread = keep_unread
        """Nothing that was not taken is forgotten; who adds must stop while `full`."""
        self.end = 0
        """Bytes there ever were."""
        self._size = size
        self._data = bytearray()

    @property
    def start(self) -> int:
        """The oldest byte that is still here."""
        return self.end - len(self._data)

    @property
    def is_full(self) -> bool:
        return self.keep_unread and len(self._data) >= self._size

    def add(self, data: bytes) -> None:
        self._data += data
        self.end += len(data)
        if not self.keep_unread:
            self._trim()

    def read(self, cursor: int, max_bytes: int) -> tuple[bytes, int, int]:
        """Bytes from `cursor` on, the cursor behind them, and how many were missed before them.

        A cursor that lies ahead, of a reader who knew a later state than this one, reads nothing.
        """
        begin = min(max(cursor, self.start), self.end)
        at = begin - self.start
        data = bytes(self._data[at : at + max_bytes])
        return data, begin + len(data), max(begin - cursor, 0)

    def acknowledge(self, cursor: int) -> None:
        """The one reader of a patient ring has all before `cursor`."""
        if self.keep_unread:
            del self._data[: max(min(cursor, self.end) - self.start, 0)]

    def stop_waiting(self) -> None:
        """Nobody is waited for any more."""
        self.keep_unread = False
        self._trim()

    def _trim(self) -> None:
        over = len(self._data) - self._size
        if over > 0:
            del self._data[:over]
