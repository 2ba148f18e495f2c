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
from ortet.objects.group import MANY
from ortet.objects.group import SUFFIX as GROUP
from ortet.objects.layout import Root
from ortet.objects.pack import Pack, packs_in
from ortet.objects.pack_index import Index, encode_index, write_index
from ortet.objects.pack_set import Shelf
from ortet.objects.recovery import create
from ortet.objects.remote.pack import WHOLE, RemotePack, RemoteTail
from ortet.objects.remote.pack_cache import Kept
from ortet.objects.source import File, Spot
from ortet.objects.tail import SUFFIX as TAIL
from ortet.objects.tail import Tail, pack_key, storage_error

_PREFIX = "packs/"
GONE = ".gone"
"""Beside a pack: a sweep is about to delete it, and has copied what lives."""
_MEMORY = "memory-"
"""What names a tail that is no file."""
_STRANGE = 16
"""So many packs without an index here are worth fetching those that cover many."""
_MERGED = 256
"""Indexes that become one, each with a descriptor while they do."""
_PORTION, _MOST = 32 << 20, 1024
"""Bytes and packs that are fetched at once, into memory."""


class RemoteShelf(Shelf):
    """The sources of a handle on a remote store. Tails here are for the time of one flush: nothing
    in them is promised to anyone, so one that is left behind is thrown away.

    `others` are the tails of a parent of fork(2).
    """

    def __init__(
        self,
        root: Root,
        bucket: Bucket,
        *,
        key_id: bytes,
        new_id: Callable[[], str],
        kept: Kept,
    ) -> None:
        super().__init__(root, bucket, key_id=key_id, new_id=new_id)
        self.condemned: frozenset[str] = frozenset()
        self._kept = kept
        self.without_disk = False  # there is no room for tails
        self._drop_left_tails()

    def _drop_left_tails(self) -> None:
        for id_ in self._root.tail_ids():
            path = self._root.tail(id_)
            with contextlib.suppress(OSError), open(path, "rb") as file:
                tail = Tail(path, File(os.dup(file.fileno())), key_id=self._key_id)
                if tail.is_free():
                    path.unlink()

    def find_sure(self, oid: Oid) -> Spot | None:
        """Not in a pack that is about to go: whoever writes must not rely on it."""
        spot = super().find_sure(oid)
        if spot is None or spot[0].id not in self.condemned:
            return spot
        return next((spot for spot in self.copies(oid) if spot[0].id not in self.condemned), None)

    def find(self, oid: Oid) -> Spot | None:
        return super().find(oid) or (super().find_sure(oid) if self.condemned else None)

    def refresh_if_changed(self) -> bool:
        self.refresh()
        return True

    def refresh(self, *, anew: bool = False, swept: bool = False) -> None:
        with self._lock:
            listed = list(self._bucket.list(_PREFIX))
            sizes = packs_in(listed)
            self.condemned = frozenset(packs_in(listed, GONE))
            known = {pack.id: pack for pack in self.packs if not anew or pack.sealed}
            packs: list[Pack] = []
            for id_, size in sizes.items():
                pack = known.get(id_)
                same = pack is not None and pack.sealed and pack.end == size
                packs.append(pack if same and pack is not None else self._pack(id_, size))
            if swept:
                self._forget_gone(set(sizes))
            self._take_groups(
                packs_in(listed, GROUP), [pack for pack in packs if pack.id not in known]
            )
            mine = {tail.id for tail in self.mine}
            packs = [pack for pack in packs if pack.id not in mine]
            for id_, size in packs_in(listed, TAIL).items():
                tail = known.get(id_)
                if not isinstance(tail, RemoteTail):
                    tail = RemoteTail(self._bucket, id_, key_id=self._key_id, kept=self._kept)
                with contextlib.suppress(NotFound, Corrupt):  # sealed since it was listed
                    tail.advance(size)
                    packs.append(tail)
            self._arrange(packs)

    def _forget_gone(self, ids: set[str]) -> None:
        """Of packs that were swept away."""
        self._kept.keep_only(ids)
        for name in os.listdir(self._root.index):
            if name.endswith(".idx") and name.removesuffix(".idx") not in ids:
                with contextlib.suppress(FileNotFoundError):
                    (self._root.index / name).unlink()

    def _take_groups(self, groups: dict[str, int], new: list[Pack]) -> None:
        """Fetch indexes over many packs, where many are strange."""
        strange = [pack for pack in new if not os.path.exists(pack.index_path)]
        if len(strange) < _STRANGE:
            return
        for id_ in groups:
            path = self._root.index / f"{id_}{GROUP}"
            if not path.exists():
                with contextlib.suppress(OrtetError, OSError):
                    data = self._bucket.get(f"{_PREFIX}{id_}{GROUP}")
                    Index(data)  # whose header is sound
                    write_index(path, data, sync=False)

    def gather(self) -> None:
        """Fetch the small packs that are not here, many at once: all are about to be read."""
        small = (pack for pack in self.packs if isinstance(pack, RemotePack) and pack.sealed)
        wanted = [pack for pack in small if pack.end <= WHOLE and not pack.is_here()]
        for packs in _portions(wanted):
            found = self._bucket.get_all([pack_key(pack.id) for pack in packs])
            for pack in packs:
                pack.take(found.get(pack_key(pack.id), b""))
        before = 0
        while len(self.tables) >= MANY and len(self.tables) != before:
            before = len(self.tables)
            with contextlib.suppress(OrtetError, OSError):
                self.merge_tables(_MERGED)

    def _pack(self, id_: str, size: int) -> Pack:
        return RemotePack(
            self._bucket,
            id_,
            size=size,
            index_dir=self._root.index,
            key_id=self._key_id,
            kept=self._kept,
        )

    # our own tails

    def take_tail(self) -> Tail:
        return self.new_tail()

    def in_bucket_only(self) -> bool:
        """Whether what is flushed now is in the bucket then, and nothing of it need be here."""
        return not isinstance(self._bucket, QueuedBucket) or self._bucket.direct

    def is_in_memory(self, tail: Tail) -> bool:
        return tail.key.startswith(_MEMORY)

    def _create(self) -> Tail:
        if self.without_disk:
            path = self._root.tail(f"{_MEMORY}{self._new_id()}")
            return Tail(path, File(os.memfd_create(path.name)), key_id=self._key_id)
        attempt = 0
        while True:
            id_ = self._new_id() + (f"-{attempt}" if attempt else "")
            tail = create(self._root.tail(id_), key_id=self._key_id)
            if tail is not None:
                return tail
            attempt += 1

    def adopt_all(self) -> list[Tail]:
        return []

    def seal(self, tail: Tail, *, solid: bool = False) -> None:
        """Make a tail of ours a pack of the bucket; durable on return."""
        del solid  # it was packed when it was written
        if not tail.end:
            self._drop(tail)
            return
        pack = self.publish(tail)
        self._kept.share(f"{pack.id}.pack", tail.path)
        with self._lock:
            self.packs = (pack, *self.packs)
            self._search((pack, *self.tables))
            self.mine = tuple(other for other in self.mine if other is not tail)
        with contextlib.suppress(OSError):
            tail.path.unlink(missing_ok=True)
        tail.release()

    def publish(self, tail: Tail) -> Pack:
        """Put all that is in a tail, ours or a parent's, into the bucket."""
        for attempt in count():
            # clocks and randomness of several hosts, or one that was copied, may meet
            id_ = tail.id.removeprefix(_MEMORY) + (f"-{attempt}" if attempt else "")
            try:
                self._put(pack_key(id_), tail)
                break
            except Conflict as error:
                if error.kind != "exists":
                    raise
        entries = [(oid, 0, *spot[1:]) for oid, spot in tail.spots()]
        pack = self._pack(id_, tail.end)
        with contextlib.suppress(OSError):
            data = encode_index([(id_, tail.end)], entries)
            write_index(pack.index_path, data, sync=False)
        return pack

    def _put(self, key: str, tail: Tail) -> None:
        if tail.end <= WHOLE or self.is_in_memory(tail):
            self._bucket.put(key, tail.read(0, tail.end))
            return
        copy = tail.path.with_suffix(f".{os.getpid()}.part")
        try:
            try:
                copy.unlink(missing_ok=True)
                if tail in self.mine:
                    tail.trim()
                    os.link(tail.path, copy)  # the bucket consumes what it is given
                else:  # a parent's, who may be writing to it
                    _copy(tail, copy)
            except OSError as error:
                raise storage_error(error, "publishing a pack") from error
            self._bucket.put_file(key, copy)
        finally:
            with contextlib.suppress(OSError):
                copy.unlink(missing_ok=True)

    def release(self) -> None:
        for tail in self.mine:
            self.discard(tail)
        super().release()

    def after_fork(self) -> list[Tail]:
        parents = super().after_fork()
        self.others = (*self.others, *parents)
        return parents


def _portions(packs: Sequence[RemotePack]) -> Iterator[list[RemotePack]]:
    portion: list[RemotePack] = []
    room = _PORTION
    for pack in packs:
        if portion and (pack.end > room or len(portion) == _MOST):
            yield portion
            portion, room = [], _PORTION
        portion.append(pack)
        room -= pack.end
    if portion:
        yield portion


def _copy(tail: Tail, path: Path) -> None:
    with open(path, "xb") as file:
        for at in range(0, tail.end, WHOLE):
            file.write(tail.read(at, min(WHOLE, tail.end - at)))
