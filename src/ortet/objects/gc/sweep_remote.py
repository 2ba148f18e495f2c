"""Deletes unreachable objects in a bucket that many hosts write to.

Writers on other hosts cannot be locked out. The sweep marks the packs to delete, then raises the
epoch. Writers that may not have seen the marks are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ortet._util.failpoints import failpoint
from ortet.errors import Unsupported
from ortet.ids import Clock
from ortet.objects.base import ReferenceParser
from ortet.objects.gc.repack import choose_packs
from ortet.objects.gc.sweep import MIN_GARBAGE_FRACTION, Progress, Roots, SweepReport, SweepRun
from ortet.objects.remote.pack_set import DELETION_MARK_SUFFIX, RemotePackSet
from ortet.objects.remote.store import RemoteObjectStore
from ortet.objects.source import FrameSource
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
    objects: RemoteObjectStore,
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
    run = _RemoteSweepRun(
        objects, roots, parse_references, dry_run=dry_run, min_garbage=min_garbage
    )
    run.prepare(clock.now_ns() - int(grace * 1e9), progress)
    if not dry_run:
        run.delete_victims(fence)
    return run.report()


class _RemoteSweepRun(SweepRun):
    _cutoff_ns = 0  # newer packs are kept

    def prepare(self, cutoff_ns: int, progress: Progress | None) -> None:
        """Mark and copy, concurrent with writers.

        Afterwards all reachable objects are in packs that stay.
        """
        self.mark(progress)
        self._remote_objects.wait_for_uploads()
        self._cutoff_ns = cutoff_ns
        self._bytes_before = sum(pack.end for pack in self._packs)
        self.copy()

    def _prefetch_packs(self) -> None:
        self._pack_set.prefetch_small_packs()

    def _choose_packs(self) -> tuple[list[FrameSource], list[FrameSource]]:
        old = [pack for pack in self._packs if _created_ns(pack.id) < self._cutoff_ns]
        victims, kept = choose_packs(old, self._reachable.oids, min_garbage=self._min_garbage)
        marked = [pack for pack in kept if pack.id in self._pack_set.marked_for_deletion]
        return [*victims, *marked], [pack for pack in kept if pack not in marked]

    @property
    def _remote_objects(self) -> RemoteObjectStore:
        assert isinstance(self._objects, RemoteObjectStore)
        return self._objects

    @property
    def _pack_set(self) -> RemotePackSet:
        shelf = self._objects.pack_set
        if not isinstance(shelf, RemotePackSet):
            raise Unsupported("local_store", "this store is on this host: sweep it as such")
        return shelf

    def delete_victims(self, fence: Callable[[], int]) -> None:
        """Write the deletion marks, raise the epoch, and delete the packs.

        After the epoch is raised, every accepted writer has listed the bucket after the marks were
        written.
        """
        bucket = self._objects.bucket
        # Existing marks are those of an earlier sweep.
        bucket.put_all(
            {f"packs/{victim.id}{DELETION_MARK_SUFFIX}": b"" for victim in self._victims}
        )
        self._remote_objects.wait_for_uploads()  # other hosts must see the marks and the copies
        failpoint("sweep.after-marks")
        if self._victims:
            epoch = fence()
            failpoint("sweep.after-epoch")
            self._copy_newly_reached()
            self._remote_objects.wait_for_uploads()
            failpoint("sweep.before-delete")
            bucket.delete([pack_key(victim.id) for victim in self._victims])
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
