"""The object store: new objects go to a tail file, sealed objects are in packs."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ortet._util.codec import Hasher
from ortet.backends.base import Bucket, UploadBacklog
from ortet.backends.object_storage.pending_uploads import PendingUploadTable
from ortet.errors import Corrupt, Invalid, NotFound, OrtetError
from ortet.ids import OID_BYTES, Clock, Oid, Random, uuid7
from ortet.objects.base import Kind, ObjectStore
from ortet.objects.gc.lock import SweepLock
from ortet.objects.layout import SpaceGuard, open_layout
from ortet.objects.pack import Pack
from ortet.objects.placement import Durability, LocalPlacement, StorePlacement
from ortet.objects.source import FrameCache, FrameSource, ObjectLocation, kind_of, no_object
from ortet.objects.tail import SEAL_BYTES, Tail, storage_error
from ortet.objects.writer import ObjectWriter

if TYPE_CHECKING:
    from concurrent.futures import Future

_READ_AHEAD_FRAMES = 4
_MAX_SEQUENTIAL_FRAMES = 4

LocatedObject = tuple[Oid, ObjectLocation]
_FrameGroup = tuple[FrameSource, int, list[LocatedObject]]


def read_located(
    located: Sequence[LocatedObject], cache: FrameCache, *, fallback: Callable[[Oid], bytes]
) -> Iterator[tuple[Oid, bytes]]:
    """Yield the bytes at each location, in pack order, so that each frame is decoded once.

    Frames are decoded a few ahead of the reader. `fallback` reads an object whose frame cannot be
    read.
    """
    members_by_frame: dict[tuple[str, int], list[LocatedObject]] = {}
    for item in located:
        location = item[1]
        members_by_frame.setdefault((location[0].key, location[1]), []).append(item)
    groups: list[_FrameGroup] = []
    for key in sorted(members_by_frame):
        members = members_by_frame[key]
        members.sort(key=lambda item: item[1][2])  # by their offset in the frame
        groups.append((members[0][1][0], key[1], members))
    frames = (
        _load_frames(groups, cache)
        if len(groups) <= _MAX_SEQUENTIAL_FRAMES
        else _load_frames_ahead(groups, cache)
    )
    for (_, _, members), data in zip(groups, frames, strict=True):
        for oid, (_, _, start, length, _) in members:
            yield oid, fallback(oid) if data is None else data[start : start + length]


def _load_frames(groups: Sequence[_FrameGroup], cache: FrameCache) -> Iterator[bytes | None]:
    for source, offset, _ in groups:
        try:
            yield cache.load(source, offset)
        except (NotFound, Corrupt):
            yield None


def _load_frames_ahead(groups: Sequence[_FrameGroup], cache: FrameCache) -> Iterator[bytes | None]:
    """Decode frames in other threads. Do not cache them: a sequential read uses each frame once."""
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - a command that does not need it starts faster

    def load(source: FrameSource, offset: int) -> bytes | None:
        try:
            return cache.get((source.key, offset)) or source.load(offset)
        except (NotFound, Corrupt):
            return None

    with ThreadPoolExecutor(2, "ortet-fetch") as pool:
        coming: deque[Future[bytes | None]] = deque()
        for number in range(len(groups) + _READ_AHEAD_FRAMES):
            if number < len(groups):
                coming.append(pool.submit(load, *groups[number][:2]))
            if number >= _READ_AHEAD_FRAMES:
                yield coming.popleft().result()


class ObjectStats(msgspec.Struct, frozen=True):
    """The size of a store. An object that is stored twice counts twice until a sweep."""

    objects: int
    packs: int
    tails: int
    pack_bytes: int
    tail_bytes: int


_pid = os.getpid()
"""The cached process id. `os.getpid()` for every object takes 5% of the time of a first commit."""


def _update_pid() -> None:
    global _pid
    _pid = os.getpid()


os.register_at_fork(after_in_child=_update_pid)


@cache
def _raise_malloc_threshold() -> None:
    """Make malloc keep large blocks instead of returning them to the kernel. Runs once a process.

    Blocks of our size are above glibc's initial mmap threshold. Each one is then mapped, cleared
    and unmapped again, which takes half of the CPU time of a large commit. Freeing a larger block
    raises the threshold.
    """
    bytes(30 << 20)  # unlike a bytearray, this does not touch the memory


class PackedObjectStore(ObjectStore):
    """A handle on the store at `root`, with its sealed packs in `bucket`.

    `placement` supplies the parts that depend on where the bucket is. The default is a store on one
    host. `objects.remote.placement.open_remote_objects` opens a store with a remote bucket.

    Threads can share a handle. A child of fork(2) may keep using it and writes to its own tail.
    Other processes open their own handle.
    """

    def __init__(
        self,
        root: Path,
        bucket: Bucket,
        *,
        hasher: Hasher,
        clock: Clock,
        random: Random = os.urandom,
        quota: int | None = None,
        reserve: int = 0,
        seal_bytes: int = SEAL_BYTES,
        pending_uploads: PendingUploadTable | None = None,
        placement: StorePlacement | None = None,
    ) -> None:
        _raise_malloc_threshold()
        self.hasher = hasher
        self.find_replacement: Callable[[Oid], Oid | None] = lambda _: None
        self.pending_uploads = pending_uploads
        self._placement = placement or LocalPlacement()
        try:
            self.layout = open_layout(root, hasher)
            self.sweep_lock = SweepLock(self._placement.make_fence(self.layout))
        except OSError as error:
            raise storage_error(error, f"opening the store at {root}") from error
        self.bucket = bucket
        self.cache = FrameCache()
        self.space = SpaceGuard(self.layout, bucket, clock=clock, quota=quota, reserve=reserve)
        self.pack_set, target = self._placement.make_packs(
            self.layout,
            bucket,
            key_id=hasher.key_id,
            new_id=partial(uuid7, clock, random),
            space=self.space,
        )
        self.writer = ObjectWriter(
            self.pack_set,
            target,
            self.space,
            self.cache,
            key_id=hasher.key_id,
            seal_bytes=seal_bytes,
        )
        self._sweep_epoch = self.sweep_lock.epoch()
        self._abandon_count = 0
        self._pending = self.writer.pending
        self._pid = _pid
        self._closed = False
        self.pack_set.refresh()

    @property
    def is_remote(self) -> bool:
        """True if the bucket is remote and `root` is only a local cache of it."""
        return self._placement.is_remote

    def require_exclusive(self, action: str) -> None:
        """Raise Unsupported if this process cannot exclude all other writers."""
        self.sweep_lock.require_exclusive(action)

    def drop_local_cache(self) -> None:
        """Discard local copies of a remote bucket: the next reads come from the bucket itself."""
        if self.is_remote:
            self.cache.clear()
            for pack in self.pack_set.packs:
                if isinstance(pack, Pack):
                    pack.file.drop_local_copy()

    def with_durability(self, durable: Durability | None) -> AbstractContextManager[None]:
        """Return a context manager that sets what `flush` guarantees within the block.

        With "remote", everything that was put before is in the bucket when the block ends. None
        keeps the durability that the store was opened with. A store on one host ignores the value.
        """
        if durable not in (None, "remote", "local"):
            raise Invalid("bad_durable", f'durable is {durable!r}: give "remote" or "local"')
        return self._placement.durability(durable)

    def queued(self) -> UploadBacklog:
        """Return what is stored only on this host and not yet readable by other hosts."""
        return self._placement.backlog()

    def wait_for_uploads(self, timeout: float = 60.0) -> None:
        """Wait until all uploads have ended.

        Raises Unavailable("not_uploaded_yet") at the timeout.
        """
        self._placement.wait_uploaded(timeout)

    def swept_since(self, epoch: int) -> bool:
        """Return True if a sweep, also one of another host, has deleted packs since `epoch`."""
        return self.sweep_lock.fetch_epoch() != epoch

    @property
    def epoch(self) -> int:
        """A number that grows whenever unreachable objects may have been deleted or abandoned."""
        return self._sweep_epoch + self._abandon_count

    # the ObjectStore contract

    def put(self, kind: Kind, data: bytes) -> Oid:
        oid = self.hasher.oid(data)
        if oid not in self._pending and self.pack_set.find_durable(oid) is None:
            self._reset_if_forked()
            self.writer.add(oid, kind, data)
        return oid

    def put_new(self, kind: Kind, data: bytes) -> Oid:
        oid = self.hasher.oid(data)
        if oid not in self._pending and self.pack_set.find_in_own_tails(oid) is None:
            self._reset_if_forked()
            self.writer.add(oid, kind, data)
        return oid

    def get(self, oid: Oid) -> bytes:
        item = self._pending.get(oid)
        if item is not None:
            return item[2]
        try:
            location = self.pack_set.find(oid)
            if location is not None:
                return self._read(location)
        except (NotFound, Corrupt):
            pass
        return self._get_after_refresh(oid)

    def _read(self, location: ObjectLocation) -> bytes:
        source, offset, start, length, _ = location
        return self.cache.load(source, offset)[start : start + length]

    def _get_after_refresh(self, oid: Oid) -> bytes:
        """Read the object after a refresh, from any copy.

        Another process may have sealed, swept or appended in the meantime. If one copy is damaged,
        another copy may be intact.
        """
        self._reset_if_forked()
        failure: OrtetError | None = None
        for is_second_try in (False, True):
            self.pack_set.refresh(reload_tails=is_second_try)
            for location in self.pack_set.copies(oid):
                try:
                    return self._read(location)
                except (NotFound, Corrupt) as error:
                    failure = error
            if failure is None:
                raise self._missing_error(oid)
        raise failure if isinstance(failure, Corrupt) else self._missing_error(oid)

    def _missing_error(self, oid: Oid) -> OrtetError:
        """Return the error for a missing object.

        The object may still be on its way from another host.
        """
        late = (
            self.pending_uploads.explain_missing(oid) if self.pending_uploads is not None else None
        )
        return no_object(oid) if late is None else late

    def has(self, oid: Oid) -> bool:
        """Return True if the object is stored, as far as this host knows.

        An object in another process's tail becomes durable with the next flush of this handle. With
        a remote bucket, a new object of another host is not known, and is then stored twice.
        """
        if oid in self._pending or self.pack_set.find_durable(oid) is not None:
            return True
        if self.is_remote:
            return False
        self._reset_if_forked()
        tail = self.pack_set.find_foreign_tail(oid)
        if tail is None and self.pack_set.refresh_if_changed():
            if self.pack_set.find_durable(oid) is not None:
                return True
            tail = self.pack_set.find_foreign_tail(oid)
        return tail is not None and self._sync_with_next_flush(oid, tail)

    def _sync_with_next_flush(self, oid: Oid, tail: Tail) -> bool:
        """Include another writer's tail in the next flush if the tail's copy of `oid` is intact."""
        try:
            location = tail.find(oid)
            if location is None or not self.cache.load(tail, location[1]):
                return False
        except (Corrupt, NotFound):
            return False
        self.writer.sync_with_next_flush(tail)
        return True

    def replacement_of(self, oid: Oid) -> Oid:
        return self.find_replacement(oid) or oid

    def get_many(self, oids: Iterable[Oid]) -> Iterator[tuple[Oid, bytes]]:
        wanted = dict.fromkeys(oids)
        located: list[tuple[Oid, ObjectLocation]] = []
        for oid in wanted:
            location = None if oid in self._pending else self.pack_set.find(oid)
            if location is None:
                yield oid, self.get(oid)
            else:
                located.append((oid, location))
        yield from read_located(located, self.cache, fallback=self.get)

    # methods beyond the contract

    def flush(self, *, sync: bool = True) -> None:
        """Write all objects that were put. With `sync` they are durable on return.

        Raises:
            Refused, Unavailable: The objects could not be written. They are kept, and the next
                flush
                tries again.
        """
        self._reset_if_forked()
        self._placement.flush(self.writer, sync=sync)

    @contextmanager
    def writing(self) -> Iterator[int]:
        """Prevent sweeps from deleting objects while a commit is written.

        The block begins before the first put and ends after the head has moved.

        Yields:
            The epoch. If it differs from an earlier value, unreachable objects may be gone. Callers
                then
            forget the object ids that they remembered.
        """
        self._reset_if_forked()
        pid = self._pid
        epoch = self.sweep_lock.begin_write()
        try:
            if epoch != self._sweep_epoch:
                self.refresh_after_sweep(epoch)
            yield self.epoch
        finally:
            self.sweep_lock.end_write(pid)

    def refresh_after_sweep(self, epoch: int) -> None:
        """Clear the cache and read the list of packs again."""
        self.cache.clear()
        self.pack_set.refresh(after_sweep=True)
        self._sweep_epoch = epoch

    def abandon(self) -> None:
        """Discard the unwritten objects of a failed commit.

        Otherwise they would fail the next commit too. Does nothing if another writer of this
        process is active or the call is nested in another writer.
        """
        with self.sweep_lock.sole_writer() as last:
            if last and self._pending:
                self.writer.abandon()
                self._abandon_count += 1

    def find_by_prefix(self, prefix: str) -> list[tuple[Oid, Kind]]:
        """Return the objects whose id begins with these hex digits, sorted by id."""
        low, high = _bounds(prefix)
        self._reset_if_forked()
        self.pack_set.refresh_if_changed()
        kinds = {oid: item[1] for oid, item in list(self._pending.items()) if low <= oid <= high}
        kinds.update(self.pack_set.iter_range(low, high))
        if not kinds:  # packs sent by a remote hub only appear after a full refresh
            self.pack_set.refresh()
            kinds.update(self.pack_set.iter_range(low, high))
        if not kinds and len(prefix) == 2 * OID_BYTES:  # a shorter prefix may not be an object id
            missed = self._missing_error(Oid(bytes.fromhex(prefix)))
            if not isinstance(missed, NotFound):
                raise missed
        return [(oid, kind_of(kinds[oid])) for oid in sorted(kinds)]

    def stats(self) -> ObjectStats:
        """Return the number of objects, packs and tails, and their sizes."""
        self._reset_if_forked()
        self.pack_set.refresh()
        tails = (*self.pack_set.own_tails, *self.pack_set.foreign_tails)
        packs = self.pack_set.packs
        return ObjectStats(
            objects=sum(len(tail) for tail in tails) + sum(len(pack) for pack in packs),
            packs=len(packs),
            tails=len(tails),
            pack_bytes=sum(pack.end for pack in packs),
            tail_bytes=sum(tail.end for tail in tails),
        )

    def close(self) -> None:
        """Flush, and release the tail for adoption by other processes.

        A second call does nothing.
        """
        if not self._closed:
            self._closed = True
            self._reset_if_forked()
            try:
                self.writer.close()
            finally:
                self.cache.clear()
                self.sweep_lock.close()
                self._placement.close()

    def _reset_if_forked(self) -> None:
        if self._pid != _pid:
            self._pid = _pid
            self.cache.after_fork()
            self.sweep_lock.after_fork()
            self.writer.after_fork(self.pack_set.after_fork())


def _bounds(prefix: str) -> tuple[bytes, bytes]:
    digits = 2 * OID_BYTES
    text = prefix.lower()
    if not 0 < len(text) <= digits or not set(text) <= set("0123456789abcdef"):
        raise Invalid("bad_oid", f"{prefix!r} does not begin an object id: give hexadecimal digits")
    return bytes.fromhex(text.ljust(digits, "0")), bytes.fromhex(text.ljust(digits, "f"))
