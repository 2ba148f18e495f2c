"""Objects of a store on this host: what is put goes to a tail, what is sealed lies in packs, all of
it is found."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from ortet._util.codec import Hasher
from ortet.backends.base import Bucket, UploadBacklog
from ortet.backends.object_storage.pending_uploads import PendingUploadTable
from ortet.errors import Corrupt, Invalid, NotFound, OrtetError
from ortet.ids import OID_BYTES, Clock, Oid, Random, uuid7
from ortet.objects.base import Kind, ObjectStore
from ortet.objects.fetch import read_located
from ortet.objects.gc.lock import SweepLock
from ortet.objects.layout import SpaceGuard, open_layout
from ortet.objects.pack_set import PackSet
from ortet.objects.source import FrameCache, ObjectLocation, kind_of, no_object
from ortet.objects.tail import SEAL_BYTES, Tail, storage_error
from ortet.objects.writer import ObjectWriter

Durability = Literal["remote", "local"]
"""Where a commit is when it returns: in the bucket, or on this host's disk."""


class ObjectStats(msgspec.Struct, frozen=True):
    """How much a store holds. Objects stored twice count twice until a sweep."""

    objects: int
    packs: int
    tails: int
    pack_bytes: int
    tail_bytes: int


_pid = os.getpid()
"""This process, kept: asking for it with each object takes a twentieth of a first commit."""


def _update_pid() -> None:
    global _pid
    _pid = os.getpid()


os.register_at_fork(after_in_child=_update_pid)


@cache
def _raise_malloc_threshold() -> None:
    """Once a process. The C library gets memory for blocks as large as ours from the kernel, and
    gives it back, each time, and the kernel clears it each time: half the processor's time of a
    large commit. From the moment on when something larger was freed it keeps that memory."""
    bytes(30 << 20)  # which, unlike a bytearray, touches none of it


class LocalObjectStore(ObjectStore):
    """A handle on the store at `root`, whose sealed packs lie in `bucket`. Threads share it; a
    child of fork(2) may go on using it and writes to a tail of its own; other processes open their
    own."""

    is_remote = False
    """Whether the bucket is elsewhere, and `root` only what this host keeps of it."""

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
    ) -> None:
        _raise_malloc_threshold()
        self.hasher = hasher
        self.find_replacement: Callable[[Oid], Oid | None] = lambda _: None
        self.pending_uploads = pending_uploads
        try:
            self.layout = open_layout(root, hasher)
            self.sweep_lock = self._make_sweep_lock()
        except OSError as error:
            raise storage_error(error, f"opening the store at {root}") from error
        self.bucket = bucket
        self.cache = FrameCache()
        self.space = SpaceGuard(self.layout, bucket, clock=clock, quota=quota, reserve=reserve)
        self.pack_set = self._make_pack_set(lambda: uuid7(clock, random))
        self.writer = self._make_writer(seal_bytes)
        self._sweep_epoch = self.sweep_lock.epoch()
        self._abandon_count = 0
        self._pending = self.writer.pending
        self._pid = _pid
        self._closed = False
        self.pack_set.refresh()

    # what RemoteObjects makes otherwise

    def _make_sweep_lock(self) -> SweepLock:
        return SweepLock(self.layout.local)

    def _make_pack_set(self, new_id: Callable[[], str]) -> PackSet:
        return PackSet(self.layout, self.bucket, key_id=self.hasher.key_id, new_id=new_id)

    def _make_writer(self, seal_bytes: int) -> ObjectWriter:
        key_id = self.hasher.key_id
        return ObjectWriter(
            self.pack_set, self.space, self.cache, key_id=key_id, seal_bytes=seal_bytes
        )

    def require_exclusive(self, action: str) -> None:
        """Unsupported where this process cannot keep all other writers out."""

    def drop_local_cache(self) -> None:
        """Read from the bucket itself from now on, not what this host keeps of it."""

    @contextmanager
    def with_durability(self, durable: Durability | None) -> Iterator[None]:
        """During the block `flush` promises this, and with "remote" at its end all that was put
        before is in the bucket. None: as it was opened. One host's own store is both."""
        if durable not in (None, "remote", "local"):
            raise Invalid("bad_durable", f'durable is {durable!r}: give "remote" or "local"')
        yield

    def queued(self) -> UploadBacklog:
        """What other hosts cannot read yet."""
        return UploadBacklog()

    def swept_since(self, epoch: int) -> bool:
        """Whether a sweep, which others may run, has deleted packs since it was `epoch`."""
        return self.sweep_lock.epoch() != epoch

    @property
    def epoch(self) -> int:
        """Grows whenever objects that were put, and that nothing reaches yet, may be gone."""
        return self._sweep_epoch + self._abandon_count

    # the Objects contract

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
            spot = self.pack_set.find(oid)
            if spot is not None:
                return self._read(spot)
        except (NotFound, Corrupt):
            pass
        return self._get_after_refresh(oid)

    def _read(self, location: ObjectLocation) -> bytes:
        source, offset, start, length, _ = location
        return self.cache.load(source, offset)[start : start + length]

    def _get_after_refresh(self, oid: Oid) -> bytes:
        """Another process may have sealed, swept or appended; another copy may be sound where one
        is not."""
        self._reset_if_forked()
        failure: OrtetError | None = None
        for anew in (False, True):
            self.pack_set.refresh(reload_tails=anew)
            for spot in self.pack_set.copies(oid):
                try:
                    return self._read(spot)
                except (NotFound, Corrupt) as error:
                    failure = error
            if failure is None:
                raise self._missing_error(oid)
        raise failure if isinstance(failure, Corrupt) else self._missing_error(oid)

    def _missing_error(self, oid: Oid) -> OrtetError:
        """It may be on another host's disk, and on its way."""
        late = (
            self.pending_uploads.explain_missing(oid) if self.pending_uploads is not None else None
        )
        return no_object(oid) if late is None else late

    def has(self, oid: Oid) -> bool:
        """Whether it is stored, as far as this host knows; what is here becomes durable with the
        next flush."""
        if oid in self._pending or self.pack_set.find_durable(oid) is not None:
            return True
        self._reset_if_forked()
        tail = self.pack_set.find_foreign_tail(oid)
        if tail is None and self.pack_set.refresh_if_changed():
            if self.pack_set.find_durable(oid) is not None:
                return True
            tail = self.pack_set.find_foreign_tail(oid)
        return tail is not None and self._sync_with_next_flush(oid, tail)

    def _sync_with_next_flush(self, oid: Oid, tail: Tail) -> bool:
        """Make what another writer has put durable with our next flush, if it is sound."""
        try:
            spot = tail.find(oid)
            if spot is None or not self.cache.load(tail, spot[1]):
                return False
        except (Corrupt, NotFound):
            return False
        self.writer.sync_with_next_flush(tail)
        return True

    def replacement_of(self, oid: Oid) -> Oid:
        return self.find_replacement(oid) or oid

    def get_many(self, oids: Iterable[Oid]) -> Iterator[tuple[Oid, bytes]]:
        wanted = dict.fromkeys(oids)
        spots: list[tuple[Oid, ObjectLocation]] = []
        for oid in wanted:
            spot = None if oid in self._pending else self.pack_set.find(oid)
            if spot is None:
                yield oid, self.get(oid)
            else:
                spots.append((oid, spot))
        yield from read_located(spots, self.cache, fallback=self.get)

    # beyond it

    def flush(self, *, sync: bool = True) -> None:
        """Write what was put; with `sync` it is durable on return. Refused and Unavailable lose
        nothing: what could not be written is tried again by the next flush."""
        self._reset_if_forked()
        self.writer.flush(sync=sync)

    @contextmanager
    def writing(self) -> Iterator[int]:
        """For the time of a commit, from its first put until its head has moved: no sweep takes an
        object away.

        Gives the epoch. When it is not what it was before, objects that are not reachable may be
        gone: callers who remember Oids from earlier drop them.
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
        """After a sweep: drop what is remembered and look at the disk again."""
        self.cache.clear()
        self.pack_set.refresh(after_sweep=True)
        self._sweep_epoch = epoch

    def abandon(self) -> None:
        """A commit has failed: what it put and could not write must not fail the next one too.

        Only the outermost, and only, writer of this process; else nothing is done.
        """
        with self.sweep_lock.sole_writer() as last:
            if last and self._pending:
                self.writer.abandon()
                self._abandon_count += 1

    def find_by_prefix(self, prefix: str) -> list[tuple[Oid, Kind]]:
        """Objects whose id begins with these hex digits, in order."""
        low, high = _bounds(prefix)
        self._reset_if_forked()
        self.pack_set.refresh_if_changed()
        found = {oid: item[1] for oid, item in list(self._pending.items()) if low <= oid <= high}
        found.update(self.pack_set.iter_range(low, high))
        if not found:  # a remote hub sends packs, which only a look at all of them tells
            self.pack_set.refresh()
            found.update(self.pack_set.iter_range(low, high))
        if not found and len(prefix) == 2 * OID_BYTES:  # shorter, it may be anything else
            missed = self._missing_error(Oid(bytes.fromhex(prefix)))
            if not isinstance(missed, NotFound):
                raise missed
        return [(oid, kind_of(found[oid])) for oid in sorted(found)]

    def stats(self) -> ObjectStats:
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
        """Flush, and let other processes adopt our tail. Closing again does nothing."""
        if not self._closed:
            self._closed = True
            self._reset_if_forked()
            try:
                self.writer.close()
            finally:
                self.cache.clear()
                self.sweep_lock.close()

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
