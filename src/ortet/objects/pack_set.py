"""The tails and packs that a store handle reads.

These are its own tails, the tails of other writers, and the sealed packs.
"""

from __future__ import annotations

import contextlib
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

from ortet.backends.base import Bucket
from ortet.errors import Corrupt, NotFound, OrtetError
from ortet.ids import Oid
from ortet.objects.group import (
    GROUP_SUFFIX,
    MERGE_BATCH_TABLES,
    MERGE_MIN_TABLES,
    PackGroup,
    load_groups,
    merge_indexes,
)
from ortet.objects.layout import StoreLayout
from ortet.objects.pack import LocalPackFile, Pack, PackSource, list_packs
from ortet.objects.pack_index import AbsenceFilter
from ortet.objects.recovery import adopt_tail, create_tail, follow_tail
from ortet.objects.seal import seal
from ortet.objects.source import FrameSource, ObjectLocation
from ortet.objects.tail import Tail


class PackStorage(ABC):
    """Where the packs and tails of a store are, and how a tail becomes a pack."""

    keeps_parent_tails: bool
    """True if the tails of a parent of fork(2) stay readable although they are listed nowhere."""

    @abstractmethod
    def change_token(self) -> object:
        """Return a value that changes when tails are created or sealed; None if it is unknown."""

    @abstractmethod
    def refresh(self, packs: PackSet, *, reload_tails: bool, after_sweep: bool) -> None:
        """Read the lists of tails and packs again. The caller holds the lock of `packs`."""

    @abstractmethod
    def create_tail(self) -> Tail:
        """Return a new tail."""

    @abstractmethod
    def adopt_tail(self, own: Sequence[Tail]) -> Tail | None:
        """Return a tail that no process holds and that is not in `own`, or None."""

    @abstractmethod
    def seal(self, tail: Tail, *, solid: bool) -> Pack:
        """Turn a tail into a pack that is durable."""

    @abstractmethod
    def add_pack(self, packs: PackSet, pack: Pack) -> None:
        """Add a new pack. The caller holds the lock of `packs`."""

    @abstractmethod
    def after_seal(self, tail: Tail) -> None:
        """Tidy up after the pack of a tail was added."""

    @abstractmethod
    def before_release(self, own: Sequence[Tail]) -> None:
        """Prepare our tails for their release."""


class LocalPackStorage(PackStorage):
    """Tails in a directory of this host, with packs in a bucket on this host."""

    keeps_parent_tails = False

    def __init__(
        self, layout: StoreLayout, bucket: Bucket, *, key_id: bytes, new_id: Callable[[], str]
    ) -> None:
        self._layout = layout
        self._bucket = bucket
        self._key_id = key_id
        self._new_id = new_id
        self._tails_directory = os.fspath(layout.tails)

    def change_token(self) -> object:
        return os.stat(self._tails_directory).st_mtime_ns

    def refresh(self, packs: PackSet, *, reload_tails: bool, after_sweep: bool) -> None:
        """Read the lists again.

        Tails are listed before packs. A tail that is sealed in between is then seen twice, not
        missed. After a sweep, drop our tails that were published as a pack: the sweep may have
        deleted it.
        """
        if after_sweep:
            packs.own_tails = tuple(tail for tail in packs.own_tails if not tail.published)
        ids = self._layout.tail_ids()
        sizes = list_packs(self._bucket)
        mine = {tail.id for tail in packs.own_tails}
        self._update_packs(packs, sizes, mine)
        known = {} if reload_tails else {tail.id: tail for tail in packs.foreign_tails}
        others: list[Tail] = []
        for id_ in ids:
            if id_ in mine or id_ in sizes:
                continue
            tail = known.get(id_)
            if tail is None:
                tail = follow_tail(self._layout.tail_path(id_), key_id=self._key_id)
            else:
                tail.advance()
            if tail is not None:
                others.append(tail)
        packs.foreign_tails = tuple(others)

    def _update_packs(self, packs: PackSet, sizes: dict[str, int], own_ids: set[str]) -> None:
        known = {pack.id: pack for pack in packs.packs}
        listed: list[PackSource] = []
        for id_, size in sizes.items():
            if id_ not in own_ids:
                pack = known.get(id_)
                listed.append(pack if pack and pack.end == size else self._open_pack(id_, size))
        packs.set_packs(listed)

    def _open_pack(self, id_: str, size: int) -> Pack:
        file = LocalPackFile(self._bucket, id_)
        return Pack(file, id_, size=size, index_dir=self._layout.index, key_id=self._key_id)

    def create_tail(self) -> Tail:
        packs = list_packs(self._bucket)
        attempt = 0
        while True:
            # The injected clock and random source may repeat a value, but a name must be unique.
            id_ = self._new_id() + (f"-{attempt}" if attempt else "")
            tail = None
            if id_ not in packs:
                tail = create_tail(self._layout.tail_path(id_), key_id=self._key_id)
            if tail is not None:
                return tail
            attempt += 1

    def adopt_tail(self, own: Sequence[Tail]) -> Tail | None:
        for id_ in self._layout.tail_ids():
            if all(tail.id != id_ for tail in own):
                tail = None
                with contextlib.suppress(OrtetError):  # skip a tail that cannot be read
                    tail = adopt_tail(
                        self._layout.tail_path(id_), self._bucket, key_id=self._key_id
                    )
                if tail is not None:
                    return tail
        return None

    def seal(self, tail: Tail, *, solid: bool) -> Pack:
        pack = self._open_pack(tail.id, tail.end)
        pack.end = seal(tail, pack.index_path, self._bucket, solid=solid)
        return pack

    def add_pack(self, packs: PackSet, pack: Pack) -> None:
        packs.set_packs([pack, *packs.packs])

    def after_seal(self, tail: Tail) -> None: ...

    def before_release(self, own: Sequence[Tail]) -> None: ...


class PackSet:
    """The frame sources of one store handle.

    Look-ups take no lock: every change replaces a whole tuple. A source that moves from one tuple
    to another is in both for a moment, so a look-up never misses it.
    """

    def __init__(
        self, layout: StoreLayout, storage: PackStorage, *, new_id: Callable[[], str]
    ) -> None:
        self._layout = layout
        self._storage = storage
        self._new_id = new_id
        self._lock = threading.Lock()
        self._last_token: object = None
        self.own_tails: tuple[Tail, ...] = ()
        self.foreign_tails: tuple[Tail, ...] = ()
        self.packs: tuple[PackSource, ...] = ()
        self.marked_for_deletion: frozenset[str] = frozenset()
        """Packs that a sweep of another host may delete: a writer must not rely on them."""
        self.set_tables(())

    def set_tables(self, tables: Sequence[PackSource | PackGroup]) -> None:
        """Replace the tables to search together with their absence filter."""
        self._tables_and_filter = (
            tuple(tables),
            AbsenceFilter(lambda slot: _filter_words(tables, slot)),
        )

    @property
    def tables(self) -> tuple[PackSource | PackGroup, ...]:
        return self._tables_and_filter[0]

    def sources(self) -> Iterator[FrameSource]:
        """Yield all tails and packs."""
        yield from self.own_tails
        yield from self.foreign_tails
        yield from self.packs

    def find(self, oid: Oid) -> ObjectLocation | None:
        """Return the location of an object, without a refresh from disk."""
        location = self.find_durable(oid)
        if location is not None:
            return location
        if (tail := self.find_foreign_tail(oid)) is not None:
            location = tail.find(oid)
        if location is None and self.marked_for_deletion:
            location = next(self.copies(oid), None)
        return location

    def find_durable(self, oid: Oid) -> ObjectLocation | None:
        """Return the location of an object only if it is durable now or after our next flush.

        Packs that are marked for deletion do not count.
        """
        location = self.find_in_own_tails(oid)
        if location is not None:
            return location
        tables, absent = self._tables_and_filter
        if tables and oid not in absent:
            for table in tables:
                try:
                    location = table.find(oid)
                except NotFound:  # deleted by a sweep since the last refresh
                    continue
                except Corrupt:
                    self._drop_corrupt_table(table)
                    return self.find_durable(oid)
                if location is not None:
                    marked = self.marked_for_deletion
                    if not marked or location[0].id not in marked:
                        return location
                    return next((x for x in self.copies(oid) if x[0].id not in marked), None)
        return None

    def find_in_own_tails(self, oid: Oid) -> ObjectLocation | None:
        """Return the location of an object in our own tails."""
        for tail in self.own_tails:
            location = tail.find(oid)
            if location is not None:
                return location
        return None

    def find_foreign_tail(self, oid: Oid) -> Tail | None:
        """Return the tail of another writer that has the object."""
        for tail in self.foreign_tails:
            if tail.find(oid) is not None:
                return tail
        return None

    def copies(self, oid: Oid) -> Iterator[ObjectLocation]:
        """Yield every location of the object."""
        for tail in (*self.own_tails, *self.foreign_tails):
            location = tail.find(oid)
            if location is not None:
                yield location
        for table in self.tables:
            with contextlib.suppress(NotFound, Corrupt):
                yield from table.copies(oid)

    def iter_range(self, low: bytes, high: bytes) -> Iterator[tuple[Oid, int]]:
        """Yield (oid, kind) of every object with low <= oid <= high."""
        for tail in (*self.own_tails, *self.foreign_tails):
            yield from tail.iter_range(low, high)
        for table in self.tables:
            try:
                yield from table.iter_range(low, high)
            except Corrupt:
                self._drop_corrupt_table(table)
                yield from self.iter_range(low, high)
                return

    def refresh_if_changed(self) -> bool:
        """Refresh if another process created, sealed or extended a tail.

        Return True if refreshed.
        """
        token = self._storage.change_token()
        if (
            token is not None
            and token == self._last_token
            and not any(tail.has_changed() for tail in self.foreign_tails)
        ):
            return False
        self.refresh()
        return True

    def refresh(self, *, reload_tails: bool = False, after_sweep: bool = False) -> None:
        """Read the lists of tails and packs again.

        Args:
            reload_tails: Read the other writers' tails again from their start.
            after_sweep: Forget what the sweep may have deleted.
        """
        with self._lock:
            token = self._storage.change_token()
            self._storage.refresh(self, reload_tails=reload_tails, after_sweep=after_sweep)
            self._last_token = token

    def set_packs(self, packs: Sequence[PackSource]) -> None:
        """Set the packs and the tables to search, newest first. The caller holds the lock."""
        packs = sorted(packs, key=lambda pack: pack.id, reverse=True)  # ids are time-ordered
        groups, covered = load_groups(self._layout.index, {p.id: p for p in packs}, self.groups())
        for pack in packs:
            if pack.id in covered:
                pack.close_files()
        singles = [pack for pack in packs if pack.id not in covered]
        self.packs = tuple(packs)
        self.set_tables((*singles, *groups))

    def groups(self) -> list[PackGroup]:
        """Return the group indexes among the tables."""
        return [table for table in self.tables if isinstance(table, PackGroup)]

    def _drop_corrupt_table(self, table: PackGroup | PackSource) -> None:
        """Delete a group with a bad checksum. Its packs have their own indexes."""
        if isinstance(table, PackGroup):
            with contextlib.suppress(FileNotFoundError):
                table.path.unlink()
        with self._lock:
            self.set_tables([other for other in self.tables if other is not table])
            self.set_packs(self.packs)

    def merge_tables(self, limit: int = MERGE_BATCH_TABLES) -> None:
        """Merge indexes if there are too many tables to search."""
        singles = [t for t in self.tables if isinstance(t, Pack)]
        if len(singles) + len(self.groups()) >= MERGE_MIN_TABLES:
            path = self._layout.index / f"{self._new_id()}{GROUP_SUFFIX}"
            merge_indexes(path, self.groups(), singles, limit=limit)
            with self._lock:
                self.set_packs(self.packs)

    # our own tails

    def acquire_tail(self) -> Tail:
        """Return a tail to write to: an adopted one that no process held, or a new one."""
        with self._lock:
            tail = self._storage.adopt_tail(self.own_tails) or self._storage.create_tail()
            self.own_tails = (*self.own_tails, tail)
            self.foreign_tails = tuple(other for other in self.foreign_tails if other.id != tail.id)
            return tail

    def new_tail(self) -> Tail:
        """Create an additional tail of our own."""
        with self._lock:
            tail = self._storage.create_tail()
            self.own_tails = (*self.own_tails, tail)
            return tail

    def adopt_all(self) -> list[Tail]:
        """Adopt and return every tail that no process holds."""
        taken: list[Tail] = []
        with self._lock:
            while (tail := self._storage.adopt_tail(self.own_tails)) is not None:
                taken.append(tail)
                self.own_tails = (*self.own_tails, tail)
                self.foreign_tails = tuple(
                    other for other in self.foreign_tails if other.id != tail.id
                )
        return taken

    def seal(self, tail: Tail, *, solid: bool = False) -> None:
        """Turn one of our tails into a pack. A tail that is `solid` is not rewritten."""
        if not tail.end:
            self._release_tail(tail)
            return
        pack = self._storage.seal(tail, solid=solid)
        with self._lock:
            self._storage.add_pack(self, pack)
            self.own_tails = tuple(other for other in self.own_tails if other is not tail)
        self._storage.after_seal(tail)
        tail.release()

    def _release_tail(self, tail: Tail) -> None:
        with self._lock:
            self.own_tails = tuple(other for other in self.own_tails if other is not tail)
        tail.release()

    def discard(self, tail: Tail) -> None:
        """Delete one of our tails with its objects."""
        with self._lock:
            self.own_tails = tuple(other for other in self.own_tails if other is not tail)
        tail.discard()

    def release(self) -> None:
        """Release our tails for adoption by others, and forget all sources."""
        self._storage.before_release(self.own_tails)
        with self._lock:
            for tail in self.own_tails:
                tail.release()
            self.own_tails = self.foreign_tails = ()
            self.packs = ()
            self.set_tables(())

    def after_fork(self) -> list[Tail]:
        """Reset in a child process. Return the parent's tails, which are now another writer's."""
        self._lock = threading.Lock()
        parents, self.own_tails = self.own_tails, ()
        if self._storage.keeps_parent_tails:
            self.foreign_tails = (*self.foreign_tails, *parents)
        self._last_token = None
        return list(parents)


def _filter_words(tables: Sequence[PackSource | PackGroup], slot: int) -> list[int]:
    words: list[int] = []
    for table in tables:
        with contextlib.suppress(NotFound):  # deleted by a sweep since the last refresh
            words += table.filter_words(slot)
    return words
