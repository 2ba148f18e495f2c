"""Packs of a remote bucket. Small packs are fetched whole, large packs frame by frame."""

from __future__ import annotations

import bisect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress

from ortet.backends.base import Bucket
from ortet.errors import Corrupt, NotFound
from ortet.ids import Oid
from ortet.objects import frame
from ortet.objects.pack import PackFile, PackSource
from ortet.objects.pack_index import FILTER_WORD_OFFSET, PackIndex
from ortet.objects.remote.pack_cache import PackCache
from ortet.objects.source import AutoClosingFd, ObjectLocation, decode_frame, load_frame
from ortet.objects.tail import TAIL_SUFFIX as TAIL
from ortet.objects.tail import pack_key

FETCH_WHOLE_MAX_BYTES = 1 << 20
"""Up to this size, one request for the whole pack is cheaper than several requests for parts."""


class RemotePackFile(PackFile):
    """A pack in a remote bucket.

    Local copies are verified when read, and fetched again if they are damaged.
    """

    durable_index = False

    def __init__(self, bucket: Bucket, id_: str, *, size: int, cache: PackCache) -> None:
        self._bucket = bucket
        self._id = id_
        self._size = size
        self._cache = cache
        self._file: AutoClosingFd | None = None
        self._frame_offsets: list[int] | None = None

    def read(self, offset: int, length: int) -> bytes:
        file = self._local_file()
        if file is None:
            return self._bucket.get(pack_key(self._id), offset, length)
        return os.pread(file.fd, length, offset)

    def load(self, offset: int, load_index: Callable[[], PackIndex]) -> bytes:
        file = self._local_file()
        if file is not None:
            with suppress(Corrupt):
                return load_frame(self.read, offset)
            self.drop_local_copy()
        name = f"{self._id}.{offset}.frame"
        data = self._cache.get(name)
        if data is not None:
            with suppress(Corrupt):
                return decode_frame(data, offset)
        end = self._frame_end(offset, load_index)
        data = self._bucket.get(pack_key(self._id), offset, end - offset)
        payload = decode_frame(data, offset)
        self._cache.put(name, data)
        return payload

    def drop_local_copy(self) -> None:
        self._file = None
        self._cache.remove(f"{self._id}.")

    def close(self) -> None:
        self._file = None

    def fetch_index(self) -> bytes | None:
        """Return the index of a large pack. A small pack is fetched whole instead."""
        self.drop_local_copy()
        if self._size > FETCH_WHOLE_MAX_BYTES:
            with suppress(NotFound, Corrupt):
                data = self._bucket.get(f"packs/{self._id}.idx")
                if PackIndex(data).packs == [(self._id, self._size)]:
                    return data
        return None

    def is_cached(self) -> bool:
        """Return True if the whole pack can be read without a request."""
        return self._cache.has(f"{self._id}.pack")

    def cache_whole(self, data: bytes) -> None:
        """Cache `data`, the whole pack as fetched from the bucket."""
        self._cache.put(f"{self._id}.pack", data)

    def _local_file(self) -> AutoClosingFd | None:
        """Return the open local copy.

        Fetch the pack if it is small. None if there is no local copy.
        """
        if self._file is None:
            name = f"{self._id}.pack"
            fd = self._cache.open(name)
            if fd is None and self._size <= FETCH_WHOLE_MAX_BYTES:
                self._cache.put(name, self._bucket.get(pack_key(self._id)))
                fd = self._cache.open(name)
            if fd is not None:
                file = AutoClosingFd(fd)
                if os.fstat(fd).st_size != self._size:
                    self._cache.remove(name)
                    return None
                # Do not keep it open: there can be thousands of small packs.
                if self._size <= FETCH_WHOLE_MAX_BYTES:
                    return file
                self._file = file
        return self._file

    def _frame_end(self, offset: int, load_index: Callable[[], PackIndex]) -> int:
        """Return the end of the frame that begins at `offset`."""
        if self._frame_offsets is None:
            self._frame_offsets = sorted({place[1] for _, *place in load_index()})
        index = bisect.bisect_right(self._frame_offsets, offset)
        return self._frame_offsets[index] if index < len(self._frame_offsets) else self._size


class RemoteTail(PackSource):
    """A tail of a writer at the server: not sealed yet, durable, and growing."""

    sealed = False

    def __init__(self, bucket: Bucket, id_: str, *, key_id: bytes) -> None:
        self.id = id_
        self._bucket = bucket
        self._key_id = key_id
        self._generation = 0
        self._reset()

    def _reset(self) -> None:
        """Forget all frames. A new generation in the cache key invalidates cached frames."""
        self._locations: dict[Oid, ObjectLocation] = {}
        self._frames: list[tuple[int, int]] = []  # offset and size of each frame
        self._last_header = b""
        self._generation += 1
        self.key = f"{self.id}{TAIL}.{self._generation}"
        self.end = 0

    def advance(self, size: int) -> None:
        """Index appended frames.

        Start again if the tail is no longer the one that was seen before.
        """
        if self._frames and self.read(self._frames[-1][0], frame.HEADER_BYTES) != self._last_header:
            self._reset()
        for frame_info in frame.scan(self.read, self.end, size):
            start = 0
            if frame_info.header.key_id == self._key_id:
                for oid, kind, length in frame_info.rows():
                    self._locations[oid] = (self, frame_info.offset, start, length, kind)
                    start += length
            self._frames.append((frame_info.offset, frame_info.header.size))
            self._last_header = frame_info.head
            self.end = frame_info.offset + frame_info.header.size

    def read(self, offset: int, length: int) -> bytes:
        return self._bucket.get(f"packs/{self.id}{TAIL}", offset, length)

    def load(self, offset: int) -> bytes:
        index = bisect.bisect_left(self._frames, (offset, 0))
        size = self._frames[index][1] if index < len(self._frames) else 0
        return decode_frame(self.read(offset, size), offset)

    def close_files(self) -> None: ...

    def __len__(self) -> int:
        return len(self._locations)

    def find(self, oid: Oid) -> ObjectLocation | None:
        return self._locations.get(oid)

    def filter_words(self, slot: int) -> list[int]:
        return [
            int.from_bytes(oid[FILTER_WORD_OFFSET : FILTER_WORD_OFFSET + 4], sys.byteorder)
            for oid in list(self._locations)
            if oid[0] == slot
        ]

    def iter_range(self, low: bytes, high: bytes) -> Iterator[tuple[Oid, int]]:
        return (
            (oid, location[4])
            for oid, location in list(self._locations.items())
            if low <= oid <= high
        )

    def locations(self) -> Iterator[tuple[Oid, ObjectLocation]]:
        return iter(list(self._locations.items()))
