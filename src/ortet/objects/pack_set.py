"""Everything this process can read: its own tails, those of other writers, and the sealed packs."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence

from ortet.backends.base import Bucket
from ortet.errors import Corrupt, NotFound, OrtetError
from ortet.ids import Oid
from ortet.objects.absent import Absent
from ortet.objects.group import FEW, MANY, SUFFIX, Group, load_groups, merge
from ortet.objects.layout import Root
from ortet.objects.pack import Pack, list_packs
from ortet.objects.recovery import adopt, create, follow
from ortet.objects.seal import seal
from ortet.objects.source import Source, Spot
from ortet.objects.tail import Tail


class Shelf:
    """The sources of one store handle. Look-ups take no lock: changes replace whole tuples, and
    what moves from one to the next is in both for a moment."""

    def __init__(
        self, root: Root, bucket: Bucket, *, key_id: bytes, new_id: Callable[[], str]
    ) -> None:
        self._root = root
        self._bucket = bucket
        self._key_id = key_id
        self._new_id = new_id
        self._lock = threading.Lock()
        self._place = os.fspath(root.tails)
        self._seen: object = None
        self.mine: tuple[Tail, ...] = ()
        self.others: tuple[Tail, ...] = ()
        self.packs: tuple[Pack, ...] = ()
        self._search(())

    def _search(self, tables: Sequence[Pack | Group]) -> None:
        """From now on look in these tables: they and what is known of them change together."""
        self._searched = tuple(tables), Absent(lambda slot: _words(tables, slot))

    @property
    def tables(self) -> tuple[Pack | Group, ...]:
        return self._searched[0]

    def sources(self) -> Iterator[Source]:
        yield from self.mine
        yield from self.others
        yield from self.packs

    def find(self, oid: Oid) -> Spot | None:
        """Where an object is, as far as known without looking at the disk again."""
        spot = self.find_sure(oid)
        if spot is None and (tail := self.find_other(oid)) is not None:
            spot = tail.find(oid)
        return spot

    def find_sure(self, oid: Oid) -> Spot | None:
        """The same, only where it is durable already or will be with our next flush."""
        spot = self.find_mine(oid)
        if spot is not None:
            return spot
        tables, absent = self._searched
        if tables and oid not in absent:
            for table in tables:
                try:
                    spot = table.find(oid)
                except NotFound:  # swept away since we last looked
                    continue
                except Corrupt:
                    self._distrust(table)
                    return self.find_sure(oid)
                if spot is not None:
                    return spot
        return None

    def find_mine(self, oid: Oid) -> Spot | None:
        """The same, only in the tails of this writer."""
        for tail in self.mine:
            spot = tail.find(oid)
            if spot is not None:
                return spot
        return None

    def find_other(self, oid: Oid) -> Tail | None:
        """The tail of another writer that has it."""
        for tail in self.others:
            if tail.find(oid) is not None:
                return tail
        return None

    def copies(self, oid: Oid) -> Iterator[Spot]:
        """Every place that has the object."""
        for tail in (*self.mine, *self.others):
            spot = tail.find(oid)
            if spot is not None:
                yield spot
        for table in self.tables:
            with contextlib.suppress(NotFound, Corrupt):
                yield from table.copies(oid)

    def prefix(self, low: bytes, high: bytes) -> Iterator[tuple[Oid, int]]:
        """(oid, kind) of every object between, both ends included."""
        for tail in (*self.mine, *self.others):
            yield from tail.prefix(low, high)
        for table in self.tables:
            try:
                yield from table.prefix(low, high)
            except Corrupt:
                self._distrust(table)
                yield from self.prefix(low, high)
                return

    def refresh_if_changed(self) -> bool:
        """Look at the disk again when another process made, sealed or lengthened a tail."""
        if self._token() == self._seen and not any(tail.moved() for tail in self.others):
            return False
        self.refresh()
        return True

    def _token(self) -> object:
        return os.stat(self._place).st_mtime_ns

    def refresh(self, *, anew: bool = False, swept: bool = False) -> None:
        """Look at the disk again, `anew` also at what was seen of others' tails.

        Tails before packs, so that one sealed in between is seen twice, not never. `swept`: a pack
        that one of our tails has become may be gone since, so such a tail is ours no longer.
        """
        with self._lock:
            if swept:
                self.mine = tuple(tail for tail in self.mine if not tail.published)
            token = self._token()
            ids = self._root.tail_ids()
            sizes = list_packs(self._bucket)
            mine = {tail.id for tail in self.mine}
            self._take_packs(sizes, mine)
            known = {} if anew else {tail.id: tail for tail in self.others}
            others: list[Tail] = []
            for id_ in ids:
                if id_ in mine or id_ in sizes:
                    continue
                tail = known.get(id_)
                if tail is None:
                    tail = follow(self._root.tail(id_), key_id=self._key_id)
                else:
                    tail.advance()
                if tail is not None:
                    others.append(tail)
            self.others = tuple(others)
            self._seen = token

    def _take_packs(self, sizes: dict[str, int], mine: set[str]) -> None:
        known = {pack.id: pack for pack in self.packs}
        packs = []
        for id_, size in sizes.items():
            if id_ not in mine:
                pack = known.get(id_)
                packs.append(pack if pack and pack.end == size else self._pack(id_, size))
        self._arrange(packs)

    def _arrange(self, packs: Sequence[Pack]) -> None:
        """Which tables to search, newest first; only with the lock."""
        packs = sorted(packs, key=lambda pack: pack.id, reverse=True)  # ids are time-ordered
        groups, covered = load_groups(self._root.index, {p.id: p for p in packs}, self.groups())
        for pack in packs:
            if pack.id in covered:
                pack.rest()
        singles = [pack for pack in packs if pack.id not in covered]
        self.packs = tuple(packs)
        self._search((*singles, *groups))

    def groups(self) -> list[Group]:
        return [table for table in self.tables if isinstance(table, Group)]

    def _distrust(self, table: Group | Pack) -> None:
        """Drop a group that does not match its checksums: its packs have their own indexes."""
        if isinstance(table, Group):
            with contextlib.suppress(FileNotFoundError):
                table.path.unlink()
        with self._lock:
            self._search([other for other in self.tables if other is not table])
            self._arrange(self.packs)

    def merge_tables(self, most: int = FEW) -> None:
        """Keep the number of tables to search small."""
        singles = [t for t in self.tables if isinstance(t, Pack) and t.sealed]
        if len(singles) + len(self.groups()) >= MANY:
            path = self._root.index / f"{self._new_id()}{SUFFIX}"
            merge(path, self.groups(), singles, most=most)
            with self._lock:
                self._arrange(self.packs)

    def _pack(self, id_: str, size: int) -> Pack:
        return Pack(self._bucket, id_, size=size, index_dir=self._root.index, key_id=self._key_id)

    # our own tails

    def take_tail(self) -> Tail:
        """A tail to write to: one that nobody holds, or a new one."""
        with self._lock:
            tail = self._adopt_any() or self._create()
            self.mine = (*self.mine, tail)
            self.others = tuple(other for other in self.others if other.id != tail.id)
            return tail

    def _adopt_any(self) -> Tail | None:
        for id_ in self._root.tail_ids():
            if all(tail.id != id_ for tail in self.mine):
                tail = None
                with contextlib.suppress(
                    OrtetError
                ):  # leave one that can not be read; take another
                    tail = adopt(self._root.tail(id_), self._bucket, key_id=self._key_id)
                if tail is not None:
                    return tail
        return None

    def new_tail(self) -> Tail:
        """A tail of ours beside the one that is being written to."""
        with self._lock:
            tail = self._create()
            self.mine = (*self.mine, tail)
            return tail

    def _create(self) -> Tail:
        packs = list_packs(self._bucket)
        attempt = 0
        while True:
            # Clock and randomness are injected and may repeat themselves; a name must not.
            id_ = self._new_id() + (f"-{attempt}" if attempt else "")
            tail = None
            if id_ not in packs:
                tail = create(self._root.tail(id_), key_id=self._key_id)
            if tail is not None:
                return tail
            attempt += 1

    def adopt_all(self) -> list[Tail]:
        """Take over every tail that nobody holds."""
        taken: list[Tail] = []
        with self._lock:
            while (tail := self._adopt_any()) is not None:
                taken.append(tail)
                self.mine = (*self.mine, tail)
                self.others = tuple(other for other in self.others if other.id != tail.id)
        return taken

    def seal(self, tail: Tail, *, solid: bool = False) -> None:
        """Turn a tail of ours into a pack; one that is `solid` already, as it is."""
        if not tail.end:
            self._drop(tail)
            return
        pack = self._pack(tail.id, tail.end)
        pack.end = seal(tail, pack.index_path, self._bucket, solid=solid)
        with self._lock:
            self._arrange([pack, *self.packs])
            self.mine = tuple(other for other in self.mine if other is not tail)
        tail.release()

    def _drop(self, tail: Tail) -> None:
        with self._lock:
            self.mine = tuple(other for other in self.mine if other is not tail)
        tail.release()

    def discard(self, tail: Tail) -> None:
        """Throw a tail of ours away, with all that is in it."""
        with self._lock:
            self.mine = tuple(other for other in self.mine if other is not tail)
        tail.discard()

    def release(self) -> None:
        """Let others adopt our tails."""
        with self._lock:
            for tail in self.mine:
                tail.release()
            self.mine = self.others = ()
            self.packs = ()
            self._search(())

    def after_fork(self) -> list[Tail]:
        """In a child: the parent's tails are another writer's now. Returns them."""
        self._lock = threading.Lock()
        parents, self.mine = self.mine, ()
        self._seen = None
        return list(parents)


def _words(tables: Sequence[Pack | Group], slot: int) -> list[int]:
    words: list[int] = []
    for table in tables:
        with contextlib.suppress(NotFound):  # swept away since we last looked
            words += table.words(slot)
    return words
