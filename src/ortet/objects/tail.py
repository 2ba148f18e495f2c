"""Tail files: frames appended by one writer under flock, and read by other processes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from ortet._util.failpoints import failpoint
from ortet.errors import Corrupt, OrtetError, Unavailable, Unsupported
from ortet.ids import Oid
from ortet.objects import frame
from ortet.objects.source import AutoClosingFd, FrameSource, ObjectLocation

TAIL_SUFFIX = ".tail"
PACK_PART_SUFFIX = ".pack.part"
"""The suffix of the temporary file for a tail's rewritten frames while it is sealed."""
SEAL_BYTES = 64 * 1024 * 1024
# Opening a store scans the frame headers of its tails. These limits keep that near 20 ms.
SEAL_FRAMES = 2048
SEAL_OBJECTS = 32_768
# Syncing a write into zeros that are already on disk takes less than half the time of a write that
# extends the file. A tail that is synced often therefore preallocates space.
_PREALLOCATE_AFTER_SYNCS = 8
_PREALLOCATED_ZEROS = bytes(256 * 1024)


def pack_key(id_: str) -> str:
    """Return the bucket key of a pack."""
    return f"packs/{id_}.pack"


def storage_error(error: OSError, operation: str) -> OrtetError:
    """Return the OrtetError for a failed system call, with a remedy for the caller."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Unavailable(
            "disk_full", f"the disk was full while {operation}: free some space, then repeat"
        )
    return Unavailable(
        "storage_error",
        f"{error.strerror or error} while {operation}: see to the disk, then repeat",
    )


def sync_data(fd: int) -> None:
    """Write the data of a file to its disk."""
    if hasattr(os, "fdatasync"):
        os.fdatasync(fd)
    else:  # macOS, where fsync leaves data in the drive's cache
        fcntl.fcntl(fd, getattr(fcntl, "F_FULLFSYNC"))  # noqa: B009


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class Tail(FrameSource):
    """A tail file: our own, locked and writable, or another writer's, read only."""

    def __init__(self, path: Path, file: AutoClosingFd, *, key_id: bytes) -> None:
        self.key = path.name
        self.id = self.key.removesuffix(TAIL_SUFFIX)
        self.path = path
        self.end = 0
        self.synced = 0
        self.frames = 0
        self._file = file
        self._key_id = key_id
        self._last_stat = (0, 0)
        self._last_frame_offset, self._last_frame_header = 0, b""
        self._sync_lock = threading.Lock()
        self._sync_count = 0
        self._file_size = 0  # size of the file, including preallocated space
        self.published = False  # True if its pack may be in the bucket, where a sweep can delete it
        self._sync_error: OSError | None = None
        self._locations: dict[Oid, ObjectLocation] = {}

    # reading

    def read(self, offset: int, length: int) -> bytes:
        try:
            return os.pread(self._file.fd, length, offset)
        except OSError as error:
            raise storage_error(error, f"reading {self.path}") from error

    def is_unlocked(self) -> bool:
        """Return True if no process holds the tail's lock at this moment."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # sealed in the meantime
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(fd)
        return True

    def find(self, oid: Oid) -> ObjectLocation | None:
        return self._locations.get(oid)

    def iter_range(self, low: bytes, high: bytes) -> Iterator[tuple[Oid, int]]:
        return (
            (oid, location[4])
            for oid, location in list(self._locations.items())
            if low <= oid <= high
        )

    def locations(self) -> Iterator[tuple[Oid, ObjectLocation]]:
        return iter(list(self._locations.items()))

    def __len__(self) -> int:
        return len(self._locations)

    def has_changed(self) -> bool:
        """Return True if the file changed since the last `advance`."""
        return self._stat() != self._last_stat

    def _stat(self) -> tuple[int, int]:
        status = os.fstat(self._file.fd)
        return status.st_size, status.st_mtime_ns

    def advance(self) -> None:
        """Index the complete frames that another writer has appended since the last call."""
        self._last_stat = self._stat()
        if not self._has_last_frame():
            self._locations.clear()
            self.end = self.frames = 0
        last: frame.FrameInfo | None = None
        for frame_info in self._valid_frames(self._last_stat[0]):
            if last is not None:
                self.index_frame(last)
            last = frame_info
        # Every frame but the last is complete, because another frame follows it.
        if last is not None and self._is_complete(last):
            self.index_frame(last)

    def _valid_frames(self, stop: int) -> Iterator[frame.FrameInfo]:
        """Yield frames with valid headers from `end` on. Continue after damaged frames."""
        position: int | None = self.end
        while position is not None:
            try:
                for frame_info in frame.scan(self.read, position, stop):
                    yield frame_info
                    position = frame_info.offset + frame_info.header.size
                return
            except Unsupported:
                return
            except Corrupt as error:
                if error.kind == frame.TRUNCATED_FRAME:
                    return
                position = frame.resync(self.read, position + 1, stop)

    def _is_complete(self, frame_info: frame.FrameInfo) -> bool:
        payload = self.read(
            frame_info.offset + frame_info.header.payload_start, frame_info.header.stored
        )
        try:
            frame.check_payload(frame_info.header, payload)
        except Corrupt:
            return False
        return True

    def _has_last_frame(self) -> bool:
        """Return True if the last indexed frame is still in the file.

        Recovery may have truncated it.
        """
        return (
            not self.frames
            or self.read(self._last_frame_offset, frame.HEADER_BYTES) == self._last_frame_header
        )

    def index_frame(self, frame_info: frame.FrameInfo) -> None:
        """Add the next frame to the index of the tail."""
        if frame_info.header.key_id == self._key_id:
            start = 0
            for oid, kind, length in frame_info.rows():
                self._locations[oid] = (self, frame_info.offset, start, length, kind)
                start += length
        self._last_frame_offset, self._last_frame_header = frame_info.offset, frame_info.head
        self.end = frame_info.offset + frame_info.header.size
        self.frames += 1

    def extent(self) -> int:
        """Return the file size: damaged frames may be anywhere below it."""
        return self._stat()[0]

    def mark_adopted(self) -> None:
        """Record that this process has adopted the tail and that its content is durable."""
        self._file_size = self.synced = self.end

    # Writing. Only the process that holds the lock may call these methods.

    def append(
        self, data: bytes, objects: Sequence[frame.Item], *, preallocate: bool = False
    ) -> int:
        """Write one frame at the end, index it, and return its offset.

        On failure the tail is unchanged. `preallocate` allows zeros to be written after the frame.
        """
        offset = self.end
        try:
            failpoint("tail.before-write")
            if (
                preallocate
                and self._sync_count >= _PREALLOCATE_AFTER_SYNCS
                and offset + len(data) > self._file_size
            ):
                self._write(data + _PREALLOCATED_ZEROS, offset, min_bytes=len(data))
            else:
                self._write(data, offset, min_bytes=len(data))
            failpoint("tail.after-write")
        except OSError as error:
            with contextlib.suppress(OSError):
                self._truncate(offset)
            raise storage_error(error, "writing objects") from error
        start = 0
        located = self._locations
        for oid, kind, content in objects:
            located[oid] = (self, offset, start, len(content), kind)
            start += len(content)
        self.end = offset + len(data)
        self.frames += 1
        return offset

    def _write(self, data: bytes, offset: int, *, min_bytes: int) -> None:
        done = os.pwrite(self._file.fd, data, offset)
        while done < min_bytes:  # a signal or a full disk: the next call shows which
            done += os.pwrite(self._file.fd, memoryview(data)[done:], offset + done)
        self._file_size = max(self._file_size, offset + done)

    def _truncate(self, size: int) -> None:
        os.ftruncate(self._file.fd, size)
        self._file_size = size

    def sync(self) -> None:
        """Make everything appended so far durable."""
        with self._sync_lock:
            end = self.end
            if self.synced >= end:
                return
            try:
                failpoint("tail.before-sync")
                # The kernel reports a failed write only once, perhaps to another thread.
                if self._sync_error is not None:
                    raise self._sync_error
                sync_data(self._file.fd)
                if not self.synced:
                    sync_directory(self.path.parent)
            except OSError as error:
                self._sync_error = error
                raise storage_error(error, "syncing objects") from error
            failpoint("tail.after-sync")
            self.synced = end
            self._sync_count += 1

    def sync_foreign(self) -> None:
        """Make durable what another writer has appended and we rely on."""
        try:
            sync_data(self._file.fd)
        except OSError as error:
            raise storage_error(error, "syncing objects of another process") from error

    def rewrite_unsynced(self) -> None:
        """Write all unsynced frames again after a failed sync.

        The kernel reports a failed write once and then marks the pages as clean. A second sync is
        therefore only meaningful after the pages were written again. The tail is truncated only at
        a frame whose bytes can no longer be read, also not from the page cache.
        """
        with self._sync_lock:
            good = self.synced
            with contextlib.suppress(Corrupt, Unsupported):
                for frame_info in frame.scan(self.read, self.synced, self.end):
                    data = self.read(frame_info.offset, frame_info.header.size)
                    frame.check_payload(frame_info.header, data[frame_info.header.payload_start :])
                    self._write(data, frame_info.offset, min_bytes=len(data))
                    good += len(data)
            if good < self.end:
                self._truncate(good)
                self.end = good
                for oid in [
                    oid for oid, location in self._locations.items() if location[1] >= good
                ]:
                    del self._locations[oid]
            self._sync_error = None

    def is_full(self, seal_bytes: int, divisor: int = 1) -> bool:
        """Return True if the tail is large enough to be sealed, or has 1/`divisor` of that size."""
        return (
            self.end * divisor >= seal_bytes
            or self.frames * divisor >= SEAL_FRAMES
            or len(self._locations) * divisor >= SEAL_OBJECTS
        )

    def trim(self) -> None:
        """Truncate the preallocated space. Only allowed if nothing will be appended."""
        self._truncate(self.end)

    def discard(self) -> None:
        """Delete the file and unlock it. The caller knows that its objects are stored elsewhere."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
        fcntl.flock(self._file.fd, fcntl.LOCK_UN)

    def release(self) -> None:
        """Unlock the tail, so that others can adopt it. Delete it if it is empty.

        Only the owner may call this, never a child of fork(2).
        """
        with contextlib.suppress(OSError):
            if not self.end:
                self.path.unlink()
            elif self._file_size > self.end:
                self._truncate(self.end)
        fcntl.flock(self._file.fd, fcntl.LOCK_UN)
        # The locations refer to this tail. Break the cycle, so that the file is closed without the
        # garbage collector.
        self._locations = {}
