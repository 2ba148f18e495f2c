"""What tails and packs have in common: bytes with frames in them, and the cache of decoded
frames."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress

from ortet.errors import NotFound, Unsupported
from ortet.ids import Oid
from ortet.objects import frame
from ortet.objects.base import Kind

_FIRST_READ = 32 * 1024
CACHE_BYTES = 48 * 1024 * 1024

ObjectLocation = tuple["FrameSource", int, int, int, int]
"""Where an object is: source, frame offset, offset in the frame's bytes, length, kind."""

FrameKey = tuple[str, int]


class AutoClosingFd:
    """A descriptor that closes itself when nobody uses it any more: closed sooner, its number could
    be given to another file under a thread that is reading."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        os.close(self.fd)


class FrameSource(ABC):
    """A tail or a pack. A tail keeps its id when it is sealed; its frames may be others then."""

    id: str
    key: str
    """What the cache knows its frames by."""
    end: int
    """Where its frames end."""

    @abstractmethod
    def __len__(self) -> int:
        """How many objects it is known to hold."""

    def __bool__(self) -> bool:
        return True

    @abstractmethod
    def read(self, offset: int, length: int) -> bytes:
        """Bytes at an offset, short at the end; NotFound when the file is gone."""

    @abstractmethod
    def find(self, oid: Oid) -> ObjectLocation | None: ...

    def copies(self, oid: Oid) -> Iterator[ObjectLocation]:
        """Every place of an object."""
        spot = self.find(oid)
        if spot is not None:
            yield spot

    @abstractmethod
    def iter_range(self, low: bytes, high: bytes) -> Iterator[tuple[Oid, int]]:
        """(oid, kind) of every object between, both ends included, in no order."""

    @abstractmethod
    def locations(self) -> Iterator[tuple[Oid, ObjectLocation]]:
        """Every object it is known to hold, in no order."""

    def extent(self) -> int:
        """How far there may be frames, sound or not."""
        return self.end

    def load(self, offset: int) -> bytes:
        """The decoded payload of the frame at `offset`, header and payload checked."""
        data = self.read(offset, _FIRST_READ)
        header = frame.parse_header(data, offset=offset)
        if header.size > len(data):
            data += self.read(offset + len(data), header.size - len(data))
        frame.read_table(data, 0, header, offset=offset)
        payload = memoryview(data)[header.payload_start : header.size]
        return frame.unpack(header, payload, offset=offset)


class FrameCache:
    """Decoded frames, least recently used first out, bounded by bytes. Finding takes no lock: each
    step on the dictionary is atomic, and a lost race costs one decoding."""

    def __init__(self, limit: int = CACHE_BYTES) -> None:
        self._frames: OrderedDict[FrameKey, bytes] = OrderedDict()
        self._limit = limit
        self._bytes = 0
        self.after_fork()

    def after_fork(self) -> None:
        """In a child: a thread that is not here may have held the lock."""
        self._lock = threading.Lock()

    def get(self, key: FrameKey) -> bytes | None:
        data = self._frames.get(key)
        if data is not None:
            with suppress(KeyError):  # another thread evicted it: the bytes are still ours
                self._frames.move_to_end(key)
        return data

    def add(self, key: FrameKey, data: bytes) -> None:
        with self._lock:
            if key in self._frames or len(data) > self._limit:
                return
            self._frames[key] = data
            self._bytes += len(data)
            while self._bytes > self._limit:
                self._bytes -= len(self._frames.popitem(last=False)[1])

    def load(self, source: FrameSource, offset: int) -> bytes:
        """The decoded frame, from memory if it is there."""
        key = (source.key, offset)
        data = self.get(key)
        if data is None:
            data = source.load(offset)
            self.add(key, data)
        return data

    def clear(self) -> None:
        with self._lock:
            self._frames.clear()
            self._bytes = 0


def kind_of(number: int) -> Kind:
    """The kind stored beside an object."""
    try:
        return Kind(number)
    except ValueError:
        raise Unsupported(
            "newer_kind", f"the store has objects of kind {number}, unknown here: upgrade ortet"
        ) from None


def no_object(oid: Oid) -> NotFound:
    return NotFound(
        "no_object",
        f"object {oid.hex()} is not in the store: check the id, or run `ortet verify`",
        oid=oid.hex(),
    )
