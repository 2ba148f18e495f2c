"""Helpers of the suites that run work in several threads and processes.

This module imports no test framework, so that child processes start fast.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from threading import Barrier
from typing import Any, TypeVar

from ortet.backends.base import Bucket, Catalog, Move, Signal
from ortet.errors import Conflict, Refused
from ortet.ids import Clock, Oid, SystemClock

T = TypeVar("T")

BucketOpener = Callable[[], Bucket]
CatalogOpener = Callable[[Clock], Catalog]
SignalOpener = Callable[[], Signal]

WAIT_TIMEOUT_SECONDS = 60.0
"""Seconds after which an operation that should be immediate has failed."""


def run_in_threads(work: Callable[..., T], jobs: Sequence[tuple[Any, ...]]) -> list[T]:
    """Run one call for each job, all started together, each in a thread; return the results."""
    barrier = Barrier(len(jobs))

    def begin(job: tuple[Any, ...]) -> T:
        barrier.wait(WAIT_TIMEOUT_SECONDS)
        return work(*job)

    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(begin, jobs))


def run_in_processes(work: Callable[..., T], jobs: Sequence[tuple[Any, ...]]) -> list[T]:
    """Run one call for each job, all started together, each in a new process.

    The function, arguments and results must be picklable.
    """
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(len(jobs))
    with ProcessPoolExecutor(
        len(jobs), mp_context=context, initializer=barrier.wait, initargs=(WAIT_TIMEOUT_SECONDS,)
    ) as pool:
        return [future.result() for future in [pool.submit(work, *job) for job in jobs]]


def make_oid(number: int) -> Oid:
    """Return an id for tests that only compare it."""
    return Oid(number.to_bytes(32, "big"))


def increment_head(opener: CatalogOpener, name: str, times: int) -> int:
    """Increment the number in a head `times` times by compare-and-set; return the lost races."""
    catalog = opener(SystemClock())
    lost = 0
    for _ in range(times):
        while True:
            head = catalog.head(name)
            value = int.from_bytes(head.oid, "big") if head else 0
            move = Move(name, head.oid if head else None, make_oid(value + 1))
            try:
                catalog.move([move], verb="raise")
                break
            except Conflict:
                lost += 1
    catalog.close()
    return lost


def try_lease(opener: CatalogOpener, name: str, owner: str) -> int:
    """Acquire a lease; return its fence, or 0 if another owner holds it."""
    catalog = opener(SystemClock())
    try:
        return catalog.acquire(name, owner, 3600 * 10**9).fence
    except Refused:
        return 0
    finally:
        catalog.close()


def try_put(opener: BucketOpener, key: str, data: bytes) -> bool:
    """Return True if this process created the object."""
    bucket = opener()
    try:
        bucket.put(key, data)
        return True
    except Conflict:
        return False
    finally:
        bucket.close()


def wait_for_notification(opener: SignalOpener, topic: str, ready: Callable[[], None]) -> bool:
    """Take a token, call `ready`, and wait for a notification."""
    signal = opener()
    try:
        token = signal.token(topic)
        ready()
        return signal.wait(topic, token, WAIT_TIMEOUT_SECONDS)
    finally:
        signal.close()
