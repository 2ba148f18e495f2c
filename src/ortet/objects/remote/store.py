"""The object store for a remote bucket: S3, or an Ortet server.

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
from ortet.errors import NotFound, Refused, Unavailable
from ortet.ids import Clock, Oid, Random
from ortet.objects.base import Kind
from ortet.objects.gc.lock import SweepLock
from ortet.objects.layout import SpaceGuard
from ortet.objects.pack import Pack
from ortet.objects.pack_set import PackSet, PackStorage
from ortet.objects.remote.pack_cache import CACHE_LIMIT_BYTES, PackCache
from ortet.objects.remote.pack_set import RemotePackStorage
from ortet.objects.remote.write_fence import WriteFence, refuse_remote
from ortet.objects.store import Durability, LocalObjectStore
from ortet.objects.tail import SEAL_BYTES, Tail
from ortet.objects.writer import FlushTarget, ObjectWriter

_QUEUE_DIRECTORY = "local/queue"


class RemoteObjectStore(LocalObjectStore):
    """A handle on a store that is shared with other hosts.

    `root` holds local files, with at most `cache_bytes` of cached packs. `durable` is what `flush`
    guarantees, and may be changed at any time. With "local", `flush` returns when everything is on
    this host's disk, and uploads run in the background. Until then other hosts cannot read the
    objects, and a lost disk loses everything that `queued` reports. `pending_uploads` is the table
    in which hosts announce such objects to one another.
    """

    is_remote = True

    def __init__(
        self,
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
    ) -> None:
        self._epochs = epochs
        self._cache_bytes = cache_bytes
        # Ids of packs are unique, so the queue need not ask the bucket.
        self._queue = QueuedBucket(
            bucket, root / _QUEUE_DIRECTORY, check_remote=False, pending_uploads=pending_uploads
        )
        self.durable = durable
        super().__init__(
            root,
            self._queue,
            hasher=hasher,
            clock=clock,
            random=random,
            reserve=reserve,
            seal_bytes=seal_bytes,
            pending_uploads=pending_uploads,
        )

    def _make_sweep_lock(self) -> SweepLock:
        return SweepLock(WriteFence(self._epochs))

    def _make_pack_storage(self, new_id: Callable[[], str]) -> PackStorage:
        self._pack_cache = PackCache(self.layout.local / "kept", self._cache_bytes)
        self.pack_storage = RemotePackStorage(
            self.layout,
            self.bucket,
            key_id=self.hasher.key_id,
            new_id=new_id,
            cache=self._pack_cache,
        )
        return self.pack_storage

    def _make_flush_target(self) -> FlushTarget:
        return UploadFlush(self.pack_set, self.pack_storage, self.space)

    @property
    def durable(self) -> Durability:
        return "remote" if self._queue.direct else "local"

    @durable.setter
    def durable(self, durable: Durability) -> None:
        self._queue.direct = durable == "remote"

    @contextmanager
    def with_durability(self, durable: Durability | None) -> Iterator[None]:
        before = self.durable
        with super().with_durability(durable):
            self.durable = durable or before
            try:
                yield
            finally:
                self.durable = before
        if durable == "remote":  # also uploads of an earlier commit, if this one was empty
            self._queue.wait_uploaded()

    def has(self, oid: Oid) -> bool:
        """Return True if the object is known here.

        A new object of another host is then stored twice.
        """
        return oid in self._pending or self.pack_set.find_durable(oid) is not None

    def flush(self, *, sync: bool = True) -> None:
        pending = [] if self.durable == "remote" else list(self._pending.items())
        made = [oid.hex() for oid, item in pending if item[1] == Kind.COMMIT]
        super().flush(sync=sync)
        if made:
            self._queue.record_commits(made)
        if sync and self.durable == "remote":
            self._queue.wait_uploaded()

    def queued(self) -> UploadBacklog:
        return self._queue.backlog()

    def wait_for_uploads(self, timeout: float = 60.0) -> None:
        """Wait until all uploads have ended.

        Raises Unavailable("not_uploaded_yet") at the timeout.
        """
        self._queue.wait_uploaded(timeout)

    def require_exclusive(self, action: str) -> None:
        refuse_remote(action)

    def swept_since(self, epoch: int) -> bool:
        return self._epochs.refresh() != epoch

    def drop_local_cache(self) -> None:
        self.cache.clear()
        for pack in self.pack_set.packs:
            if isinstance(pack, Pack):
                pack.file.drop_local_copy()

    def close(self) -> None:
        super().close()
        self._queue.stop()
        self._pack_cache.prune()


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
