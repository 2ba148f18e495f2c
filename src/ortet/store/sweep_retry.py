"""Runs a sweep (garbage collection) of a shared store, and retries writes that a sweep refused."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

from ortet._util.log import get_logger
from ortet.errors import Conflict, Refused, Unavailable

if TYPE_CHECKING:
    from ortet.objects.base import ReferenceParser
    from ortet.objects.gc.sweep import Progress, Roots, SweepReport
    from ortet.store.context import StoreContext
    from ortet.store.lease import HeldLease

T = TypeVar("T")
P = ParamSpec("P")

_SWEEP_LEASE = "sweep"
_TRIES = 20


def check_sweep(store: StoreContext) -> None:
    """Raise Unsupported if this process can neither block nor refuse other writers."""
    from ortet.backends.sweep_epoch import EpochFencedCatalog

    if not isinstance(store.catalog, EpochFencedCatalog):
        store.objects.require_exclusive("a sweep")


def sweep_shared(
    store: StoreContext,
    roots: Roots,
    walk: ReferenceParser,
    *,
    dry_run: bool,
    min_garbage: float,
    progress: Progress | None,
) -> SweepReport:
    """Sweep a store that several hosts share; see `objects.gc.sweep_remote`.

    Only one sweep runs at a time on all hosts. Raise Unavailable("sweep_busy") if another one runs.
    """
    from ortet.backends.sweep_epoch import EpochFencedCatalog
    from ortet.objects.gc import sweep_remote

    objects, catalog = store.objects, store.catalog
    assert isinstance(catalog, EpochFencedCatalog)
    with _exclusive_sweep(store) as holding:
        return sweep_remote.sweep_remote(
            objects,
            roots,
            walk,
            fence=lambda: catalog.raise_epoch(holding.lease),
            clock=store.clock,
            grace=sweep_remote.GRACE,
            dry_run=dry_run,
            min_garbage=min_garbage,
            progress=progress,
        )


@contextmanager
def _exclusive_sweep(store: StoreContext) -> Iterator[HeldLease]:
    from ortet.store.lease import HeldLease, LeaseRenewer, acquire_lease, owner_prefix

    host = store.host
    # unique, so that one process cannot run two sweeps either
    owner = f"{owner_prefix(host)}:{os.urandom(8).hex()}"
    try:
        lease = acquire_lease(store.catalog, _SWEEP_LEASE, owner, host)
    except Refused as error:
        if error.kind != "lease_held":
            raise
        raise Unavailable(
            "sweep_busy",
            "a sweep of this store is running, here or on another host: repeat when it has ended",
        ) from error
    holding, heart = HeldLease(store.catalog, store.clock, lease), LeaseRenewer()
    heart.add(holding)
    try:
        yield holding
    finally:
        heart.close()
        holding.release()


class HasStore(Protocol):
    """An object that belongs to a store."""

    @property
    def store(self) -> StoreContext: ...


H = TypeVar("H", bound=HasStore)


def retry_on_sweep(verb: Callable[Concatenate[H, P], T]) -> Callable[Concatenate[H, P], T]:
    """Decorate a method, or a function, so that it is retried after a concurrent sweep.

    Its first argument must have a `store`.
    """

    @wraps(verb)
    def with_retry(owner: H, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run_with_sweep_retry(owner.store, lambda: verb(owner, *args, **kwargs))

    return with_retry


def run_with_sweep_retry(store: StoreContext, call: Callable[[], T]) -> T:
    """Run `call`, retrying while it fails with Conflict("swept").

    That conflict means that a sweep of another host ran concurrently and the whole write was
    refused. Inside `store.writing()` there is no retry: the caller has to retry the whole block.
    """
    for _ in range(_TRIES):
        try:
            return call()
        except Conflict as error:
            if error.kind != "swept" or store.objects.sweep_lock.is_writing():
                raise
            get_logger(__name__).debug("a sweep of another host refused a write: trying it again")
    return call()
