"""Freeing what nothing refers to, beside running writers: mark, copy what lives, lock, delete."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable

import msgspec

from ortet._util.failpoints import reach
from ortet.errors import OrtetError, Unavailable, Unsupported
from ortet.ids import Oid
from ortet.objects.base import Kind, Link, Walk
from ortet.objects.gc.reachability import Marks
from ortet.objects.gc.repack import Repacker, choose
from ortet.objects.group import SUFFIX as GROUP
from ortet.objects.pack import Pack, list_packs
from ortet.objects.source import Source, kind_of
from ortet.objects.store import LocalObjects
from ortet.objects.tail import PART, Tail, pack_key, storage_error

Roots = Callable[[], Iterable[Link]]
"""Asked twice: before marking, and again when no writer is left."""

Progress = Callable[[int, int], None]

MIN_GARBAGE = 0.2
PATIENCE = 60.0
_STALE = 3600


class SweepReport(msgspec.Struct, frozen=True):
    """What a sweep did, or with dry_run would do. Objects and bytes are of all packs together."""

    kept: int
    removed: int
    bytes_before: int
    bytes_after: int
    packs_removed: int
    packs_written: int
    dry_run: bool

    @property
    def bytes_freed(self) -> int:
        return self.bytes_before - self.bytes_after


def sweep(
    objects: LocalObjects,
    roots: Roots,
    walk: Walk,
    *,
    dry_run: bool = False,
    min_garbage: float = MIN_GARBAGE,
    progress: Progress | None = None,
    patience: float = PATIENCE,
) -> SweepReport:
    """Rewrite packs that are at least `min_garbage` unreachable, without it; merge small ones.

    Objects in tails, and all they refer to, stay; tails that nobody holds, and ours, become packs
    first. Writers are kept out only while heads are read again and old packs are deleted.
    Unavailable when one does not finish within `patience` seconds, or another sweep runs. Corrupt,
    with nothing deleted, when something reachable is missing.
    """
    try:
        with objects.gate.busy(alone=True):
            run = Sweep(objects, roots, walk, dry_run=dry_run, min_garbage=min_garbage)
            run.mark(progress)
            run.copy()
            if not dry_run:
                run.finish(patience)
                run.tidy()
            return run.report()
    except OSError as error:
        raise storage_error(error, "sweeping") from error


class Sweep:
    """One of them, phase by phase."""

    def __init__(
        self,
        objects: LocalObjects,
        roots: Roots,
        walk: Walk,
        *,
        dry_run: bool,
        min_garbage: float,
    ) -> None:
        self._objects = objects
        self._roots = roots
        self._marks = Marks(objects, walk)
        self._dry_run = dry_run
        self._min_garbage = min_garbage
        self._repacker = Repacker(objects, write=not dry_run)
        self._sealed: list[Source] = []
        self._victims: list[Source] = []
        self._bytes_before = 0
        self._total = 0
        self._examined = 0

    def mark(self, progress: Progress | None) -> None:
        """Phase one, beside writers."""
        shelf = self._objects.shelf
        shelf.refresh()
        loose: list[Tail] = [*shelf.mine, *(tail for tail in shelf.others if tail.is_free())]
        self._bytes_before = sum(source.end for source in (*shelf.packs, *loose))
        if not self._dry_run:
            self._objects.writer.seal_now()
            shelf.refresh()
            loose = []
        self._gather()
        self._sealed = [*shelf.packs, *(tail for tail in loose if tail.end)]
        self._total = sum(len(source) for source in self._sealed)
        total = self._total + sum(len(tail) for tail in (*shelf.mine, *shelf.others))
        tick = None if progress is None else lambda done: progress(min(done, total), total)
        self._marks.add(self._roots(), tick=tick)
        self._mark_tails(loose)
        if progress is not None:
            progress(total, total)
        reach("sweep.after-mark")

    def _gather(self) -> None:
        """Before all packs are read: these are here."""

    def _mark_tails(self, loose: list[Tail]) -> None:
        """What lies in a tail may belong to a commit in the making: all it refers to stays."""
        shelf = self._objects.shelf
        for tail in (*shelf.mine, *shelf.others):
            if tail not in loose:
                links = (Link(oid, kind_of(spot[4])) for oid, spot in tail.spots())
                # A killed writer may have left a tree without its blobs: that is no damage.
                self._marks.add(links, trouble=_let_be)
        pending = list(self._objects.writer.pending.values())
        self._marks.add([Link(oid, Kind(kind)) for oid, kind, _ in pending], trouble=_let_be)

    def copy(self) -> None:
        """Phase two, beside writers: what lives in the packs to go is durable in new ones."""
        alive = self._marks.oids
        self._victims, kept = self._choose()
        self._repacker.avoid(kept)
        self._marks.fresh.clear()
        try:
            for victim in self._victims:
                self._repacker.copy(victim.spots(), alive)
            self._repacker.seal()
        except Unavailable:
            # No room for copies. Packs that need none can still go, and make some.
            self._repacker.give_up()
            self._victims = [
                victim
                for victim in self._victims
                if not any(oid in alive for oid, _ in victim.spots())
            ]
            if not self._victims:
                raise
        self._examined = sum(len(victim) for victim in self._victims)
        reach("sweep.after-copy")

    def _choose(self) -> tuple[list[Source], list[Source]]:
        return choose(self._sealed, self._marks.oids, min_garbage=self._min_garbage)

    def finish(self, patience: float) -> None:
        """Phase three, alone: nothing that became reachable meanwhile may go."""
        if not self._victims:
            return
        objects = self._objects
        with objects.gate.exclusive(patience):
            reach("sweep.locked")
            objects.shelf.refresh()
            self._copy_fresh()
            reach("sweep.before-epoch")
            # Before the first deletion: a writer that sees the old epoch may rely on any old pack.
            epoch = objects.gate.bump()
            reach("sweep.after-epoch")
            self._delete()
            objects.forget(epoch)

    def _copy_fresh(self) -> None:
        """What became reachable since it was marked."""
        self._marks.add(self._roots())
        self._mark_tails([])
        fresh = self._marks.fresh
        for victim in self._victims if fresh else ():
            if len(victim) < len(fresh):
                self._repacker.copy(victim.spots(), fresh)
                continue
            found = ((oid, victim.find(oid)) for oid in fresh)
            self._repacker.copy(((oid, spot) for oid, spot in found if spot is not None), fresh)
        self._repacker.seal()

    def _delete(self) -> None:
        for victim in self._victims:
            self._objects.bucket.delete([pack_key(victim.id)])
            reach("sweep.after-delete")
            if isinstance(victim, Pack):
                with contextlib.suppress(FileNotFoundError):
                    victim.index_path.unlink()
        self._drop_orphans()

    def _drop_orphans(self) -> None:
        """Indexes of packs that are no more, and groups that nobody needs."""
        root, shelf = self._objects.root, self._objects.shelf
        shelf.refresh()
        alive = {*root.tail_ids(), *list_packs(self._objects.bucket)}
        needed = {f"{id_}.idx" for id_ in alive} | {group.path.name for group in shelf.groups()}
        for name in os.listdir(root.index):
            if name.endswith((".idx", GROUP)) and name not in needed:
                with contextlib.suppress(FileNotFoundError):
                    (root.index / name).unlink()
        with contextlib.suppress(OrtetError, OSError):
            shelf.merge_tables()

    def tidy(self) -> None:
        """Remove what killed processes were writing: a pack whose tail is gone, and what is an hour
        old."""
        root = self._objects.root
        tails = {f"{id_}{PART}" for id_ in root.tail_ids()}
        os.utime(root.local / "gc.busy")
        now = os.stat(root.local / "gc.busy").st_mtime
        for place in (root.index, root.tails):
            for entry in os.scandir(place):
                with contextlib.suppress(FileNotFoundError):
                    orphan = entry.name.endswith(PART) and entry.name not in tails
                    stale = entry.name.endswith(".part") and entry.stat().st_mtime < now - _STALE
                    if orphan or stale:
                        os.unlink(entry.path)

    def report(self) -> SweepReport:
        sealed = sum(source.end for source in self._sealed)
        gone = sum(source.end for source in self._victims)
        removed = self._examined - self._repacker.objects
        return SweepReport(
            kept=self._total - removed,
            removed=removed,
            bytes_before=self._bytes_before,
            bytes_after=sealed - gone + self._repacker.bytes,
            packs_removed=len(self._victims),
            packs_written=self._repacker.packs,
            dry_run=self._dry_run,
        )


def _let_be(link: Link, parent: Oid | None, error: Exception) -> None:
    del link, parent
    if isinstance(error, Unsupported):
        raise error
