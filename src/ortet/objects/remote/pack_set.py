"""Everything that can be read of a store whose bucket is elsewhere, and how a tail gets there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path

from ortet.backends.base import Bucket
from ortet.backends.object_storage.upload_queue import QueuedBucket
from ortet.errors import Conflict, Corrupt, NotFound, OrtetError
from ortet.ids import Oid
from ortet.objects.group import GROUP_SUFFIX as GROUP
from ortet.objects.group import MERGE_MIN_TABLES
from ortet.objects.layout import StoreLayout
from ortet.objects.pack import Pack, pack_sizes
from ortet.objects.pack_index import PackIndex, encode_index, write_index
from ortet.objects.pack_set import PackSet
from ortet.objects.recovery import create_tail
from ortet.objects.remote.pack import FETCH_WHOLE_MAX_BYTES, RemotePack, RemoteTail
from ortet.objects.remote.pack_cache import PackCache
from ortet.objects.source import AutoClosingFd, ObjectLocation
from ortet.objects.tail import TAIL_SUFFIX as TAIL
from ortet.objects.tail import Tail, pack_key, storage_error

_PREFIX = "packs/"
DELETION_MARK_SUFFIX = ".gone"
"""Beside a pack: a sweep is about to delete it, and has copied what lives."""
_MEMORY_TAIL_PREFIX = "memory-"
"""What names a tail that is no file."""
_FETCH_GROUPS_MIN_PACKS = 16
"""So many packs without an index here are worth fetching those that cover many."""
_MERGE_BATCH_INDEXES = 256
"""Indexes that become one, each with a descriptor while they do."""
_FETCH_BATCH_BYTES, _FETCH_BATCH_PACKS = 32 << 20, 1024
"""Bytes and packs that are fetched at once, into memory."""


class RemotePackSet(PackSet):
    """The sources of a handle on a remote store. Tails here are for the time of one flush: nothing
    in them is promised to anyone, so one that is left behind is thrown away.

    `others` are the tails of a parent of fork(2).
    """

    def __init__(
        self,
        layout: StoreLayout,
        bucket: Bucket,
        *,
        key_id: bytes,
        new_id: Callable[[], str],
        cache: PackCache,
    ) -> None:
        super().__init__(layout, bucket, key_id=key_id, new_id=new_id)
        self.marked_for_deletion: frozenset[str] = frozenset()
        self._cache = cache
        self.uses_memory_tails = False  # there is no room for tails
        self._remove_stale_tails()

    def _remove_stale_tails(self) -> None:
        for id_ in self._layout.tail_ids():
            path = self._layout.tail_path(id_)
            with contextlib.suppress(OSError), open(path, "rb") as file:
                tail = Tail(path, AutoClosingFd(os.dup(file.fileno())), key_id=self._key_id)
                if tail.is_unlocked():
                    path.unlink()

    def find_durable(self, oid: Oid) -> ObjectLocation | None:
        """Not in a pack that is about to go: whoever writes must not rely on it."""
        spot = super().find_durable(oid)
        if spot is None or spot[0].id not in self.marked_for_deletion:
            return spot
        return next(
            (spot for spot in self.copies(oid) if spot[0].id not in self.marked_for_deletion), None
        )

    def find(self, oid: Oid) -> ObjectLocation | None:
        return super().find(oid) or (
            super().find_durable(oid) if self.marked_for_deletion else None
        )

    def refresh_if_changed(self) -> bool:
        self.refresh()
        return True

    def refresh(self, *, reload_tails: bool = False, after_sweep: bool = False) -> None:
        with self._lock:
            listed = list(self._bucket.list(_PREFIX))
            sizes = pack_sizes(listed)
            self.marked_for_deletion = frozenset(pack_sizes(listed, DELETION_MARK_SUFFIX))
            known = {pack.id: pack for pack in self.packs if not reload_tails or pack.sealed}
            packs: list[Pack] = []
            for id_, size in sizes.items():
                pack = known.get(id_)
                same = pack is not None and pack.sealed and pack.end == size
                packs.append(pack if same and pack is not None else self._make_pack(id_, size))
            if after_sweep:
                self._evict_swept_packs(set(sizes))
            self._fetch_groups(
                pack_sizes(listed, GROUP), [pack for pack in packs if pack.id not in known]
            )
            mine = {tail.id for tail in self.own_tails}
            packs = [pack for pack in packs if pack.id not in mine]
            for id_, size in pack_sizes(listed, TAIL).items():
                tail = known.get(id_)
                if not isinstance(tail, RemoteTail):
                    tail = RemoteTail(self._bucket, id_, key_id=self._key_id, cache=self._cache)
                with contextlib.suppress(NotFound, Corrupt):  # sealed since it was listed
                    tail.advance(size)
                    packs.append(tail)
            self._set_packs(packs)

    def _evict_swept_packs(self, ids: set[str]) -> None:
        """Of packs that were swept away."""
        self._cache.retain_packs(ids)
        for name in os.listdir(self._layout.index):
            if name.endswith(".idx") and name.removesuffix(".idx") not in ids:
                with contextlib.suppress(FileNotFoundError):
                    (self._layout.index / name).unlink()

    def _fetch_groups(self, groups: dict[str, int], new_packs: list[Pack]) -> None:
        """Fetch indexes over many packs, where many are strange."""
        strange = [pack for pack in new_packs if not os.path.exists(pack.index_path)]
        if len(strange) < _FETCH_GROUPS_MIN_PACKS:
            return
        for id_ in groups:
            path = self._layout.index / f"{id_}{GROUP}"
            if not path.exists():
                with contextlib.suppress(OrtetError, OSError):
                    data = self._bucket.get(f"{_PREFIX}{id_}{GROUP}")
                    PackIndex(data)  # whose header is sound
                    write_index(path, data, sync=False)

    def prefetch_small_packs(self) -> None:
        """Fetch the small packs that are not here, many at once: all are about to be read."""
        small = (pack for pack in self.packs if isinstance(pack, RemotePack) and pack.sealed)
        wanted = [
            pack for pack in small if pack.end <= FETCH_WHOLE_MAX_BYTES and not pack.is_cached()
        ]
        for packs in _fetch_batches(wanted):
            found = self._bucket.get_all([pack_key(pack.id) for pack in packs])
            for pack in packs:
                pack.cache_whole(found.get(pack_key(pack.id), b""))
        before = 0
        while len(self.tables) >= MERGE_MIN_TABLES and len(self.tables) != before:
            before = len(self.tables)
            with contextlib.suppress(OrtetError, OSError):
                self.merge_tables(_MERGE_BATCH_INDEXES)

    def _make_pack(self, id_: str, size: int) -> Pack:
        return RemotePack(
            self._bucket,
            id_,
            size=size,
            index_dir=self._layout.index,
            key_id=self._key_id,
            cache=self._cache,
        )

    # our own tails

    def acquire_tail(self) -> Tail:
        return self.new_tail()

    def is_write_through(self) -> bool:
        """Whether what is flushed now is in the bucket then, and nothing of it need be here."""
        return not isinstance(self._bucket, QueuedBucket) or self._bucket.direct

    def is_in_memory(self, tail: Tail) -> bool:
        return tail.key.startswith(_MEMORY_TAIL_PREFIX)

    def _create_tail(self) -> Tail:
        if self.uses_memory_tails:
            path = self._layout.tail_path(f"{_MEMORY_TAIL_PREFIX}{self._new_id()}")
            return Tail(path, AutoClosingFd(os.memfd_create(path.name)), key_id=self._key_id)
        attempt = 0
        while True:
            id_ = self._new_id() + (f"-{attempt}" if attempt else "")
            tail = create_tail(self._layout.tail_path(id_), key_id=self._key_id)
            if tail is not None:
                return tail
            attempt += 1

    def adopt_all(self) -> list[Tail]:
        return []

    def seal(self, tail: Tail, *, solid: bool = False) -> None:
        """Make a tail of ours a pack of the bucket; durable on return."""
        del solid  # it was packed when it was written
        if not tail.end:
            self._release_tail(tail)
            return
        pack = self.publish(tail)
        self._cache.link_file(f"{pack.id}.pack", tail.path)
        with self._lock:
            self.packs = (pack, *self.packs)
            self._set_tables((pack, *self.tables))
            self.own_tails = tuple(other for other in self.own_tails if other is not tail)
        with contextlib.suppress(OSError):
            tail.path.unlink(missing_ok=True)
        tail.release()

    def publish(self, tail: Tail) -> Pack:
        """Put all that is in a tail, ours or a parent's, into the bucket."""
        for attempt in count():
            # clocks and randomness of several hosts, or one that was copied, may meet
            id_ = tail.id.removeprefix(_MEMORY_TAIL_PREFIX) + (f"-{attempt}" if attempt else "")
            try:
                self._upload_tail(pack_key(id_), tail)
                break
            except Conflict as error:
                if error.kind != "exists":
                    raise
        entries = [(oid, 0, *spot[1:]) for oid, spot in tail.locations()]
        pack = self._make_pack(id_, tail.end)
        with contextlib.suppress(OSError):
            data = encode_index([(id_, tail.end)], entries)
            write_index(pack.index_path, data, sync=False)
        return pack

    def _upload_tail(self, key: str, tail: Tail) -> None:
        if tail.end <= FETCH_WHOLE_MAX_BYTES or self.is_in_memory(tail):
            self._bucket.put(key, tail.read(0, tail.end))
            return
        copy = tail.path.with_suffix(f".{os.getpid()}.part")
        try:
            try:
                copy.unlink(missing_ok=True)
                if tail in self.own_tails:
                    tail.trim()
                    os.link(tail.path, copy)  # the bucket consumes what it is given
                else:  # a parent's, who may be writing to it
                    _copy_tail(tail, copy)
            except OSError as error:
                raise storage_error(error, "publishing a pack") from error
            self._bucket.put_file(key, copy)
        finally:
            with contextlib.suppress(OSError):
                copy.unlink(missing_ok=True)

    def release(self) -> None:
        for tail in self.own_tails:
            self.discard(tail)
        super().release()

    def after_fork(self) -> list[Tail]:
        parents = super().after_fork()
        self.foreign_tails = (*self.foreign_tails, *parents)
        return parents


def _fetch_batches(packs: Sequence[RemotePack]) -> Iterator[list[RemotePack]]:
    portion: list[RemotePack] = []
    room = _FETCH_BATCH_BYTES
    for pack in packs:
        if portion and (pack.end > room or len(portion) == _FETCH_BATCH_PACKS):
            yield portion
            portion, room = [], _FETCH_BATCH_BYTES
        portion.append(pack)
        room -= pack.end
    if portion:
        yield portion


def _copy_tail(tail: Tail, path: Path) -> None:
    with open(path, "xb") as file:
        for at in range(0, tail.end, FETCH_WHOLE_MAX_BYTES):
            file.write(tail.read(at, min(FETCH_WHOLE_MAX_BYTES, tail.end - at)))
