"""Deletes unreachable objects while writers run: mark, copy reachable objects, lock, delete."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

import msgspec

from ortet._util.failpoints import failpoint
from ortet.errors import OrtetError, Unavailable, Unsupported
from ortet.ids import Oid
from ortet.objects.base import Kind, ObjectRef, ReferenceParser
from ortet.objects.gc.reachability import ReachableSet
from ortet.objects.gc.repack import Repacker, choose_packs
from ortet.objects.group import GROUP_SUFFIX as GROUP
from ortet.objects.pack import Pack, list_packs
from ortet.objects.source import FrameSource, kind_of
from ortet.objects.store import PackedObjectStore
from ortet.objects.tail import PACK_PART_SUFFIX, Tail, pack_key, storage_error

Roots = Callable[[], Iterable[ObjectRef]]
"""Returns the roots. Called twice: before marking, and again when no writer is active."""

Progress = Callable[[int, int], None]

ChoosePacks = Callable[
    [Sequence[FrameSource], Collection[Oid]], tuple[list[FrameSource], list[FrameSource]]
]
"""Returns, of all packs and the reachable objects, the packs to delete and those that stay."""

MIN_GARBAGE_FRACTION = 0.2
LOCK_TIMEOUT_SECONDS = 60.0
_STALE_PART_SECONDS = 3600


class SweepReport(msgspec.Struct, frozen=True):
    """The result of a sweep, or of a dry run. Objects and bytes are totals over all packs.

    Attributes:
        kept: Number of objects that stay.
        removed: Number of objects that nothing refers to.
        bytes_before: Size of all packs before the sweep.
        bytes_after: Size of all packs after the sweep.
        packs_removed: Number of packs that were removed.
        packs_written: Number of packs that were written again without removed objects.
        dry_run: True if nothing was removed.
    """

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
    objects: PackedObjectStore,
    roots: Roots,
    parse_references: ReferenceParser,
    *,
    dry_run: bool = False,
    min_garbage: float = MIN_GARBAGE_FRACTION,
    progress: Progress | None = None,
    lock_timeout: float = LOCK_TIMEOUT_SECONDS,
) -> SweepReport:
    """Rewrite packs with at least a fraction `min_garbage` of garbage, and merge small packs.

    Objects in tails, and everything they refer to, are kept. Our tails, and tails that no process
    holds, become packs first. Writers are excluded only while the roots are read again and old
    packs are deleted.

    Raises:
        Unavailable: A writer did not finish within `lock_timeout` seconds, or another sweep runs.
        Corrupt: A reachable object is missing. Nothing was deleted.
    """
    try:
        with objects.sweep_lock.hold_gc_lock(exclusive=True):
            run = SweepRun(
                objects,
                roots,
                parse_references,
                dry_run=dry_run,
                choose=partial(choose_packs, min_garbage=min_garbage),
            )
            run.mark(progress)
            run.copy()
            if not dry_run:
                run.finish(lock_timeout)
                run.remove_leftovers()
            return run.report()
    except OSError as error:
        raise storage_error(error, "sweeping") from error


class SweepRun:
    """One sweep, with a method for each phase.

    `choose` chooses the packs to delete. `prefetch` fetches packs before all of them are read.
    """

    def __init__(
        self,
        objects: PackedObjectStore,
        roots: Roots,
        parse_references: ReferenceParser,
        *,
        dry_run: bool,
        choose: ChoosePacks,
        prefetch: Callable[[], None] = lambda: None,
    ) -> None:
        self._objects = objects
        self._roots = roots
        self._reachable = ReachableSet(objects, parse_references)
        self._dry_run = dry_run
        self._choose_packs = choose
        self._prefetch_packs = prefetch
        self._repacker = Repacker(objects, write=not dry_run)
        self._packs: list[FrameSource] = []
        self.victims: list[FrameSource] = []
        self._bytes_before = 0
        self._total_objects = 0
        self._victim_objects = 0

    def mark(self, progress: Progress | None) -> None:
        """Phase 1, concurrent with writers: find reachable objects."""
        pack_set = self._objects.pack_set
        pack_set.refresh()
        loose: list[Tail] = [
            *pack_set.own_tails,
            *(tail for tail in pack_set.foreign_tails if tail.is_unlocked()),
        ]
        self._bytes_before = sum(source.end for source in (*pack_set.packs, *loose))
        if not self._dry_run:
            self._objects.writer.seal_now()
            pack_set.refresh()
            loose = []
        self._prefetch_packs()
        self._packs = [*pack_set.packs, *(tail for tail in loose if tail.end)]
        self._total_objects = sum(len(source) for source in self._packs)
        total = self._total_objects + sum(
            len(tail) for tail in (*pack_set.own_tails, *pack_set.foreign_tails)
        )
        tick = None if progress is None else lambda done: progress(min(done, total), total)
        self._reachable.add(self._roots(), on_progress=tick)
        self._mark_tails(loose)
        if progress is not None:
            progress(total, total)
        failpoint("sweep.after-mark")

    def _mark_tails(self, sealable: list[Tail]) -> None:
        """Mark the objects in tails and all they refer to.

        They may belong to an unfinished commit.
        """
        pack_set = self._objects.pack_set
        for tail in (*pack_set.own_tails, *pack_set.foreign_tails):
            if tail not in sealable:
                links = (ObjectRef(oid, kind_of(location[4])) for oid, location in tail.locations())
                # A killed writer may have left a tree without its blobs. That is not damage.
                self._reachable.add(links, on_broken=_ignore_broken)
        pending = list(self._objects.writer.pending.values())
        self._reachable.add(
            [ObjectRef(oid, Kind(kind)) for oid, kind, _ in pending], on_broken=_ignore_broken
        )

    def exclude_tails(self) -> None:
        """Report the size of the packs only: all tails of this host are packs by now."""
        self._bytes_before = sum(pack.end for pack in self._packs)

    def copy(self) -> None:
        """Phase 2, concurrent with writers: copy reachable objects of the old packs durably."""
        alive = self._reachable.oids
        self.victims, remaining = self._choose_packs(self._packs, alive)
        self._repacker.set_kept_packs(remaining)
        self._reachable.newly_reached.clear()
        try:
            for victim in self.victims:
                self._repacker.copy(victim.locations(), alive)
            self._repacker.seal()
        except Unavailable:
            # No space for copies. Delete at least the packs that need no copies, to free some.
            self._repacker.discard_unsealed()
            self.victims = [
                victim
                for victim in self.victims
                if not any(oid in alive for oid, _ in victim.locations())
            ]
            if not self.victims:
                raise
        self._victim_objects = sum(len(victim) for victim in self.victims)
        failpoint("sweep.after-copy")

    def finish(self, lock_timeout: float) -> None:
        """Phase 3, exclusive: copy objects that became reachable since phase 1, then delete."""
        if not self.victims:
            return
        objects = self._objects
        with objects.sweep_lock.exclusive(lock_timeout):
            failpoint("sweep.locked")
            objects.pack_set.refresh()
            self.copy_newly_reached()
            failpoint("sweep.before-epoch")
            # Raise the epoch before the first deletion: a writer with the old epoch may rely on any
            # old pack.
            epoch = objects.sweep_lock.raise_epoch()
            failpoint("sweep.after-epoch")
            self._delete()
            objects.refresh_after_sweep(epoch)

    def copy_newly_reached(self) -> None:
        """Copy the objects that became reachable since they were marked."""
        self._reachable.add(self._roots())
        self._mark_tails([])
        fresh = self._reachable.newly_reached
        for victim in self.victims if fresh else ():
            if len(victim) < len(fresh):
                self._repacker.copy(victim.locations(), fresh)
                continue
            located = ((oid, victim.find(oid)) for oid in fresh)
            self._repacker.copy(
                ((oid, location) for oid, location in located if location is not None), fresh
            )
        self._repacker.seal()

    def _delete(self) -> None:
        for victim in self.victims:
            self._objects.bucket.delete([pack_key(victim.id)])
            failpoint("sweep.after-delete")
            if isinstance(victim, Pack):
                with contextlib.suppress(FileNotFoundError):
                    victim.index_path.unlink()
        self._remove_orphan_indexes()

    def _remove_orphan_indexes(self) -> None:
        """Delete indexes of packs that no longer exist, and unused groups."""
        root, pack_set = self._objects.layout, self._objects.pack_set
        pack_set.refresh()
        alive = {*root.tail_ids(), *list_packs(self._objects.bucket)}
        needed = {f"{id_}.idx" for id_ in alive} | {group.path.name for group in pack_set.groups()}
        for name in os.listdir(root.index):
            if name.endswith((".idx", GROUP)) and name not in needed:
                with contextlib.suppress(FileNotFoundError):
                    (root.index / name).unlink()
        with contextlib.suppress(OrtetError, OSError):
            pack_set.merge_tables()

    def remove_leftovers(self) -> None:
        """Delete temporary files of killed processes.

        These are pack parts without a tail, and other parts older than an hour.
        """
        root = self._objects.layout
        tails = {f"{id_}{PACK_PART_SUFFIX}" for id_ in root.tail_ids()}
        os.utime(root.local / "gc.busy")
        now = os.stat(root.local / "gc.busy").st_mtime
        for place in (root.index, root.tails):
            for entry in os.scandir(place):
                with contextlib.suppress(FileNotFoundError):
                    orphan = entry.name.endswith(PACK_PART_SUFFIX) and entry.name not in tails
                    stale = (
                        entry.name.endswith(".part")
                        and entry.stat().st_mtime < now - _STALE_PART_SECONDS
                    )
                    if orphan or stale:
                        os.unlink(entry.path)

    def report(self) -> SweepReport:
        """Return the result."""
        sealed = sum(source.end for source in self._packs)
        gone = sum(source.end for source in self.victims)
        removed = self._victim_objects - self._repacker.objects
        return SweepReport(
            kept=self._total_objects - removed,
            removed=removed,
            bytes_before=self._bytes_before,
            bytes_after=sealed - gone + self._repacker.bytes,
            packs_removed=len(self.victims),
            packs_written=self._repacker.packs,
            dry_run=self._dry_run,
        )


def _ignore_broken(ref: ObjectRef, parent: Oid | None, error: Exception) -> None:
    del ref, parent
    if isinstance(error, Unsupported):
        raise error
