"""Objects of a store whose bucket is elsewhere: with a server, or in S3. What is put is in the
bucket when `flush` returns; what was read is kept on this host."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ortet._util.codec import Hasher
from ortet.backends.base import Bucket, Queued
from ortet.backends.object_storage.pending_uploads import Owing
from ortet.backends.object_storage.upload_queue import QueuedBucket
from ortet.backends.sweep_epoch import Epochs
from ortet.errors import NotFound, Refused, Unavailable
from ortet.ids import Clock, Oid, Random
from ortet.objects import frame
from ortet.objects.base import Kind
from ortet.objects.gc.lock import Gate
from ortet.objects.pack import Pack
from ortet.objects.pack_set import Shelf
from ortet.objects.remote.pack import RemotePack
from ortet.objects.remote.pack_cache import LIMIT, Kept
from ortet.objects.remote.pack_set import RemoteShelf
from ortet.objects.remote.write_fence import RemoteGate, refuse
from ortet.objects.store import Durable, LocalObjects
from ortet.objects.tail import SEAL_AT, Tail
from ortet.objects.writer import Writer

_QUEUE = "local/queue"


class RemoteObjects(LocalObjects):
    """A handle on a store that is shared with other hosts. `root` is what this host keeps, at most
    `keep` bytes of what it read.

    `durable` is what `flush` promises. With "local" it returns when all is on this host's disk, and
    what was put goes to the bucket in the background: until then other hosts cannot read it, and if
    this disk is lost so is what `queued` tells of. It may be changed at any time. By `owing` other
    hosts are told of it, and this one of what they have.
    """

    remote = True

    def __init__(
        self,
        root: Path,
        bucket: Bucket,
        *,
        epochs: Epochs,
        hasher: Hasher,
        clock: Clock,
        random: Random = os.urandom,
        reserve: int = 0,
        seal_at: int = SEAL_AT,
        durable: Durable = "remote",
        keep: int = LIMIT,
        owing: Owing | None = None,
    ) -> None:
        self._epochs = epochs
        self._keep = keep
        # ids of packs are never given twice: nobody needs to be asked
        self._queue = QueuedBucket(bucket, root / _QUEUE, ask=False, owing=owing)
        self.durable = durable
        super().__init__(
            root,
            self._queue,
            hasher=hasher,
            clock=clock,
            random=random,
            reserve=reserve,
            seal_at=seal_at,
            owing=owing,
        )

    def _make_gate(self) -> Gate:
        return RemoteGate(self.root.local, self._epochs)

    def _make_shelf(self, new_id: Callable[[], str]) -> Shelf:
        self._kept = Kept(self.root.local / "kept", self._keep)
        return RemoteShelf(
            self.root, self.bucket, key_id=self.hasher.key_id, new_id=new_id, kept=self._kept
        )

    def _make_writer(self, seal_at: int) -> Writer:
        key_id = self.hasher.key_id
        return RemoteWriter(self.shelf, self.space, self.cache, key_id=key_id, seal_at=seal_at)

    @property
    def durable(self) -> Durable:
        return "remote" if self._queue.direct else "local"

    @durable.setter
    def durable(self, durable: Durable) -> None:
        self._queue.direct = durable == "remote"

    @contextmanager
    def promising(self, durable: Durable | None) -> Iterator[None]:
        before = self.durable
        with super().promising(durable):
            self.durable = durable or before
            try:
                yield
            finally:
                self.durable = before
        if durable == "remote":  # also what an earlier commit left, when this one had nothing new
            self._queue.settle()

    def has(self, oid: Oid) -> bool:
        """As far as is known here: what others have put since costs putting it once more."""
        return oid in self._pending or self.shelf.find_sure(oid) is not None

    def flush(self, *, sync: bool = True) -> None:
        pending = [] if self.durable == "remote" else list(self._pending.items())
        made = [oid.hex() for oid, item in pending if item[1] == Kind.COMMIT]
        super().flush(sync=sync)
        if made:
            self._queue.note(made)
        if sync and self.durable == "remote":
            self._queue.settle()

    def queued(self) -> Queued:
        return self._queue.queued()

    def settle(self, patience: float = 60.0) -> None:
        """Wait for the bucket to have all of it; Unavailable("not_uploaded_yet") when it has not by
        then."""
        self._queue.settle(patience)

    def check_ours(self, act: str) -> None:
        refuse(act)

    def swept_since(self, epoch: int) -> bool:
        return self._epochs.ask() != epoch

    def distrust(self) -> None:
        self.cache.clear()
        for pack in self.shelf.packs:
            _forget(pack)

    def close(self) -> None:
        super().close()
        self._queue.stop()
        self._kept.prune()


def _forget(pack: Pack) -> None:
    if isinstance(pack, RemotePack):
        pack.distrust()


class RemoteWriter(Writer):
    """Frames go to a tail on this host, and with each flush to the bucket: one pack a flush, or
    several when they are large. `sweep` makes few of the many small ones."""

    _packs = True

    def _write(self, items: Sequence[frame.Item], *, packed: bool) -> None:
        try:
            super()._write(items, packed=packed)
        except (Refused, Unavailable) as error:
            if error.kind not in ("disk_full", "disk_reserve"):
                raise
            self._do_without_disk(error)
            super()._write(items, packed=packed)

    def _do_without_disk(self, error: Refused | Unavailable) -> None:
        """Until the next flush ends, what is on its way to the bucket is in memory only. What this
        host promises to keep until it is there cannot be."""
        if not self._far.in_bucket_only():
            raise type(error)(
                error.kind,
                f'{error.message}; or commit with durable="remote", which needs no room here',
                **error.details,
            ) from error
        with self._appending:
            if self._tail is not None and not self._far.is_in_memory(self._tail):
                self._tail = None  # it is sealed with the others
            self._far.without_disk = True

    def _check_room(self, tail: Tail, size: int) -> None:
        if not self._far.is_in_memory(tail):
            super()._check_room(tail, size)

    @property
    def _far(self) -> RemoteShelf:
        assert isinstance(self._shelf, RemoteShelf)
        return self._shelf

    def _sync(self) -> None:
        self._wait_for_seals()
        with self._appending:
            self._tail = None
            tails = self._shelf.mine
        for tail in tails:
            self._shelf.seal(tail)
        self._far.without_disk = False
        while self._owed:
            tail = self._owed.pop()
            try:
                self._copy(tail)
            except BaseException:
                self._owed.add(tail)
                raise
        # of packs that another host has swept away since we last looked, or on a disk that is full:
        # what was flushed is in the bucket, and looking for it takes longer
        with suppress(NotFound, OSError):
            self._shelf.merge_tables()

    def _copy(self, tail: Tail) -> None:
        """What a parent of fork(2) had not published: it may never do it."""
        if isinstance(self._shelf, RemoteShelf) and tail.end:
            self._shelf.publish(tail)
            self._shelf.refresh()

    def close(self) -> None:
        """What was put and not flushed belongs to no commit."""
        try:
            self._wait_for_seals()
        finally:
            if self._pool is not None:
                self._pool.shutdown()
                self._pool = None
            self._shelf.release()
            self._tail = None
