"""The placement of a store whose packs are in a remote bucket: S3, or an Ortet server.

With durability "remote", objects are in the bucket when `flush` returns. Objects that were read are
cached on this host.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ortet._util.codec import Hasher
from ortet.backends.base import Bucket, UploadBacklog
from ortet.backends.object_storage.pending_uploads import PendingUploadTable
from ortet.backends.object_storage.upload_queue import QueuedBucket
from ortet.backends.sweep_epoch import EpochTracker
from ortet.errors import NotFound, Refused, Unavailable, Unsupported
from ortet.ids import Clock, Random
from ortet.objects.base import Kind
from ortet.objects.gc.lock import SweepFence
from ortet.objects.layout import SpaceGuard, StoreLayout
from ortet.objects.pack_set import PackSet
from ortet.objects.placement import Durability, StorePlacement
from ortet.objects.remote.pack_cache import CACHE_LIMIT_BYTES, PackCache
from ortet.objects.remote.pack_set import RemotePackStorage
from ortet.objects.store import PackedObjectStore
from ortet.objects.tail import SEAL_BYTES, Tail
from ortet.objects.writer import FlushTarget, ObjectWriter

_QUEUE_DIRECTORY = "local/queue"


def open_remote_objects(
    root: Path,
    bucket: Bucket,
    *,
    epochs: EpochTracker,
    hasher: Hasher,
    clock: Clock,
    random: Random = os.urandom,
    reserve: int = 0,
    seal_bytes: int = SEAL_BYTES,
    durable: Durability = "remote",
    cache_bytes: int = CACHE_LIMIT_BYTES,
    pending_uploads: PendingUploadTable | None = None,
) -> PackedObjectStore:
    """Open a handle on a store that is shared with other hosts.

    With durability "local", `flush` returns when everything is on this host's disk, and uploads run
    in the background. Until then other hosts cannot read the objects, and a lost disk loses
    everything that `queued` reports.

    Args:
        root: The directory of local files.
        bucket: The bucket that the hosts share.
        epochs: The sweep epochs of the store.
        durable: What `flush` guarantees.
        cache_bytes: The limit for packs that are cached below `root`.
        pending_uploads: The table in which hosts announce queued objects to one another.
    """
    # Ids of packs are unique, so the queue need not ask the bucket.
    queue = QueuedBucket(
        bucket, root / _QUEUE_DIRECTORY, check_remote=False, pending_uploads=pending_uploads
    )
    return PackedObjectStore(
        root,
        queue,
        hasher=hasher,
        clock=clock,
        random=random,
        reserve=reserve,
        seal_bytes=seal_bytes,
        pending_uploads=pending_uploads,
        placement=RemotePlacement(queue, epochs, durable=durable, cache_bytes=cache_bytes),
    )


class RemotePlacement(StorePlacement):
    """Packs in a remote bucket behind an upload queue, with a cache on this host."""

    is_remote = True

    def __init__(
        self, queue: QueuedBucket, epochs: EpochTracker, *, durable: Durability, cache_bytes: int
    ) -> None:
        self._queue = queue
        self._epochs = epochs
        self._cache_bytes = cache_bytes
        self._cache: PackCache | None = None
        self._set_durable(durable)

    def make_fence(self, layout: StoreLayout) -> SweepFence:
        del layout
        return WriteFence(self._epochs)

    def make_packs(
        self,
        layout: StoreLayout,
        bucket: Bucket,
        *,
        key_id: bytes,
        new_id: Callable[[], str],
        space: SpaceGuard,
    ) -> tuple[PackSet, FlushTarget]:
        self._cache = PackCache(layout.local / "kept", self._cache_bytes)
        storage = RemotePackStorage(layout, bucket, key_id=key_id, new_id=new_id, cache=self._cache)
        packs = PackSet(layout, storage, new_id=new_id)
        return packs, UploadFlush(packs, storage, space)

    def flush(self, writer: ObjectWriter, *, sync: bool) -> None:
        """Flush, and record commits that are only on this host, so that others learn of them."""
        pending = [] if self._queue.direct else list(writer.pending.items())
        commits = [oid.hex() for oid, item in pending if item[1] == Kind.COMMIT]
        writer.flush(sync=sync)
        if commits:
            self._queue.record_commits(commits)
        if sync and self._queue.direct:
            self._queue.wait_uploaded()

    @contextmanager
    def durability(self, durable: Durability | None) -> Iterator[None]:
        before = self._queue.direct
        if durable is not None:
            self._set_durable(durable)
        try:
            yield
        finally:
            self._queue.direct = before
        if durable == "remote":  # also uploads of an earlier commit, if this one was empty
            self._queue.wait_uploaded()

    def _set_durable(self, durable: Durability) -> None:
        self._queue.direct = durable == "remote"

    def backlog(self) -> UploadBacklog:
        return self._queue.backlog()

    def wait_uploaded(self, timeout: float) -> None:
        self._queue.wait_uploaded(timeout)

    def close(self) -> None:
        self._queue.stop()
        if self._cache is not None:
            self._cache.prune()


class UploadFlush(FlushTarget):
    """Uploads our tails with each flush.

    A flush uploads one pack, or several large ones. `sweep` merges the many small packs.
    """

    compress_at_flush = True

    def __init__(self, pack_set: PackSet, storage: RemotePackStorage, space: SpaceGuard) -> None:
        self._pack_set = pack_set
        self._storage = storage
        self._space = space

    def check_space(self, tail: Tail, size: int) -> None:
        if not self._storage.is_in_memory(tail):
            self._space.check(size)

    def make_room(self, error: Refused | Unavailable, tail: Tail | None) -> Tail | None:
        """Keep frames in memory until the next flush ends, if the disk is full.

        This is not possible with durability "local": the objects must survive on this host's disk.
        """
        if error.kind not in ("disk_full", "disk_reserve"):
            raise error
        if not self._storage.is_write_through():
            raise type(error)(
                error.kind,
                f'{error.message}; or commit with durable="remote", which needs no room here',
                **error.details,
            ) from error
        self._storage.uses_memory_tails = True
        # `sync_own_tails` seals the tail on the disk together with the others.
        return tail if tail is not None and self._storage.is_in_memory(tail) else None

    def sync_own_tails(self, writer: ObjectWriter) -> None:
        writer.wait_for_seals()
        for tail in writer.detach_tail():
            self._pack_set.seal(tail)
        self._storage.uses_memory_tails = False

    def sync_foreign(self, tail: Tail) -> None:
        """Upload the tail of a parent of fork(2), because the parent may never do it."""
        if tail.end:
            self._storage.publish(tail)
            self._pack_set.refresh()

    def after_sync(self) -> None:
        # Ignore packs that another host has deleted, and a full disk. The flushed objects are in
        # the bucket; only look-ups become slower.
        with suppress(NotFound, OSError):
            self._pack_set.merge_tables()

    def finish(self, writer: ObjectWriter) -> None:
        """Keep nothing: objects that were not flushed belong to no commit."""


class WriteFence(SweepFence):
    """The sweep fence of a store that hosts share. It refuses writes by their epoch.

    Writers are not locked out: a write that overlapped a sweep is refused instead, see
    backends/sweep_epoch.py. Exclusive locks are refused: see gc/sweep_remote.py.
    """

    def __init__(self, epochs: EpochTracker) -> None:
        self._epochs = epochs
        self._write_epoch: int | None = None  # None: no writer of this process is active

    def lock_shared(self) -> None:
        self._write_epoch = self._epochs.recent()

    def unlock_shared(self) -> None:
        self._write_epoch = None

    def begin_thread(self, epoch: int) -> None:
        self._epochs.set_write_epoch(epoch)

    def end_thread(self) -> None:
        self._epochs.set_write_epoch(None)

    def close(self) -> None: ...

    def after_fork(self) -> None:
        self._write_epoch = None
        self._epochs.set_write_epoch(None)  # the child does not continue its parent's write

    def epoch(self) -> int:
        epoch = self._write_epoch
        return self._epochs.cached() if epoch is None else epoch

    def fetch_epoch(self) -> int:
        return self._epochs.refresh()

    def require_exclusive(self, action: str) -> None:
        raise _remote_store_error(action)

    @contextmanager
    def exclusive(self, timeout: float) -> Iterator[None]:
        del timeout
        raise _remote_store_error("this")
        yield

    def raise_epoch(self) -> int:
        raise _remote_store_error("this")

    @contextmanager
    def hold_gc_lock(self, *, exclusive: bool) -> Iterator[None]:
        if exclusive:
            raise _remote_store_error("this")
        yield


def _remote_store_error(action: str) -> Unsupported:
    return Unsupported(
        "remote_store",
        f"{action} must keep out the writers of all hosts, which only the server can: do it there",
    )
