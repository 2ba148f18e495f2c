"""Deletes unreachable objects in a bucket that many hosts write to.

Writers on other hosts cannot be locked out. The sweep marks the packs to delete, then raises the
epoch. Writers that may not have seen the marks are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Protocol

from ortet._util.failpoints import failpoint
from ortet.ids import Clock, Oid
from ortet.objects.base import ReferenceParser
from ortet.objects.gc.repack import choose_packs
from ortet.objects.gc.sweep import MIN_GARBAGE_FRACTION, Progress, Roots, SweepReport, SweepRun
from ortet.objects.remote.pack_set import DELETION_MARK_SUFFIX, prefetch_small_packs
from ortet.objects.source import FrameSource
from ortet.objects.store import PackedObjectStore
from ortet.objects.tail import pack_key

GRACE = 3600.0
"""Seconds for which a new pack may belong to an unfinished commit."""


class Fence(Protocol):
    """The function of the catalog that a remote sweep needs."""

    def __call__(self) -> int:
        """Raise the epoch durably, wait for writes that began before, and return the new epoch.

        From then on a write with an older epoch is refused.
        """


def sweep_remote(
    objects: PackedObjectStore,
    roots: Roots,
    parse_references: ReferenceParser,
    *,
    fence: Fence,
    clock: Clock,
    grace: float = GRACE,
    dry_run: bool = False,
    min_garbage: float = MIN_GARBAGE_FRACTION,
    progress: Progress | None = None,
) -> SweepReport:
    """Sweep a bucket while writers on any number of hosts run. See `sweep`.

    Only one sweep may run at a time: the caller holds a lease for it. Packs younger than `grace`
    seconds are kept. A refused writer retries its commit, and puts again the objects that it had
    found in a deleted pack. A killed sweep leaves marks, and the next sweep continues with them.
    """
    run = _RemoteSweep(
        objects,
        roots,
        parse_references,
        dry_run=dry_run,
        min_garbage=min_garbage,
        cutoff_ns=clock.now_ns() - int(grace * 1e9),
    )
    run.prepare(progress)
    if not dry_run:
        run.delete_victims(fence)
    return run.report()


class _RemoteSweep:
    def __init__(
        self,
        objects: PackedObjectStore,
        roots: Roots,
        parse_references: ReferenceParser,
        *,
        dry_run: bool,
        min_garbage: float,
        cutoff_ns: int,
    ) -> None:
        self._objects = objects
        self._pack_set = objects.pack_set
        self._min_garbage = min_garbage
        self._cutoff_ns = cutoff_ns  # newer packs are kept
        self._run = SweepRun(
            objects,
            roots,
            parse_references,
            dry_run=dry_run,
            choose=self._choose_packs,
            prefetch=partial(prefetch_small_packs, objects.pack_set, objects.bucket),
        )
        self.report = self._run.report

    def prepare(self, progress: Progress | None) -> None:
        """Mark and copy, concurrent with writers.

        Afterwards all reachable objects are in packs that stay.
        """
        self._run.mark(progress)
        self._objects.wait_for_uploads()
        self._run.exclude_tails()
        self._run.copy()

    def _choose_packs(
        self, packs: Sequence[FrameSource], alive: Collection[Oid]
    ) -> tuple[list[FrameSource], list[FrameSource]]:
        old = [pack for pack in packs if _created_ns(pack.id) < self._cutoff_ns]
        victims, remaining = choose_packs(old, alive, min_garbage=self._min_garbage)
        marked = [pack for pack in remaining if pack.id in self._pack_set.marked_for_deletion]
        return [*victims, *marked], [pack for pack in remaining if pack not in marked]

    def delete_victims(self, fence: Callable[[], int]) -> None:
        """Write the deletion marks, raise the epoch, and delete the packs.

        After the epoch is raised, every accepted writer has listed the bucket after the marks were
        written.
        """
        bucket = self._objects.bucket
        # Existing marks are those of an earlier sweep.
        bucket.put_all(
            {f"packs/{victim.id}{DELETION_MARK_SUFFIX}": b"" for victim in self._run.victims}
        )
        self._objects.wait_for_uploads()  # other hosts must see the marks and the copies
        failpoint("sweep.after-marks")
        if self._run.victims:
            epoch = fence()
            failpoint("sweep.after-epoch")
            self._run.copy_newly_reached()
            self._objects.wait_for_uploads()
            failpoint("sweep.before-delete")
            bucket.delete([pack_key(victim.id) for victim in self._run.victims])
            failpoint("sweep.after-delete")
            self._objects.refresh_after_sweep(epoch)
        packs = {found.key for found in bucket.list("packs/")}
        marks = [key for key in packs if key.endswith(DELETION_MARK_SUFFIX)]
        bucket.delete(
            [key for key in marks if key.removesuffix(DELETION_MARK_SUFFIX) + ".pack" not in packs]
        )


def _created_ns(id_: str) -> int:
    """Return the creation time of a pack in nanoseconds, by its writer's clock."""
    return int(id_[:12], 16) * 1_000_000
