"""Packs of a remote bucket. Small packs are fetched whole, large packs frame by frame."""

from __future__ import annotations

import bisect
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ortet.backends.base import Bucket
from ortet.errors import Corrupt, NotFound
from ortet.ids import Oid
from ortet.objects import frame
from ortet.objects.absent import FILTER_WORD_OFFSET
from ortet.objects.pack import Pack
from ortet.objects.pack_index import PackIndex, write_index
from ortet.objects.remote.pack_cache import PackCache
from ortet.objects.source import AutoClosingFd, ObjectLocation
from ortet.objects.tail import TAIL_SUFFIX as TAIL
from ortet.objects.tail import pack_key

FETCH_WHOLE_MAX_BYTES = 1 << 20
"""Up to this size, one request for the whole pack is cheaper than several requests for parts."""


class RemotePack(Pack):
    """One sealed pack.

    Local copies are verified when read, and fetched again if they are damaged.
    """

    def __init__(
        self,
        bucket: Bucket,
        id_: str,
        *,
        size: int,
        index_dir: Path,
        key_id: bytes,
        cache: PackCache,
    ) -> None:
        super().__init__(bucket, id_, size=size, index_dir=index_dir, key_id=key_id)
        self._cache = cache
        self._frame_offsets: list[int] | None = None

    def read(self, offset: int, length: int) -> bytes:
        file = self._local_file()
        if file is None:
            return self._bucket.get(pack_key(self.id), offset, length)
        return os.pread(file.fd, length, offset)

    def load(self, offset: int) -> bytes:
        file = self._local_file()
        if file is not None:
            with suppress(Corrupt):
                return super().load(offset)
            self.drop_local_copy()
        name = f"{self.id}.{offset}.frame"
        data = self._cache.get(name)
        if data is not None:
            with suppress(Corrupt):
                return _decode_frame(data, offset)
        data = self._bucket.get(pack_key(self.id), offset, self._frame_end(offset) - offset)
        found = _decode_frame(data, offset)
        self._cache.put(name, data)
        return found

    def drop_local_copy(self) -> None:
        """Delete the cached bytes of this pack."""
        self._file = None
        self._cache.remove(f"{self.id}.")

    def rebuild_index(self) -> PackIndex:
        """Fetch the index stored beside the pack, or rebuild it from the pack in the bucket."""
        self.drop_local_copy()
        if self.end > FETCH_WHOLE_MAX_BYTES:
            with suppress(NotFound, Corrupt):
                data = self._bucket.get(f"packs/{self.id}.idx")
                if PackIndex(data).packs == [(self.id, self.end)]:
                    return self._save_index(data)
        return super().rebuild_index()

    def is_cached(self) -> bool:
        """Return True if the whole pack and its index can be read without a request."""
        return self._cache.has(f"{self.id}.pack") and self.index_path.exists()

    def cache_whole(self, data: bytes) -> None:
        """Cache `data`, the whole pack as fetched from the bucket."""
        if len(data) == self.end:
            self._cache.put(f"{self.id}.pack", data)
            super().rebuild_index()

    def _save_index(self, data: bytes) -> PackIndex:
        with suppress(OSError):
            write_index(self.index_path, data, sync=False)
        return PackIndex(data)

    def _local_file(self) -> AutoClosingFd | None:
        """Return the open local copy.

        Fetch the pack if it is small. None if there is no local copy.
        """
        if self._file is None:
            name = f"{self.id}.pack"
            fd = self._cache.open(name)
            if fd is None and self.end <= FETCH_WHOLE_MAX_BYTES:
                self._cache.put(name, self._bucket.get(pack_key(self.id)))
                fd = self._cache.open(name)
            if fd is not None:
                file = AutoClosingFd(fd)
                if os.fstat(fd).st_size != self.end:
                    self._cache.remove(name)
                    return None
                # Do not keep it open: there can be thousands of small packs.
                if self.end <= FETCH_WHOLE_MAX_BYTES:
                    return file
                self._file = file
        return self._file

    def _frame_end(self, offset: int) -> int:
        """Return the end of the frame that begins at `offset`."""
        if self._frame_offsets is None:
            self._frame_offsets = sorted({place[1] for _, *place in self.load_index()})
        at = bisect.bisect_right(self._frame_offsets, offset)
        return self._frame_offsets[at] if at < len(self._frame_offsets) else self.end


class RemoteTail(RemotePack):
    """A tail of a writer at the server: not sealed yet, durable, and growing."""

    sealed = False

    def __init__(self, bucket: Bucket, id_: str, *, key_id: bytes, cache: PackCache) -> None:
        super().__init__(bucket, id_, size=0, index_dir=Path(), key_id=key_id, cache=cache)
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
        for lead in frame.scan(self.read, self.end, size):
            start = 0
            if lead.header.key_id == self._key_id:
                for oid, kind, length in lead.rows():
                    self._locations[oid] = (self, lead.offset, start, length, kind)
                    start += length
            self._frames.append((lead.offset, lead.header.size))
            self._last_header = lead.head
            self.end = lead.offset + lead.header.size

    def read(self, offset: int, length: int) -> bytes:
        return self._bucket.get(f"packs/{self.id}{TAIL}", offset, length)

    def load(self, offset: int) -> bytes:
        at = bisect.bisect_left(self._frames, (offset, 0))
        size = self._frames[at][1] if at < len(self._frames) else 0
        return _decode_frame(self.read(offset, size), offset)

    def close_files(self) -> None: ...

    def drop_local_copy(self) -> None: ...

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
        return ((oid, spot[4]) for oid, spot in list(self._locations.items()) if low <= oid <= high)

    def locations(self) -> Iterator[tuple[Oid, ObjectLocation]]:
        return iter(list(self._locations.items()))


def _decode_frame(data: bytes, offset: int) -> bytes:
    """Verify and decode one whole frame."""
    header = frame.parse_header(data, offset=offset)
    frame.read_table(data, 0, header, offset=offset)
    payload = memoryview(data)[header.payload_start : header.size]
    return frame.unpack(header, payload, offset=offset)
