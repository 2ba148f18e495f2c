"""The packs and tails of a store with a remote bucket, and the upload of tails."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path

from ortet.backends.base import Bucket
from ortet.backends.object_storage.upload_queue import QueuedBucket
from ortet.errors import Conflict, Corrupt, NotFound, OrtetError
from ortet.objects.group import GROUP_SUFFIX as GROUP
from ortet.objects.group import MERGE_MIN_TABLES
from ortet.objects.layout import StoreLayout
from ortet.objects.pack import Pack, PackSource, pack_sizes
from ortet.objects.pack_index import PackIndex, encode_index, write_index
from ortet.objects.pack_set import PackSet, PackStorage
from ortet.objects.recovery import create_tail
from ortet.objects.remote.pack import FETCH_WHOLE_MAX_BYTES, RemotePackFile, RemoteTail
from ortet.objects.remote.pack_cache import PackCache
from ortet.objects.source import AutoClosingFd
from ortet.objects.tail import TAIL_SUFFIX as TAIL
from ortet.objects.tail import Tail, pack_key, storage_error

_PREFIX = "packs/"
DELETION_MARK_SUFFIX = ".gone"
"""The suffix of a deletion mark beside a pack.

A sweep writes it after it has copied live objects.
"""
_MEMORY_TAIL_PREFIX = "memory-"
"""The name prefix of a tail in a memfd."""
_FETCH_GROUPS_MIN_PACKS = 16
"""Group indexes are fetched if at least this many packs have no local index."""
_MERGE_BATCH_INDEXES = 256
"""How many indexes are merged at once. Each one needs a descriptor during the merge."""
_FETCH_BATCH_BYTES, _FETCH_BATCH_PACKS = 32 << 20, 1024
"""The limits of one fetch into memory: bytes and packs."""


_PackAndFile = tuple[Pack, RemotePackFile]


class RemotePackStorage(PackStorage):
    """Tails of this handle, with packs in a remote bucket.

    A tail exists only until the next flush uploads it. Nothing in it was reported as durable, so a
    tail that a dead process left is deleted. Foreign tails are those of a parent of fork(2).
    """

    keeps_parent_tails = True

    def __init__(
        self,
        layout: StoreLayout,
        bucket: Bucket,
        *,
        key_id: bytes,
        new_id: Callable[[], str],
        cache: PackCache,
    ) -> None:
        self._layout = layout
        self._bucket = bucket
        self._key_id = key_id
        self._new_id = new_id
        self._cache = cache
        self.uses_memory_tails = False  # True while the disk has no space for tails
        self._remove_stale_tails()

    def _remove_stale_tails(self) -> None:
        for id_ in self._layout.tail_ids():
            path = self._layout.tail_path(id_)
            with contextlib.suppress(OSError), open(path, "rb") as file:
                tail = Tail(path, AutoClosingFd(os.dup(file.fileno())), key_id=self._key_id)
                if tail.is_unlocked():
                    path.unlink()

    def change_token(self) -> object:
        return None

    def refresh(self, packs: PackSet, *, reload_tails: bool, after_sweep: bool) -> None:
        listed = list(self._bucket.list(_PREFIX))
        sizes = pack_sizes(listed)
        packs.marked_for_deletion = frozenset(pack_sizes(listed, DELETION_MARK_SUFFIX))
        known = {pack.id: pack for pack in packs.packs if not reload_tails or pack.sealed}
        sources: list[PackSource] = []
        for id_, size in sizes.items():
            pack = known.get(id_)
            same = pack is not None and pack.sealed and pack.end == size
            sources.append(pack if same and pack is not None else self._open_pack(id_, size))
        if after_sweep:
            self._evict_swept_packs(set(sizes))
        new_packs = [pack for pack in sources if isinstance(pack, Pack) and pack.id not in known]
        self._fetch_groups(pack_sizes(listed, GROUP), new_packs)
        mine = {tail.id for tail in packs.own_tails}
        sources = [pack for pack in sources if pack.id not in mine]
        for id_, size in pack_sizes(listed, TAIL).items():
            tail = known.get(id_)
            if not isinstance(tail, RemoteTail):
                tail = RemoteTail(self._bucket, id_, key_id=self._key_id)
            with contextlib.suppress(NotFound, Corrupt):  # sealed since the listing
                tail.advance(size)
                sources.append(tail)
        packs.set_packs(sources)

    def _evict_swept_packs(self, ids: set[str]) -> None:
        """Delete cached files and indexes of packs that no longer exist."""
        self._cache.retain_packs(ids)
        for name in os.listdir(self._layout.index):
            if name.endswith(".idx") and name.removesuffix(".idx") not in ids:
                with contextlib.suppress(FileNotFoundError):
                    (self._layout.index / name).unlink()

    def _fetch_groups(self, groups: dict[str, int], new_packs: list[Pack]) -> None:
        """Fetch group indexes if many packs have no local index."""
        strange = [pack for pack in new_packs if not os.path.exists(pack.index_path)]
        if len(strange) < _FETCH_GROUPS_MIN_PACKS:
            return
        for id_ in groups:
            path = self._layout.index / f"{id_}{GROUP}"
            if not path.exists():
                with contextlib.suppress(OrtetError, OSError):
                    data = self._bucket.get(f"{_PREFIX}{id_}{GROUP}")
                    PackIndex(data)  # raises Corrupt if the header is damaged
                    write_index(path, data, sync=False)

    def _open_pack(self, id_: str, size: int) -> Pack:
        file = RemotePackFile(self._bucket, id_, size=size, cache=self._cache)
        return Pack(file, id_, size=size, index_dir=self._layout.index, key_id=self._key_id)

    # our own tails

    def is_write_through(self) -> bool:
        """Return True if a flush uploads before it returns. No local file is needed then."""
        return not isinstance(self._bucket, QueuedBucket) or self._bucket.direct

    def is_in_memory(self, tail: Tail) -> bool:
        """Return True if the tail is in a memfd."""
        return tail.key.startswith(_MEMORY_TAIL_PREFIX)

    def create_tail(self) -> Tail:
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

    def adopt_tail(self, own: Sequence[Tail]) -> Tail | None:
        del own
        return None

    def seal(self, tail: Tail, *, solid: bool) -> Pack:
        """Upload one of our tails as a pack. It is durable on return."""
        del solid  # its frames were compressed when they were written
        pack = self.publish(tail, is_own=True)
        self._cache.link_file(f"{pack.id}.pack", tail.path)
        return pack

    def add_pack(self, packs: PackSet, pack: Pack) -> None:
        packs.packs = (pack, *packs.packs)
        packs.set_tables((pack, *packs.tables))

    def after_seal(self, tail: Tail) -> None:
        with contextlib.suppress(OSError):
            tail.path.unlink(missing_ok=True)

    def before_release(self, own: Sequence[Tail]) -> None:
        for tail in own:
            tail.discard()

    def publish(self, tail: Tail, *, is_own: bool = False) -> Pack:
        """Upload the frames of a tail, ours or a parent's, as a pack, and return the pack."""
        for attempt in count():
            # Ids of several hosts, or of a copied host, may collide.
            id_ = tail.id.removeprefix(_MEMORY_TAIL_PREFIX) + (f"-{attempt}" if attempt else "")
            try:
                self._upload_tail(pack_key(id_), tail, is_own=is_own)
                break
            except Conflict as error:
                if error.kind != "exists":
                    raise
        entries = [(oid, 0, *location[1:]) for oid, location in tail.locations()]
        pack = self._open_pack(id_, tail.end)
        with contextlib.suppress(OSError):
            data = encode_index([(id_, tail.end)], entries)
            write_index(pack.index_path, data, sync=False)
        return pack

    def _upload_tail(self, key: str, tail: Tail, *, is_own: bool) -> None:
        if tail.end <= FETCH_WHOLE_MAX_BYTES or self.is_in_memory(tail):
            self._bucket.put(key, tail.read(0, tail.end))
            return
        copy = tail.path.with_suffix(f".{os.getpid()}.part")
        try:
            try:
                copy.unlink(missing_ok=True)
                if is_own:
                    tail.trim()
                    os.link(tail.path, copy)  # put_file consumes the file
                else:  # the tail of a parent that may still write to it
                    _copy_tail(tail, copy)
            except OSError as error:
                raise storage_error(error, "publishing a pack") from error
            self._bucket.put_file(key, copy)
        finally:
            with contextlib.suppress(OSError):
                copy.unlink(missing_ok=True)


def prefetch_small_packs(pack_set: PackSet, bucket: Bucket) -> None:
    """Fetch all small packs that are not cached, many at once, because all will be read."""
    wanted = [
        (pack, pack.file)
        for pack in pack_set.packs
        if isinstance(pack, Pack)
        and isinstance(pack.file, RemotePackFile)
        and pack.end <= FETCH_WHOLE_MAX_BYTES
        and not (pack.file.is_cached() and pack.index_path.exists())
    ]
    for packs in _fetch_batches(wanted):
        contents = bucket.get_all([pack_key(pack.id) for pack, _ in packs])
        for pack, file in packs:
            data = contents.get(pack_key(pack.id), b"")
            if len(data) == pack.end:
                file.cache_whole(data)
                pack.build_index()
    before = 0
    while len(pack_set.tables) >= MERGE_MIN_TABLES and len(pack_set.tables) != before:
        before = len(pack_set.tables)
        with contextlib.suppress(OrtetError, OSError):
            pack_set.merge_tables(_MERGE_BATCH_INDEXES)


def _fetch_batches(packs: Sequence[_PackAndFile]) -> Iterator[list[_PackAndFile]]:
    portion: list[_PackAndFile] = []
    room = _FETCH_BATCH_BYTES
    for pack, file in packs:
        if portion and (pack.end > room or len(portion) == _FETCH_BATCH_PACKS):
            yield portion
            portion, room = [], _FETCH_BATCH_BYTES
        portion.append((pack, file))
        room -= pack.end
    if portion:
        yield portion


def _copy_tail(tail: Tail, path: Path) -> None:
    with open(path, "xb") as file:
        for offset in range(0, tail.end, FETCH_WHOLE_MAX_BYTES):
            file.write(tail.read(offset, min(FETCH_WHOLE_MAX_BYTES, tail.end - offset)))
