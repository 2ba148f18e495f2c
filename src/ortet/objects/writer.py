"""Collects objects into frames and appends them to a tail, with one sync a flush.

Full frames are compressed in two threads. The rest of a commit stays raw: compression would take
longer than the disk write. It is compressed when the tail is sealed.
"""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ortet._util.codec import Compressor
from ortet.errors import Invalid, OrtetError, Refused, Unavailable
from ortet.ids import Oid
from ortet.objects import frame
from ortet.objects.base import Kind
from ortet.objects.frame import FrameBatches, split_into_frames
from ortet.objects.layout import SpaceGuard
from ortet.objects.pack_set import PackSet
from ortet.objects.source import FrameCache
from ortet.objects.tail import Tail

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

_SMALL_FRAME_BYTES = 64 * 1024
_MAX_IN_FLIGHT_BYTES = 32 * 1024 * 1024
_THREADS = 2
_PRUNE_JOBS_ABOVE = 256
_CLOSE_SEAL_DIVISOR = 8
"""At close, a tail above this fraction of a pack is sealed: 8 MiB, 256 frames or 4096 objects."""


class FlushTarget(ABC):
    """Where a flush makes tails durable: on the disk of this host, or in a remote bucket."""

    compress_at_flush: bool
    """True if the objects left at the end of a commit are compressed too."""

    @abstractmethod
    def check_space(self, tail: Tail, size: int) -> None:
        """Raise Refused if the tail must not grow by `size` bytes."""

    @abstractmethod
    def make_room(self, error: Refused | Unavailable, tail: Tail | None) -> Tail | None:
        """Return the tail to write to after a write failed; None means a new one.

        Raise the error if another write would fail too.
        """

    @abstractmethod
    def sync_own_tails(self, writer: ObjectWriter) -> None:
        """Make our tails durable."""

    @abstractmethod
    def sync_foreign(self, tail: Tail) -> None:
        """Make durable what another writer has appended and we rely on."""

    @abstractmethod
    def after_sync(self) -> None:
        """Tidy up after all tails are durable. Never fails."""

    @abstractmethod
    def finish(self, writer: ObjectWriter) -> None:
        """Keep what must be kept before the tails are released."""


class DiskFlush(FlushTarget):
    """Syncs tails to the disk of this host. Tails stay, and are sealed when they are large."""

    compress_at_flush = False

    def __init__(self, pack_set: PackSet, space: SpaceGuard) -> None:
        self._pack_set = pack_set
        self._space = space

    def check_space(self, tail: Tail, size: int) -> None:
        del tail
        self._space.check(size)

    def make_room(self, error: Refused | Unavailable, tail: Tail | None) -> Tail | None:
        del tail
        raise error

    def sync_own_tails(self, writer: ObjectWriter) -> None:
        for tail in self._pack_set.own_tails:
            if tail.synced < tail.end:
                try:
                    tail.sync()
                except OrtetError:  # then the next flush tries again
                    with writer.append_lock, contextlib.suppress(OSError):
                        tail.rewrite_unsynced()
                    raise

    def sync_foreign(self, tail: Tail) -> None:
        tail.sync_foreign()

    def after_sync(self) -> None: ...

    def finish(self, writer: ObjectWriter) -> None:
        """Write and sync pending objects, and seal large tails.

        A process that adopts a tail has to read all of it.
        """
        writer.flush()
        writer.wait_for_seals()
        writer.seal_large_tails()


class ObjectWriter:
    """The writing half of a store handle. Thread-safe.

    An object stays in `pending` until its frame is written, also after a failure. A later flush
    writes it. A flush that succeeds has therefore written every object that was put before.
    """

    def __init__(
        self,
        pack_set: PackSet,
        target: FlushTarget,
        space: SpaceGuard,
        cache: FrameCache,
        *,
        key_id: bytes,
        seal_bytes: int,
    ) -> None:
        self.pending: dict[Oid, frame.Item] = {}
        self._pack_set = pack_set
        self._target = target
        self._space = space
        self._cache = cache
        self._key_id = key_id
        self._seal_bytes = seal_bytes
        self._tail: Tail | None = None
        self._foreign_tails_to_sync: set[Tail] = set()
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()  # batches, jobs and counters; never held during I/O
        self._capacity_freed = threading.Condition(self._lock)
        self._flush_lock = threading.Lock()
        self.append_lock = threading.Lock()  # the tail
        self._batches = FrameBatches()
        self._retry_items: list[frame.Item] = []  # from a failed write or the parent process
        self._compressors: list[Compressor] = []
        self._jobs: set[Future[None]] = set()
        self._seal_jobs: set[Future[None]] = set()
        self._pool: ThreadPoolExecutor | None = None
        self._in_flight_bytes = 0
        self._failures = 0
        self._failures_raised = 0  # how many of them were raised to a caller
        self._failure: Exception | None = None

    def after_fork(self, parent_tails: Sequence[Tail]) -> None:
        """Reset threads and locks in a child process.

        The parent's pending objects stay pending here.
        """
        self._reset()
        self._tail = None
        self._foreign_tails_to_sync.update(parent_tails)
        self._retry_items = list(self.pending.values())

    def sync_with_next_flush(self, tail: Tail) -> None:
        """Sync another writer's tail with our next flush, because we rely on an object in it."""
        self._foreign_tails_to_sync.add(tail)

    def add(self, oid: Oid, kind: Kind, data: bytes) -> None:
        """Queue an object. Raises Invalid("object_too_large") if it does not fit into a frame."""
        if len(data) > frame.MAX_RAW:
            raise Invalid(
                "object_too_large",
                f"an object has {len(data)} bytes, more than {frame.MAX_RAW}: store it in blocks",
            )
        item = (oid, int(kind), data)
        with self._lock:
            if oid in self.pending:
                return
            self.pending[oid] = item
            full = self._batches.add(item)
        if full is not None:
            self._submit(full)

    # large writes, in threads

    def _submit(self, items: list[frame.Item]) -> None:
        size = sum([len(item[2]) for item in items])
        with self._capacity_freed:
            while self._in_flight_bytes > _MAX_IN_FLIGHT_BYTES:
                # With a timeout: a woken waiter may have been interrupted and lost the wake-up.
                self._capacity_freed.wait(1)
            self._in_flight_bytes += size
            if len(self._jobs) > _PRUNE_JOBS_ABOVE:
                self._jobs = {job for job in self._jobs if not job.done()}
            self._jobs.add(self._get_pool().submit(self._run_job, items, size))
            self._raise_failure(self._failures_raised)

    def _get_pool(self) -> ThreadPoolExecutor:
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - a command that does not need it starts faster

            self._pool = ThreadPoolExecutor(_THREADS, "ortet-store")
        return self._pool

    def _run_job(self, items: list[frame.Item], size: int) -> None:
        try:
            self._write_all([items], compress=True)
        finally:
            with self._capacity_freed:
                self._in_flight_bytes -= size
                # Notify one waiter: it notifies the next when its own job ends.
                self._capacity_freed.notify()

    def _write_all(self, frames: Iterable[Sequence[frame.Item]], *, compress: bool = False) -> None:
        """Write each sequence of objects as a frame.

        Objects of a failed frame go to the next flush.
        """
        for items in frames:
            try:
                self._write(items, compress=compress)
            except Exception as error:
                with self._lock:
                    self._failures += 1
                    self._failure = error
                    self._retry_items += items

    def _raise_failure(self, after_failures: int) -> None:
        """Raise the last failure if there were more than `after_failures`."""
        if self._failures > after_failures and self._failure is not None:
            self._failures_raised = self._failures
            raise self._failure

    # one frame

    def _write(self, items: Sequence[frame.Item], *, compress: bool) -> None:
        try:
            self._write_frame(items, compress=compress)
        except (Refused, Unavailable) as error:
            with self.append_lock:
                self._tail = self._target.make_room(error, self._tail)
            self._write_frame(items, compress=compress)

    def _write_frame(self, items: Sequence[frame.Item], *, compress: bool) -> None:
        data = self._build_compressed(items) if compress else frame.build(items, self._key_id, None)
        with self.append_lock:
            tail = self._tail
            if tail is None:
                tail = self._tail = self._pack_set.acquire_tail()
            self._target.check_space(tail, len(data))
            roomy = len(data) < _SMALL_FRAME_BYTES and self._space.has_ample_space()
            offset = tail.append(data, items, preallocate=roomy)
            full = tail.is_full(self._seal_bytes)
            if full:
                self._tail = None
        if len(data) < _SMALL_FRAME_BYTES and not (compress and items[0][1] == Kind.BLOB):
            # Do not cache compressible file contents: a large file would evict everything else.
            self._cache.add((tail.key, offset), b"".join([item[2] for item in items]))
        for item in items:
            self.pending.pop(item[0], None)
        if full:
            with self._lock:
                self._seal_jobs = {job for job in self._seal_jobs if not job.done()}
                self._seal_jobs.add(self._get_pool().submit(self._seal, tail))

    def _build_compressed(self, items: Sequence[frame.Item]) -> bytes:
        try:
            compressor = self._compressors.pop()
        except IndexError:
            compressor = Compressor()
        data = frame.build(items, self._key_id, compressor)
        self._compressors.append(compressor)
        return data

    # making durable

    def flush(self, *, sync: bool = True) -> None:
        """Write everything that was put before this call. With `sync`, make it durable."""
        with self._flush_lock:  # a flush must not return while another writes its items
            with self._lock:
                failures = self._failures
                frames, jobs = self._batches.drain(_SMALL_FRAME_BYTES), list(self._jobs)
                returned, self._retry_items = self._retry_items, []
            if returned:
                self._write_all(split_into_frames(returned))
            self._write_all(frames, compress=self._target.compress_at_flush)
            if jobs:
                _wait(jobs)
            with self._lock:
                self._raise_failure(failures)
            if sync:
                self._sync()

    def _sync(self) -> None:
        self._target.sync_own_tails(self)
        while self._foreign_tails_to_sync:
            tail = self._foreign_tails_to_sync.pop()
            try:
                self._target.sync_foreign(tail)
            except BaseException:
                self._foreign_tails_to_sync.add(tail)
                raise
        self._target.after_sync()

    def abandon(self) -> None:
        """Discard objects that are not written yet. The caller must be the only writer."""
        with self._flush_lock:
            with self._lock:
                jobs = list(self._jobs)
            _wait(jobs)
            with self._lock:
                self._batches, self._retry_items = FrameBatches(), []
                self._failures_raised = self._failures
                self.pending.clear()

    # sealing

    def _seal(self, tail: Tail) -> None:
        """Seal a tail.

        Ignore failures: the tail stays readable and synced, and is adopted later.
        """
        with contextlib.suppress(OrtetError, OSError):
            self._pack_set.seal(tail)
            self._pack_set.merge_tables()

    def seal_now(self) -> None:
        """Turn our tails, and all tails that no process holds, into packs.

        Objects and tails that do not fit on the disk stay as they are.
        """
        with contextlib.suppress(Refused, Unavailable):
            self.flush()
        tails = self.detach_tail()
        self.wait_for_seals()
        for tail in (*tails, *self._pack_set.adopt_all()):
            if tail in self._pack_set.own_tails:
                with contextlib.suppress(Unavailable):
                    self._pack_set.seal(tail)

    def detach_tail(self) -> tuple[Tail, ...]:
        """Write to a new tail from now on. Return our tails."""
        with self.append_lock:
            self._tail = None
            return self._pack_set.own_tails

    def seal_large_tails(self) -> None:
        """Seal our tails above a fraction of a pack."""
        for tail in self._pack_set.own_tails:
            if tail.is_full(self._seal_bytes, _CLOSE_SEAL_DIVISOR):
                self._seal(tail)

    def wait_for_seals(self) -> None:
        """Wait until the tails that are being sealed are packs."""
        with self._lock:
            sealing, self._seal_jobs = list(self._seal_jobs), set()
        _wait(sealing)

    def close(self) -> None:
        """Keep what must be kept, then release the tails."""
        try:
            self._target.finish(self)
        finally:
            self.wait_for_seals()
            if self._pool is not None:
                self._pool.shutdown()
                self._pool = None
            self._pack_set.release()
            self._tail = None


def _wait(jobs: Iterable[Future[None]]) -> None:
    """Wait until all jobs have ended, and ignore their errors."""
    for job in jobs:
        job.exception()
