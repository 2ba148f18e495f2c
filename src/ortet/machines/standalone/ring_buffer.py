"""A buffer for the last bytes of a stream, with positions counted from the stream's beginning.

Standard library only: pid 1 of a machine loads this file as a plain module. The state is plain
memory, so that it is restored with the process.
"""

from __future__ import annotations

RING_BYTES = 1 << 20
"""Default capacity in bytes."""


class RingBuffer:
    """Drops its oldest bytes.

    While it keeps unread bytes for a reader, it reports `is_full` instead.
    """

    def __init__(self, size: int = RING_BYTES, *, keep_unread: bool = False) -> None:
        self.keep_unread = keep_unread
        """If True, unread bytes are never dropped; the writer must stop while `is_full`."""
        self.end = 0
        """Total number of bytes added."""
        self._size = size
        self._data = bytearray()

    @property
    def start(self) -> int:
        """Position of the oldest byte that is still in the buffer."""
        return self.end - len(self._data)

    @property
    def is_full(self) -> bool:
        """True if the writer must stop until the reader has read."""
        return self.keep_unread and len(self._data) >= self._size

    def add(self, data: bytes) -> None:
        self._data += data
        self.end += len(data)
        if not self.keep_unread:
            self._trim()

    def read(self, cursor: int, max_bytes: int) -> tuple[bytes, int, int]:
        """Return bytes from `cursor` on, the cursor after them, and the number of bytes missed.

        A cursor beyond the end reads nothing. A reader has one if it read a later state than this
        one.
        """
        begin = min(max(cursor, self.start), self.end)
        index = begin - self.start
        data = bytes(self._data[index : index + max_bytes])
        return data, begin + len(data), max(begin - cursor, 0)

    def acknowledge(self, cursor: int) -> None:
        """Drop the bytes before `cursor`, which the reader has.

        Does nothing unless the buffer keeps unread bytes.
        """
        if self.keep_unread:
            del self._data[: max(min(cursor, self.end) - self.start, 0)]

    def stop_waiting(self) -> None:
        """Stop keeping unread bytes for a reader."""
        self.keep_unread = False
        self._trim()

    def _trim(self) -> None:
        over = len(self._data) - self._size
        if over > 0:
            del self._data[:over]
