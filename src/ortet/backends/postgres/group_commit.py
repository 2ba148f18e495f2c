"""Appends that come at the same moment from threads of one process, written as one transaction.

A commit costs the database more than the rows in it: most of the time of an append, and of the CPU
on both sides, is one round trip and one flush. So no more than a few statements are under way; who
comes meanwhile waits, and the next statement takes all who wait. One who comes alone waits for
nobody. Nothing is acknowledged before it is durable.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any
from uuid import UUID
from weakref import WeakValueDictionary

import msgspec

from ortet._util.fork_safety import close_at_fork
from ortet.backends.base import Lease
from ortet.backends.postgres.pool import PostgresDatabase
from ortet.errors import OrtetError, Unavailable

MAX_RUNNING_STATEMENTS = 2
"""Statements under way: one is flushed while the other is worked on."""
MAX_APPEND_BYTES = 64 * 1024
"""Bytes of an append that may wait for others, so that none waits for a large one."""
_MAX_BATCH = 64

STATEMENT = """SELECT append(line, first, (%(heads)b::bytea[])[low:high],
    (%(salts)b::bytea[])[low:high], (%(bodies)b::bytea[])[low:high], lease, owner, fence, at, epoch,
    %(doubt)s, '{}', '{}', '{}', '{}')
    FROM unnest(%(lines)s::uuid[], %(firsts)s::bigint[], %(lows)s::int[], %(highs)s::int[],
        %(leases)s::text[], %(owners)s::text[], %(fences)s::bigint[], %(ats)s::bigint[],
        %(epochs)s::bigint[])
    AS one (line, first, low, high, lease, owner, fence, at, epoch)"""


class PendingAppend(msgspec.Struct, frozen=True):
    """An append, as the function of that name takes it."""

    line: UUID
    first: int
    heads: list[bytes]
    salts: list[bytes]
    bodies: list[bytes]
    lease: Lease | None
    at: int | None
    epoch: int | None


Run = Callable[[str, dict[str, Any]], object]


class _WaitingAppend:
    """One who waits to be told: that it is `done`, that it `failed`, or to write `batch`, which it
    is part of. None of these: to try alone; `doubt`: nobody knows whether it was written."""

    __slots__ = ("append", "batch", "done", "error", "is_notified", "is_uncertain", "wakeup_lock")

    def __init__(self, append: PendingAppend) -> None:
        self.append = append
        self.done = False
        self.is_uncertain = True
        self.is_notified = False
        self.error: OrtetError | None = None
        self.batch: list[_WaitingAppend] = []
        self.wakeup_lock = Lock()
        self.wakeup_lock.acquire()


class GroupCommit:
    """Of one process and database: see `together`."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._pid = os.getpid()
        self._running = 0
        self._waiting: list[_WaitingAppend] = []
        close_at_fork(self)

    def append(self, append: PendingAppend, run: Run, write_alone: Callable[[bool], None]) -> None:
        """`run` makes a statement; `alone` writes this one by itself, or refuses it in its own
        words, and is told whether it may have been written already."""
        mine = _WaitingAppend(append)
        try:
            with self._lock:
                if self._running < MAX_RUNNING_STATEMENTS:
                    mine.batch = [mine]
                    self._running += 1
                else:
                    self._waiting.append(mine)
            if not mine.batch:
                mine.wakeup_lock.acquire()
                mine.is_notified = True
            if len(mine.batch) == 1:
                write_alone(False)
                mine.done = True
            elif mine.batch:
                self._write(mine.batch, run)
        finally:
            self._finish(mine)
        self._raise_or_write_alone(mine, write_alone)

    def _finish(self, waiter: _WaitingAppend) -> None:
        """Also when a signal ended it anywhere: whatever we were to do, another must."""
        if not waiter.is_notified and not waiter.batch:
            with self._lock:
                if waiter in self._waiting:
                    self._waiting.remove(waiter)
        if waiter.batch:
            self._start_next_batch()
            for other in waiter.batch:
                if other is not waiter:
                    other.wakeup_lock.release()

    def _write(self, batch: list[_WaitingAppend], run: Run) -> None:
        try:
            run(STATEMENT, batch_parameters([waiting.append for waiting in batch]))
        except Unavailable as error:
            for waiting in batch:
                waiting.error = error
        except OrtetError:  # of one of them: nothing was written, each asks for itself
            for waiting in batch:
                waiting.is_uncertain = False
        else:
            for waiting in batch:
                waiting.done = True

    def _raise_or_write_alone(
        self, waiter: _WaitingAppend, write_alone: Callable[[bool], None]
    ) -> None:
        if waiter.error is not None:  # the same for several threads: to each its own
            error = waiter.error
            raise Unavailable(error.kind, error.message, **error.details) from error
        if not waiter.done:
            write_alone(waiter.is_uncertain)

    def _start_next_batch(self) -> None:
        """A statement has ended: the first of those who wait makes the next one, for all of them;
        nobody waits: one fewer is under way."""
        with self._lock:
            batch, self._waiting = self._waiting[:_MAX_BATCH], self._waiting[_MAX_BATCH:]
            if batch:
                batch[0].batch = batch
            else:
                self._running -= 1
        if batch:
            batch[0].wakeup_lock.release()

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self) -> None:
        if self._pid != os.getpid():  # those threads are the parent's
            self._pid, self._running, self._waiting = os.getpid(), 0, []
        self._lock.release()


def batch_parameters(appends: Sequence[PendingAppend]) -> dict[str, Any]:
    """Events one behind the other, and where those of each begin and end. In the order of their
    timelines, so that two of us do not wait for each other."""
    ordered = sorted(appends, key=lambda one: one.line)
    highs: list[int] = []
    for one in ordered:
        highs.append((highs[-1] if highs else 0) + len(one.heads))
    return {
        "lines": [one.line for one in ordered],
        "firsts": [one.first for one in ordered],
        "lows": [high - len(one.heads) + 1 for high, one in zip(highs, ordered, strict=True)],
        "highs": highs,
        "heads": [head for one in ordered for head in one.heads],
        "salts": [salt for one in ordered for salt in one.salts],
        "bodies": [body for one in ordered for body in one.bodies],
        "leases": [one.lease and one.lease.name for one in ordered],
        "owners": [one.lease and one.lease.owner for one in ordered],
        "fences": [one.lease and one.lease.fence for one in ordered],
        "ats": [one.at for one in ordered],
        "epochs": [one.epoch for one in ordered],
        "doubt": False,
    }


_GROUP_COMMITS: WeakValueDictionary[PostgresDatabase, GroupCommit] = WeakValueDictionary()
"""Of this process, as its pools are."""


def group_commit_for(database: PostgresDatabase) -> GroupCommit:
    """The one that all catalogs of this process share."""
    found = _GROUP_COMMITS.get(database)
    if found is None:  # two threads may make two at once: those write apart, and that is all
        found = _GROUP_COMMITS[database] = GroupCommit()
    return found
