"""Sealed packs, read through the Bucket. A missing or damaged index is rebuilt from the pack."""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ortet.backends.base import Bucket, BucketEntry
from ortet.errors import Corrupt, NotFound
from ortet.ids import Oid
from ortet.objects import frame
from ortet.objects.pack_index import IndexEntry, PackIndex, encode_index, open_index, write_index
from ortet.objects.source import AutoClosingFd, FrameSource, ObjectLocation, load_frame
from ortet.objects.tail import pack_key, storage_error

_PREFIX = "packs/"
_SUFFIX = ".pack"


class PackSource(FrameSource):
    """A pack, or the tail of a writer at a server, which is read like a pack."""

    sealed: bool
    """False for a tail: it grows, and has no index file."""

    @abstractmethod
    def close_files(self) -> None:
        """Close descriptors. The next use opens them again."""

    @abstractmethod
    def filter_words(self, slot: int) -> list[int]:
        """Return the filter words of a slot. See PackIndex.filter_words."""


class PackFile(ABC):
    """The bytes of one pack, on this host or in a remote bucket."""

    durable_index: bool
    """True if a new index is synced. An index that is lost is built again."""

    @abstractmethod
    def read(self, offset: int, length: int) -> bytes:
        """Return bytes at an offset, fewer at the end. Raises NotFound if the pack is gone."""

    @abstractmethod
    def load(self, offset: int, load_index: Callable[[], PackIndex]) -> bytes:
        """Return the decoded frame at `offset`. `load_index` returns the index of the pack."""

    @abstractmethod
    def fetch_index(self) -> bytes | None:
        """Return the index that is stored beside the pack, or None to build it from the pack."""

    @abstractmethod
    def drop_local_copy(self) -> None:
        """Delete what is cached on this host."""

    @abstractmethod
    def close(self) -> None:
        """Close the descriptor. The next use opens it again."""


class LocalPackFile(PackFile):
    """A pack in a bucket that keeps files on this host, opened at first use."""

    durable_index = True

    def __init__(self, bucket: Bucket, id_: str) -> None:
        self._bucket = bucket
        self._id = id_
        self._file: AutoClosingFd | None = None

    def read(self, offset: int, length: int) -> bytes:
        file = self._file
        if file is None:
            # Not mapped: a truncated pack must raise an error here, not SIGBUS.
            path = self._bucket.local_path(pack_key(self._id))
            if path is None:
                return self._bucket.get(pack_key(self._id), offset, length)
            try:
                file = self._file = AutoClosingFd(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            except FileNotFoundError:
                raise NotFound("no_key", f"pack {self._id} is gone: repeat the call") from None
            except OSError as error:
                raise storage_error(error, f"opening {path}") from error
        try:
            return os.pread(file.fd, length, offset)
        except OSError as error:
            raise storage_error(error, f"reading pack {self._id}") from error

    def load(self, offset: int, load_index: Callable[[], PackIndex]) -> bytes:
        del load_index
        return load_frame(self.read, offset)

    def fetch_index(self) -> bytes | None:
        return None

    def drop_local_copy(self) -> None: ...

    def close(self) -> None:
        self._file = None


class Pack(PackSource):
    """One sealed pack, with the index of its objects. Raises NotFound if a sweep has deleted it."""

    sealed = True

    def __init__(
        self, file: PackFile, id_: str, *, size: int, index_dir: Path, key_id: bytes
    ) -> None:
        self.id = self.key = id_
        self.end = size
        self.file = file
        self.index_path = index_dir / f"{id_}.idx"
        self._key_id = key_id
        self._index: PackIndex | None = None

    def read(self, offset: int, length: int) -> bytes:
        return self.file.read(offset, length)

    def load(self, offset: int) -> bytes:
        return self.file.load(offset, self.load_index)

    def close_files(self) -> None:
        self.file.close()
        self._index = None

    def __len__(self) -> int:
        return (self._index or self.load_index()).count

    def find(self, oid: Oid) -> ObjectLocation | None:
        index = self._index
        if index is None:
            index = self._index = self.load_index()
        try:
            place = index.find(oid)
        except Corrupt:
            self._index = self.rebuild_index()
            place = self._index.find(oid)
        return None if place is None else (self, *place[1:])

    def filter_words(self, slot: int) -> list[int]:
        if self._index is None:
            self._index = self.load_index()
        try:
            return self._index.filter_words(slot)
        except Corrupt:
            self._index = self.rebuild_index()
            return self._index.filter_words(slot)

    def iter_range(self, low: bytes, high: bytes) -> Iterator[tuple[Oid, int]]:
        try:
            return iter(list(self.load_index().iter_range(low, high)))
        except Corrupt:
            return self.rebuild_index().iter_range(low, high)

    def locations(self) -> Iterator[tuple[Oid, ObjectLocation]]:
        try:
            entries = list(self.load_index())
        except Corrupt:
            entries = list(self.rebuild_index())
        return ((oid, (self, at, start, size, kind)) for oid, _, at, start, size, kind in entries)

    def load_index(self) -> PackIndex:
        """Return the index. Rebuild it from the pack if it is missing or damaged."""
        if self._index is not None:
            return self._index
        try:
            index = open_index(self.index_path)
        except (FileNotFoundError, Corrupt):
            return self.rebuild_index()
        return index if index.packs == [(self.id, self.end)] else self.rebuild_index()

    def rebuild_index(self) -> PackIndex:
        """Build the index again, from the index stored beside the pack if there is one."""
        data = self.file.fetch_index()
        return self.build_index() if data is None else self._save_index(data)

    def build_index(self) -> PackIndex:
        """Build the index from all valid frame headers in the pack."""
        entries = [
            entry for frame_info in valid_frames(self) for entry in self._index_entries(frame_info)
        ]
        return self._save_index(encode_index([(self.id, self.end)], entries))

    def _save_index(self, data: bytes) -> PackIndex:
        with contextlib.suppress(OSError):  # a full disk must not prevent reading
            write_index(self.index_path, data, sync=self.file.durable_index)
        return PackIndex(data)

    def _index_entries(self, frame_info: frame.FrameInfo) -> Iterator[IndexEntry]:
        if frame_info.header.key_id != self._key_id:
            return
        start = 0
        for oid, kind, length in frame_info.rows():
            yield oid, 0, frame_info.offset, start, length, kind
            start += length


def valid_frames(source: FrameSource) -> Iterator[frame.FrameInfo]:
    """Yield every frame with a valid header. Continue after damaged frames."""
    position: int | None = 0
    stop = source.end
    while position is not None:
        start = position
        try:
            for frame_info in frame.scan(source.read, start, stop):
                yield frame_info
                start = frame_info.offset + frame_info.header.size
            return
        except Corrupt:
            position = frame.resync(source.read, start + 1, stop)


def list_packs(bucket: Bucket) -> dict[str, int]:
    """Return the id and size of every sealed pack."""
    return pack_sizes(bucket.list(_PREFIX))


def pack_sizes(listings: Iterable[BucketEntry], suffix: str = _SUFFIX) -> dict[str, int]:
    """Return the id and size of every listed key with this suffix."""
    return {
        item.key.removeprefix(_PREFIX).removesuffix(suffix): item.size
        for item in listings
        if item.key.endswith(suffix)
    }
