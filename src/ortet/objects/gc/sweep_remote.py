"""Freeing what nothing refers to in a bucket that many hosts write to, none of which can be locked
out: what is about to go is marked, then writers who may not have seen the mark are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ortet._util.failpoints import reach
from ortet.errors import Unsupported
from ortet.ids import Clock
from ortet.objects.base import Walk
from ortet.objects.gc.repack import choose
from ortet.objects.gc.sweep import MIN_GARBAGE, Progress, Roots, Sweep, SweepReport
from ortet.objects.remote.pack_set import GONE, RemoteShelf
from ortet.objects.remote.store import RemoteObjects
from ortet.objects.source import Source
from ortet.objects.tail import pack_key

GRACE = 3600.0
"""Seconds for which a pack may belong to a commit in the making."""


class Fence(Protocol):
    """What the catalog does for a sweep."""

    def __call__(self) -> int:
        """Raise the epoch, durably, and wait for writes that began before; returns the new one.

        From then on a write that relies on an older epoch is refused.
        """


def sweep_remote(
    objects: RemoteObjects,
    roots: Roots,
    walk: Walk,
    *,
    fence: Fence,
    clock: Clock,
    grace: float = GRACE,
    dry_run: bool = False,
    min_garbage: float = MIN_GARBAGE,
    progress: Progress | None = None,
) -> SweepReport:
    """As `sweep`, beside writers on any number of hosts. Only one may run at a time: the caller
    holds a lease for it.

    Packs younger than `grace` seconds stay. A writer that is refused repeats its commit, and puts
    again what it had found in a pack that goes. A sweep that is killed leaves marks, and the next
    one goes on where it was.
    """
    run = _RemoteSweep(objects, roots, walk, dry_run=dry_run, min_garbage=min_garbage)
    run.prepare(clock.now_ns() - int(grace * 1e9), progress)
    if not dry_run:
        run.end(fence)
    return run.report()


class _RemoteSweep(Sweep):
    _before = 0  # what was made later stays, and counts as kept

    def prepare(self, before: int, progress: Progress | None) -> None:
        """Beside writers: what lives in packs that are to go is in others, too."""
        self.mark(progress)
        self._far.settle()
        self._before = before
        self._bytes_before = sum(pack.end for pack in self._sealed)
        self.copy()

    def _gather(self) -> None:
        self._shelf.gather()

    def _choose(self) -> tuple[list[Source], list[Source]]:
        old = [pack for pack in self._sealed if _made(pack.id) < self._before]
        victims, kept = choose(old, self._marks.oids, min_garbage=self._min_garbage)
        marked = [pack for pack in kept if pack.id in self._shelf.condemned]
        return [*victims, *marked], [pack for pack in kept if pack not in marked]

    @property
    def _far(self) -> RemoteObjects:
        assert isinstance(self._objects, RemoteObjects)
        return self._objects

    @property
    def _shelf(self) -> RemoteShelf:
        shelf = self._objects.shelf
        if not isinstance(shelf, RemoteShelf):
            raise Unsupported("local_store", "this store is on this host: sweep it as such")
        return shelf

    def end(self, fence: Callable[[], int]) -> None:
        """Whoever writes with the new epoch has looked at the bucket after the marks were there."""
        bucket = self._objects.bucket
        # those that are there are of a sweep before this one
        bucket.put_all({f"packs/{victim.id}{GONE}": b"" for victim in self._victims})
        self._far.settle()  # marks and copies: other hosts must see them
        reach("sweep.after-marks")
        if self._victims:
            epoch = fence()
            reach("sweep.after-epoch")
            self._copy_fresh()
            self._far.settle()
            reach("sweep.before-delete")
            bucket.delete([pack_key(victim.id) for victim in self._victims])
            reach("sweep.after-delete")
            self._objects.forget(epoch)
        packs = {found.key for found in bucket.list("packs/")}
        marks = [key for key in packs if key.endswith(GONE)]
        bucket.delete([key for key in marks if key.removesuffix(GONE) + ".pack" not in packs])


def _made(id_: str) -> int:
    """When, in nanoseconds: what the clock of its writer said."""
    return int(id_[:12], 16) * 1_000_000
