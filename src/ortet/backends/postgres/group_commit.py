"""Group commit: concurrent appends of one process are written in one transaction.

Most of the time of an append, and of the CPU on both sides, is one round trip and one flush. So
only a few statements run at a time. Appends that arrive meanwhile wait, and the next statement
writes all of them. A single append does not wait. No append is acknowledged before it is durable.
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
"""The maximum number of concurrent statements: one is flushed while the other is processed."""
MAX_APPEND_BYTES = 64 * 1024
"""Larger appends are not grouped, so that no append waits for a large one."""
_MAX_BATCH = 64

STATEMENT = """SELECT append(line, first, (%(heads)b::bytea[])[low:high],
    (%(salts)b::bytea[])[low:high], (%(bodies)b::bytea[])[low:high], lease, owner, fence, at, epoch,
    %(doubt)s, '{}', '{}', '{}', '{}')
    FROM unnest(%(lines)s::uuid[], %(firsts)s::bigint[], %(lows)s::int[], %(highs)s::int[],
        %(leases)s::text[], %(owners)s::text[], %(fences)s::bigint[], %(ats)s::bigint[],
        %(epochs)s::bigint[])
    AS one (line, first, low, high, lease, owner, fence, at, epoch)"""


class PendingAppend(msgspec.Struct, frozen=True):
    """The parameters of one call of the SQL function `append`."""

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
    """A waiting append.

    After the wake-up it is `done`, has an `error`, or must write the `batch` that it is part of.
    Otherwise it must be written alone; `is_uncertain`: it may already have been written.
    """

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
    """Groups the appends of one process to one database; see `group_commit_for`."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._pid = os.getpid()
        self._running = 0
        self._waiting: list[_WaitingAppend] = []
        close_at_fork(self)

    def append(self, append: PendingAppend, run: Run, write_alone: Callable[[bool], None]) -> None:
        """Write an append, together with concurrent ones.

        Args:
            append: The parameters of the append.
            run: Runs a statement.
            write_alone: Writes only this append or raises its error. Its argument is True if the
                append may already have been written.
        """
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
        """Hand over the remaining work, even if a signal interrupted the thread at any point."""
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
        # The error is caused by one of them, and nothing was written: each is tried alone.
        except OrtetError:
            for waiting in batch:
                waiting.is_uncertain = False
        else:
            for waiting in batch:
                waiting.done = True

    def _raise_or_write_alone(
        self, waiter: _WaitingAppend, write_alone: Callable[[bool], None]
    ) -> None:
        if waiter.error is not None:  # several threads must not raise the same exception object
            error = waiter.error
            raise Unavailable(error.kind, error.message, **error.details) from error
        if not waiter.done:
            write_alone(waiter.is_uncertain)

    def _start_next_batch(self) -> None:
        """Let the first waiting append write the next batch.

        If none waits, one statement fewer runs.
        """
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
        if self._pid != os.getpid():  # the waiting threads belong to the parent
            self._pid, self._running, self._waiting = os.getpid(), 0, []
        self._lock.release()


def batch_parameters(appends: Sequence[PendingAppend]) -> dict[str, Any]:
    """Return the parameters of one statement for several appends.

    The events are concatenated; `lows` and `highs` are the bounds of each append. The appends are
    sorted by timeline, so that two statements do not deadlock.
    """
    ordered = sorted(appends, key=lambda one: one.line)
    highs: list[int] = []
    for append in ordered:
        highs.append((highs[-1] if highs else 0) + len(append.heads))
    return {
        "lines": [append.line for append in ordered],
        "firsts": [append.first for append in ordered],
        "lows": [high - len(append.heads) + 1 for high, append in zip(highs, ordered, strict=True)],
        "highs": highs,
        "heads": [head for append in ordered for head in append.heads],
        "salts": [salt for append in ordered for salt in append.salts],
        "bodies": [body for append in ordered for body in append.bodies],
        "leases": [append.lease and append.lease.name for append in ordered],
        "owners": [append.lease and append.lease.owner for append in ordered],
        "fences": [append.lease and append.lease.fence for append in ordered],
        "ats": [append.at for append in ordered],
        "epochs": [append.epoch for append in ordered],
        "doubt": False,
    }


_GROUP_COMMITS: WeakValueDictionary[PostgresDatabase, GroupCommit] = WeakValueDictionary()
"""The group commits of this process, one per database."""


def group_commit_for(database: PostgresDatabase) -> GroupCommit:
    """Return the group commit that all catalogs of this process share for a database."""
    group = _GROUP_COMMITS.get(database)
    # two threads may create two at once; their appends are then not grouped together
    if group is None:
        group = _GROUP_COMMITS[database] = GroupCommit()
    return group
