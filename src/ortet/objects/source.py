"""The common base of tails and packs, and the cache of decoded frames."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator

from ortet.errors import NotFound, Unsupported
from ortet.ids import Oid
from ortet.objects import frame
from ortet.objects.base import Kind

_FIRST_READ = 32 * 1024
CACHE_BYTES = 48 * 1024 * 1024

ObjectLocation = tuple["FrameSource", int, int, int, int]
"""The location of an object: source, frame offset, offset in the payload, length, kind."""

FrameKey = tuple[str, int]


class AutoClosingFd:
    """A file descriptor that is closed when the last reference to it is dropped.

    If it were closed earlier, a thread that still reads could get another file with the same
    number.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        os.close(self.fd)


class FrameSource(ABC):
    """A tail or a pack. A sealed tail keeps its id, but its frames may be different."""

    id: str
    key: str
    """The first part of the cache key of its frames."""
    end: int
    """The offset where its frames end."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of objects that it is known to hold."""

    def __bool__(self) -> bool:
        return True

    @abstractmethod
    def read(self, offset: int, length: int) -> bytes:
        """Return bytes at an offset, fewer at the end. Raises NotFound if the file is gone."""

    @abstractmethod
    def find(self, oid: Oid) -> ObjectLocation | None: ...

    def copies(self, oid: Oid) -> Iterator[ObjectLocation]:
        """Yield every location of an object."""
        location = self.find(oid)
        if location is not None:
            yield location

    @abstractmethod
    def iter_range(self, low: bytes, high: bytes) -> Iterator[tuple[Oid, int]]:
        """Yield (oid, kind) of every object with low <= oid <= high, unsorted."""

    @abstractmethod
    def locations(self) -> Iterator[tuple[Oid, ObjectLocation]]:
        """Yield every object that it is known to hold, unsorted."""

    def extent(self) -> int:
        """Return the offset below which there may be frames, valid or damaged."""
        return self.end

    def load(self, offset: int) -> bytes:
        """Return the decoded payload of the frame at `offset`. Header and payload are verified."""
        return load_frame(self.read, offset)


def load_frame(read: Callable[[int, int], bytes], offset: int) -> bytes:
    """Read and decode the frame at `offset`. Header and payload are verified."""
    data = read(offset, _FIRST_READ)
    header = frame.parse_header(data, offset=offset)
    if header.size > len(data):
        data += read(offset + len(data), header.size - len(data))
    return decode_frame(data, offset, header)


def decode_frame(data: bytes, offset: int, header: frame.FrameHeader | None = None) -> bytes:
    """Verify and decode one whole frame. `header` is its parsed header, if that is known."""
    header = header or frame.parse_header(data, offset=offset)
    frame.read_table(data, 0, header, offset=offset)
    payload = memoryview(data)[header.payload_start : header.size]
    return frame.unpack(header, payload, offset=offset)


class FrameCache:
    """An LRU cache of decoded frames, bounded by bytes.

    `get` takes no lock: each step on the dictionary is atomic. A lost race costs one decoding.
    """

    def __init__(self, limit: int = CACHE_BYTES) -> None:
        self._frames: OrderedDict[FrameKey, bytes] = OrderedDict()
        self._limit = limit
        self._bytes = 0
        self.after_fork()

    def after_fork(self) -> None:
        """Replace the lock in a child process. A thread of the parent may have held it."""
        self._lock = threading.Lock()

    def get(self, key: FrameKey) -> bytes | None:
        """Return a cached frame, or None."""
        data = self._frames.get(key)
        if data is not None:
            try:  # noqa: SIM105 - suppress() would take a tenth of the time of a read
                self._frames.move_to_end(key)
            except KeyError:  # another thread evicted the frame; the bytes are still valid
                pass
        return data

    def add(self, key: FrameKey, data: bytes) -> None:
        """Cache a frame, and evict the least recently used frames above the limit."""
        with self._lock:
            if key in self._frames or len(data) > self._limit:
                return
            self._frames[key] = data
            self._bytes += len(data)
            while self._bytes > self._limit:
                self._bytes -= len(self._frames.popitem(last=False)[1])

    def load(self, source: FrameSource, offset: int) -> bytes:
        """Return the decoded frame, from the cache if possible."""
        key = (source.key, offset)
        data = self.get(key)
        if data is None:
            data = source.load(offset)
            self.add(key, data)
        return data

    def clear(self) -> None:
        """Remove all frames."""
        with self._lock:
            self._frames.clear()
            self._bytes = 0


def kind_of(number: int) -> Kind:
    """Return the Kind for a stored number. Raises Unsupported if a newer Ortet stored it."""
    try:
        return Kind(number)
    except ValueError:
        raise Unsupported(
            "newer_kind", f"the store has objects of kind {number}, unknown here: upgrade ortet"
        ) from None


def no_object(oid: Oid) -> NotFound:
    """Return the NotFound error for a missing object."""
    return NotFound(
        "no_object",
        f"object {oid.hex()} is not in the store: check the id, or run `ortet verify`",
        oid=oid.hex(),
    )
