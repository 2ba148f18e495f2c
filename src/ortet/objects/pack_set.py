"""Everything this process can read: its own tails, those of other writers, and the sealed packs."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence

from ortet.backends.base import Bucket
from ortet.errors import Corrupt, NotFound, OrtetError
from ortet.ids import Oid
from ortet.objects.absent import AbsenceFilter
from ortet.objects.group import (
    GROUP_SUFFIX,
    MERGE_BATCH_TABLES,
    MERGE_MIN_TABLES,
    PackGroup,
    load_groups,
    merge_indexes,
)
from ortet.objects.layout import StoreLayout
from ortet.objects.pack import Pack, list_packs
from ortet.objects.recovery import adopt_tail, create_tail, follow_tail
from ortet.objects.seal import seal
from ortet.objects.source import FrameSource, ObjectLocation
from ortet.objects.tail import Tail


class PackSet:
    """The sources of one store handle. Look-ups take no lock: changes replace whole tuples, and
    what moves from one to the next is in both for a moment."""

    def __init__(
        self, layout: StoreLayout, bucket: Bucket, *, key_id: bytes, new_id: Callable[[], str]
    ) -> None:
        self._layout = layout
        self._bucket = bucket
        self._key_id = key_id
        self._new_id = new_id
        self._lock = threading.Lock()
        self._tails_directory = os.fspath(layout.tails)
        self._last_token: object = None
        self.own_tails: tuple[Tail, ...] = ()
        self.foreign_tails: tuple[Tail, ...] = ()
        self.packs: tuple[Pack, ...] = ()
        self._set_tables(())

    def _set_tables(self, tables: Sequence[Pack | PackGroup]) -> None:
        """From now on look in these tables: they and what is known of them change together."""
        self._tables_and_filter = (
            tuple(tables),
            AbsenceFilter(lambda slot: _filter_words(tables, slot)),
        )

    @property
    def tables(self) -> tuple[Pack | PackGroup, ...]:
        return self._tables_and_filter[0]

    def sources(self) -> Iterator[FrameSource]:
        yield from self.own_tails
        yield from self.foreign_tails
        yield from self.packs

    def find(self, oid: Oid) -> ObjectLocation | None:
        """Where an object is, as far as known without looking at the disk again."""
        spot = self.find_durable(oid)
        if spot is None and (tail := self.find_foreign_tail(oid)) is not None:
            spot = tail.find(oid)
        return spot

    def find_durable(self, oid: Oid) -> ObjectLocation | None:
        """The same, only where it is durable already or will be with our next flush."""
        spot = self.find_in_own_tails(oid)
        if spot is not None:
            return spot
        tables, absent = self._tables_and_filter
        if tables and oid not in absent:
            for table in tables:
                try:
                    spot = table.find(oid)
                except NotFound:  # swept away since we last looked
                    continue
                except Corrupt:
                    self._drop_corrupt_table(table)
                    return self.find_durable(oid)
                if spot is not None:
                    return spot
        return None

    def find_in_own_tails(self, oid: Oid) -> ObjectLocation | None:
        """The same, only in the tails of this writer."""
        for tail in self.own_tails:
            spot = tail.find(oid)
            if spot is not None:
                return spot
        return None

    def find_foreign_tail(self, oid: Oid) -> Tail | None:
        """The tail of another writer that has it."""
        for tail in self.foreign_tails:
            if tail.find(oid) is not None:
                return tail
        return None

    def copies(self, oid: Oid) -> Iterator[ObjectLocation]:
        """Every place that has the object."""
        for tail in (*self.own_tails, *self.foreign_tails):
            spot = tail.find(oid)
            if spot is not None:
                yield spot
        for table in self.tables:
            with contextlib.suppress(NotFound, Corrupt):
                yield from table.copies(oid)

    def iter_range(self, low: bytes, high: bytes) -> Iterator[tuple[Oid, int]]:
        """(oid, kind) of every object between, both ends included."""
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
        """Look at the disk again when another process made, sealed or lengthened a tail."""
        if self._change_token() == self._last_token and not any(
            tail.has_changed() for tail in self.foreign_tails
        ):
            return False
        self.refresh()
        return True

    def _change_token(self) -> object:
        return os.stat(self._tails_directory).st_mtime_ns

    def refresh(self, *, reload_tails: bool = False, after_sweep: bool = False) -> None:
        """Look at the disk again, `anew` also at what was seen of others' tails.

        Tails before packs, so that one sealed in between is seen twice, not never. `swept`: a pack
        that one of our tails has become may be gone since, so such a tail is ours no longer.
        """
        with self._lock:
            if after_sweep:
                self.own_tails = tuple(tail for tail in self.own_tails if not tail.published)
            token = self._change_token()
            ids = self._layout.tail_ids()
            sizes = list_packs(self._bucket)
            mine = {tail.id for tail in self.own_tails}
            self._update_packs(sizes, mine)
            known = {} if reload_tails else {tail.id: tail for tail in self.foreign_tails}
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
            self.foreign_tails = tuple(others)
            self._last_token = token

    def _update_packs(self, sizes: dict[str, int], own_ids: set[str]) -> None:
        known = {pack.id: pack for pack in self.packs}
        packs = []
        for id_, size in sizes.items():
            if id_ not in own_ids:
                pack = known.get(id_)
                packs.append(pack if pack and pack.end == size else self._make_pack(id_, size))
        self._set_packs(packs)

    def _set_packs(self, packs: Sequence[Pack]) -> None:
        """Which tables to search, newest first; only with the lock."""
        packs = sorted(packs, key=lambda pack: pack.id, reverse=True)  # ids are time-ordered
        groups, covered = load_groups(self._layout.index, {p.id: p for p in packs}, self.groups())
        for pack in packs:
            if pack.id in covered:
                pack.close_files()
        singles = [pack for pack in packs if pack.id not in covered]
        self.packs = tuple(packs)
        self._set_tables((*singles, *groups))

    def groups(self) -> list[PackGroup]:
        return [table for table in self.tables if isinstance(table, PackGroup)]

    def _drop_corrupt_table(self, table: PackGroup | Pack) -> None:
        """Drop a group that does not match its checksums: its packs have their own indexes."""
        if isinstance(table, PackGroup):
            with contextlib.suppress(FileNotFoundError):
                table.path.unlink()
        with self._lock:
            self._set_tables([other for other in self.tables if other is not table])
            self._set_packs(self.packs)

    def merge_tables(self, limit: int = MERGE_BATCH_TABLES) -> None:
        """Keep the number of tables to search small."""
        singles = [t for t in self.tables if isinstance(t, Pack) and t.sealed]
        if len(singles) + len(self.groups()) >= MERGE_MIN_TABLES:
            path = self._layout.index / f"{self._new_id()}{GROUP_SUFFIX}"
            merge_indexes(path, self.groups(), singles, limit=limit)
            with self._lock:
                self._set_packs(self.packs)

    def _make_pack(self, id_: str, size: int) -> Pack:
        return Pack(self._bucket, id_, size=size, index_dir=self._layout.index, key_id=self._key_id)

    # our own tails

    def acquire_tail(self) -> Tail:
        """A tail to write to: one that nobody holds, or a new one."""
        with self._lock:
            tail = self._adopt_any() or self._create_tail()
            self.own_tails = (*self.own_tails, tail)
            self.foreign_tails = tuple(other for other in self.foreign_tails if other.id != tail.id)
            return tail

    def _adopt_any(self) -> Tail | None:
        for id_ in self._layout.tail_ids():
            if all(tail.id != id_ for tail in self.own_tails):
                tail = None
                with contextlib.suppress(
                    OrtetError
                ):  # leave one that can not be read; take another
                    tail = adopt_tail(
                        self._layout.tail_path(id_), self._bucket, key_id=self._key_id
                    )
                if tail is not None:
                    return tail
        return None

    def new_tail(self) -> Tail:
        """A tail of ours beside the one that is being written to."""
        with self._lock:
            tail = self._create_tail()
            self.own_tails = (*self.own_tails, tail)
            return tail

    def _create_tail(self) -> Tail:
        packs = list_packs(self._bucket)
        attempt = 0
        while True:
            # Clock and randomness are injected and may repeat themselves; a name must not.
            id_ = self._new_id() + (f"-{attempt}" if attempt else "")
            tail = None
            if id_ not in packs:
                tail = create_tail(self._layout.tail_path(id_), key_id=self._key_id)
            if tail is not None:
                return tail
            attempt += 1

    def adopt_all(self) -> list[Tail]:
        """Take over every tail that nobody holds."""
        taken: list[Tail] = []
        with self._lock:
            while (tail := self._adopt_any()) is not None:
                taken.append(tail)
                self.own_tails = (*self.own_tails, tail)
                self.foreign_tails = tuple(
                    other for other in self.foreign_tails if other.id != tail.id
                )
        return taken

    def seal(self, tail: Tail, *, solid: bool = False) -> None:
        """Turn a tail of ours into a pack; one that is `solid` already, as it is."""
        if not tail.end:
            self._release_tail(tail)
            return
        pack = self._make_pack(tail.id, tail.end)
        pack.end = seal(tail, pack.index_path, self._bucket, solid=solid)
        with self._lock:
            self._set_packs([pack, *self.packs])
            self.own_tails = tuple(other for other in self.own_tails if other is not tail)
        tail.release()

    def _release_tail(self, tail: Tail) -> None:
        with self._lock:
            self.own_tails = tuple(other for other in self.own_tails if other is not tail)
        tail.release()

    def discard(self, tail: Tail) -> None:
        """Throw a tail of ours away, with all that is in it."""
        with self._lock:
            self.own_tails = tuple(other for other in self.own_tails if other is not tail)
        tail.discard()

    def release(self) -> None:
        """Let others adopt our tails."""
        with self._lock:
            for tail in self.own_tails:
                tail.release()
            self.own_tails = self.foreign_tails = ()
            self.packs = ()
            self._set_tables(())

    def after_fork(self) -> list[Tail]:
        """In a child: the parent's tails are another writer's now. Returns them."""
        self._lock = threading.Lock()
        parents, self.own_tails = self.own_tails, ()
        self._last_token = None
        return list(parents)


def _filter_words(tables: Sequence[Pack | PackGroup], slot: int) -> list[int]:
    words: list[int] = []
    for table in tables:
        with contextlib.suppress(NotFound):  # swept away since we last looked
            words += table.filter_words(slot)
    return words
