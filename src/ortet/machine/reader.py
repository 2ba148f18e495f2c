"""Read the files a scan found changed: at once when they are few, else in a thread ahead of it."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ortet.graph.records import Entry
from ortet.machine.abc import Loss
from ortet.machine.capture import Unreadable, look
from ortet.store.abc import Objects

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

_FEW_FILES = 64
_FEW_BYTES = 4 << 20
_AHEAD = 16  # batches read before their directories are encoded: this bounds memory and descriptors
_THREADS = 1  # beside the scan itself; one more only fights for the interpreter (+25 % of CPU)


class Job(NamedTuple):
    """One name to read."""

    name: str
    raw: bytes
    st: os.stat_result
    path: bytes
    mapped: bool = False


class Outcome(NamedTuple):
    """`found` is None for a file that is gone; `unreadable` says why what was known must stand."""

    job: Job
    found: tuple[Entry, os.stat_result] | None
    unreadable: bool
    losses: list[Loss]


Pending = Callable[[], list[Outcome]]


class Reader:
    """Feeds batches of files to a thread once a scan turns out to be long."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._files = _FEW_FILES
        self._bytes = _FEW_BYTES
        self._pool: ThreadPoolExecutor | None = None
        self._flying: deque[tuple[Future[list[Outcome]], int]] = deque()

    def read(self, fd: int, jobs: list[Job]) -> list[Pending]:
        """Start reading; the results are waited for when they are called for."""
        self._files -= len(jobs)
        self._bytes -= sum(job.st.st_size for job in jobs)
        if self._files > 0 and self._bytes > 0:
            outcomes = self._batch(fd, jobs)
            return [lambda: outcomes]
        return [self._submit(fd, batch) for batch in _batches(jobs)]

    def close(self) -> None:
        for future, fd in self._flying:
            if future.cancel():
                os.close(fd)
        if self._pool is not None:
            self._pool.shutdown()

    def _submit(self, fd: int, batch: list[Job]) -> Pending:
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - few files need none

            self._pool = ThreadPoolExecutor(_THREADS, "ortet-read")
        while len(self._flying) >= _AHEAD:
            self._flying.popleft()[0].result()
        own = os.dup(fd)
        future = self._pool.submit(self._closing, own, batch)
        self._flying.append((future, own))
        return future.result

    def _closing(self, fd: int, batch: list[Job]) -> list[Outcome]:
        try:
            return self._batch(fd, batch)
        finally:
            os.close(fd)

    def _batch(self, fd: int, batch: list[Job]) -> list[Outcome]:
        return [self._one(fd, job) for job in batch]

    def _one(self, fd: int, job: Job) -> Outcome:
        losses: list[Loss] = []
        try:
            found = look(
                self._objects,
                fd,
                job.raw,
                job.st,
                path=job.path,
                losses=losses,
                mapped=job.mapped,
            )
        except Unreadable as error:
            return Outcome(job, None, True, [*losses, error.loss])
        return Outcome(job, found, False, losses)


def _batches(jobs: list[Job]) -> list[list[Job]]:
    """Of at most so many files, and not much more than so many bytes."""
    batches: list[list[Job]] = []
    batch: list[Job] = []
    room = 0
    for job in jobs:
        if room <= 0 or len(batch) >= _FEW_FILES:
            batch, room = [], _FEW_BYTES
            batches.append(batch)
        batch.append(job)
        room -= job.st.st_size
    return batches
