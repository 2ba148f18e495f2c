"""The open end of a writer: frames appended under flock, followed by readers in other processes by
header."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from ortet._util.failpoints import reach
from ortet.errors import Corrupt, OrtetError, Unavailable, Unsupported
from ortet.ids import Oid
from ortet.objects import frame
from ortet.objects.source import File, Source, Spot

SUFFIX = ".tail"
PART = ".pack.part"
"""What a tail is written anew to when it is sealed."""
SEAL_AT = 64 * 1024 * 1024
# Opening a store scans the headers of its tails: these bounds keep that near 20 ms.
SEAL_FRAMES = 2048
SEAL_OBJECTS = 32_768
# Syncing a write into zeros that are on the disk already takes less than half the time of one that
# makes the file longer, so a tail that is synced again and again keeps room ahead.
_STEADY = 8
_ROOM = bytes(256 * 1024)


def pack_key(id_: str) -> str:
    return f"packs/{id_}.pack"


def storage_error(error: OSError, doing: str) -> OrtetError:
    """What the caller can do about a failed system call."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Unavailable(
            "disk_full", f"the disk was full while {doing}: free some space, then repeat"
        )
    return Unavailable(
        "storage_error", f"{error.strerror or error} while {doing}: see to the disk, then repeat"
    )


def sync_data(fd: int) -> None:
    """Return when what was written to a file is on its disk."""
    if hasattr(os, "fdatasync"):
        os.fdatasync(fd)
    else:  # macOS, where fsync leaves it in the cache of the drive
        fcntl.fcntl(fd, getattr(fcntl, "F_FULLFSYNC"))  # noqa: B009


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class Tail(Source):
    """A tail file: ours, locked and writable, or another writer's, which we only follow."""

    def __init__(self, path: Path, file: File, *, key_id: bytes) -> None:
        self.key = path.name
        self.id = self.key.removesuffix(SUFFIX)
        self.path = path
        self.end = 0
        self.synced = 0
        self.frames = 0
        self._file = file
        self._key_id = key_id
        self._seen = (0, 0)
        self._last, self._last_head = 0, b""
        self._syncing = threading.Lock()
        self._syncs = 0
        self._size = 0  # of the file, with the room behind the end
        self.published = False  # its pack may be in the bucket, where a sweep can find it
        self._broken: OSError | None = None
        self._spots: dict[Oid, Spot] = {}

    # reading

    def read(self, offset: int, length: int) -> bytes:
        try:
            return os.pread(self._file.fd, length, offset)
        except OSError as error:
            raise storage_error(error, f"reading {self.path}") from error

    def is_free(self) -> bool:
        """Whether nobody holds it, at this moment."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # sealed meanwhile
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(fd)
        return True

    def find(self, oid: Oid) -> Spot | None:
        return self._spots.get(oid)

    def prefix(self, low: bytes, high: bytes) -> Iterator[tuple[Oid, int]]:
        return ((oid, spot[4]) for oid, spot in list(self._spots.items()) if low <= oid <= high)

    def spots(self) -> Iterator[tuple[Oid, Spot]]:
        return iter(list(self._spots.items()))

    def __len__(self) -> int:
        return len(self._spots)

    def moved(self) -> bool:
        """Whether the file changed since the last `advance`."""
        return self._mark() != self._seen

    def _mark(self) -> tuple[int, int]:
        status = os.fstat(self._file.fd)
        return status.st_size, status.st_mtime_ns

    def advance(self) -> None:
        """Take in the whole frames another writer has appended since the last look."""
        self._seen = self._mark()
        if not self._continues():
            self._spots.clear()
            self.end = self.frames = 0
        last: frame.Lead | None = None
        for lead in self._leads(self._seen[0]):
            if last is not None:
                self.add(last)
            last = lead
        # All but the last are whole, since another was written behind them.
        if last is not None and self._is_whole(last):
            self.add(last)

    def _leads(self, stop: int) -> Iterator[frame.Lead]:
        """Sound headers from `end` on, also behind damage."""
        at: int | None = self.end
        while at is not None:
            try:
                for lead in frame.scan(self.read, at, stop):
                    yield lead
                    at = lead.offset + lead.header.size
                return
            except Unsupported:
                return
            except Corrupt as error:
                if error.kind == frame.SHORT:
                    return
                at = frame.resync(self.read, at + 1, stop)

    def _is_whole(self, lead: frame.Lead) -> bool:
        payload = self.read(lead.offset + lead.header.lead, lead.header.stored)
        try:
            frame.check_payload(lead.header, payload)
        except Corrupt:
            return False
        return True

    def _continues(self) -> bool:
        """Whether the last frame we saw is still there: recovery may have cut it off."""
        return not self.frames or self.read(self._last, frame.HEADER_BYTES) == self._last_head

    def add(self, lead: frame.Lead) -> None:
        """Index one frame, the next in order."""
        if lead.header.key_id == self._key_id:
            start = 0
            for oid, kind, length in lead.rows():
                self._spots[oid] = (self, lead.offset, start, length, kind)
                start += length
        self._last, self._last_head = lead.offset, lead.head
        self.end = lead.offset + lead.header.size
        self.frames += 1

    def extent(self) -> int:
        """How far there may be frames, sound or not."""
        return self._mark()[0]

    def own(self) -> None:
        """It has been adopted, and what is in it is durable."""
        self._size = self.synced = self.end

    # writing, only by the process that holds the lock

    def append(self, data: bytes, objects: Sequence[frame.Item], *, roomy: bool = False) -> int:
        """Write one frame at the end and index it; on failure the tail is as before.

        `roomy` allows keeping room behind it. Returns the frame's offset.
        """
        offset = self.end
        try:
            reach("tail.before-write")
            if roomy and self._syncs >= _STEADY and offset + len(data) > self._size:
                self._write(data + _ROOM, offset, need=len(data))
            else:
                self._write(data, offset, need=len(data))
            reach("tail.after-write")
        except OSError as error:
            with contextlib.suppress(OSError):
                self._cut(offset)
            raise storage_error(error, "writing objects") from error
        start = 0
        spots = self._spots
        for oid, kind, content in objects:
            spots[oid] = (self, offset, start, len(content), kind)
            start += len(content)
        self.end = offset + len(data)
        self.frames += 1
        return offset

    def _write(self, data: bytes, offset: int, *, need: int) -> None:
        done = os.pwrite(self._file.fd, data, offset)
        while done < need:  # a signal, or the disk is nearly full: the next call says which
            done += os.pwrite(self._file.fd, memoryview(data)[done:], offset + done)
        self._size = max(self._size, offset + done)

    def _cut(self, size: int) -> None:
        os.ftruncate(self._file.fd, size)
        self._size = size

    def sync(self) -> None:
        """Make everything appended so far durable."""
        with self._syncing:
            end = self.end
            if self.synced >= end:
                return
            try:
                reach("tail.before-sync")
                # The kernel reports a failed write once, perhaps to another thread.
                if self._broken is not None:
                    raise self._broken
                sync_data(self._file.fd)
                if not self.synced:
                    sync_directory(self.path.parent)
            except OSError as error:
                self._broken = error
                raise storage_error(error, "syncing objects") from error
            reach("tail.after-sync")
            self.synced = end
            self._syncs += 1

    def settle(self) -> None:
        """Make durable what another writer appended and we rely on."""
        try:
            sync_data(self._file.fd)
        except OSError as error:
            raise storage_error(error, "syncing objects of another process") from error

    def redo(self) -> None:
        """After a failed sync, write once more what was not synced before.

        The kernel reports a failed write once and then takes the pages for clean: only writing them
        again makes the next sync mean something. Nothing is cut off that others may rely on, except
        from a frame on whose bytes are gone even from memory.
        """
        with self._syncing:
            good = self.synced
            with contextlib.suppress(Corrupt, Unsupported):
                for lead in frame.scan(self.read, self.synced, self.end):
                    data = self.read(lead.offset, lead.header.size)
                    frame.check_payload(lead.header, data[lead.header.lead :])
                    self._write(data, lead.offset, need=len(data))
                    good += len(data)
            if good < self.end:
                self._cut(good)
                self.end = good
                for oid in [oid for oid, spot in self._spots.items() if spot[1] >= good]:
                    del self._spots[oid]
            self._broken = None

    def full(self, seal_at: int, part: int = 1) -> bool:
        """Whether it is large enough to be a pack, or 1/`part` of that."""
        return (
            self.end * part >= seal_at
            or self.frames * part >= SEAL_FRAMES
            or len(self._spots) * part >= SEAL_OBJECTS
        )

    def trim(self) -> None:
        """Give back the room behind the end; only when nothing will be appended."""
        self._cut(self.end)

    def discard(self) -> None:
        """Throw it away: what is in it is elsewhere too."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
        fcntl.flock(self._file.fd, fcntl.LOCK_UN)

    def release(self) -> None:
        """Let others adopt it; an empty one is removed. Only its owner may, never a child of
        fork(2)."""
        with contextlib.suppress(OSError):
            if not self.end:
                self.path.unlink()
            elif self._size > self.end:
                self._cut(self.end)
        fcntl.flock(self._file.fd, fcntl.LOCK_UN)
        self._spots = {}  # which point back here: only the garbage collector would close the file
