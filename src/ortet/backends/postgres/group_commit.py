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
from ortet.backends.postgres.pool import Database
from ortet.errors import OrtetError, Unavailable

MOST = 2
"""Statements under way: one is flushed while the other is worked on."""
LARGEST = 64 * 1024
"""Bytes of an append that may wait for others, so that none waits for a large one."""
_TOGETHER = 64

STATEMENT = """SELECT append(line, first, (%(heads)b::bytea[])[low:high],
    (%(salts)b::bytea[])[low:high], (%(bodies)b::bytea[])[low:high], lease, owner, fence, at, epoch,
    %(doubt)s, '{}', '{}', '{}', '{}')
    FROM unnest(%(lines)s::uuid[], %(firsts)s::bigint[], %(lows)s::int[], %(highs)s::int[],
        %(leases)s::text[], %(owners)s::text[], %(fences)s::bigint[], %(ats)s::bigint[],
        %(epochs)s::bigint[])
    AS one (line, first, low, high, lease, owner, fence, at, epoch)"""


class One(msgspec.Struct, frozen=True):
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


class _Waiting:
    """One who waits to be told: that it is `done`, that it `failed`, or to write `batch`, which it
    is part of. None of these: to try alone; `doubt`: nobody knows whether it was written."""

    __slots__ = ("batch", "done", "doubt", "failed", "heard", "one", "told")

    def __init__(self, one: One) -> None:
        self.one = one
        self.done = False
        self.doubt = True
        self.heard = False
        self.failed: OrtetError | None = None
        self.batch: list[_Waiting] = []
        self.told = Lock()
        self.told.acquire()


class Together:
    """Of one process and database: see `together`."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._pid = os.getpid()
        self._running = 0
        self._waiting: list[_Waiting] = []
        close_at_fork(self)

    def append(self, one: One, run: Run, alone: Callable[[bool], None]) -> None:
        """`run` makes a statement; `alone` writes this one by itself, or refuses it in its own
        words, and is told whether it may have been written already."""
        mine = _Waiting(one)
        try:
            with self._lock:
                if self._running < MOST:
                    mine.batch = [mine]
                    self._running += 1
                else:
                    self._waiting.append(mine)
            if not mine.batch:
                mine.told.acquire()
                mine.heard = True
            if len(mine.batch) == 1:
                alone(False)
                mine.done = True
            elif mine.batch:
                self._write(mine.batch, run)
        finally:
            self._leave(mine)
        self._told(mine, alone)

    def _leave(self, mine: _Waiting) -> None:
        """Also when a signal ended it anywhere: whatever we were to do, another must."""
        if not mine.heard and not mine.batch:
            with self._lock:
                if mine in self._waiting:
                    self._waiting.remove(mine)
        if mine.batch:
            self._next()
            for other in mine.batch:
                if other is not mine:
                    other.told.release()

    def _write(self, batch: list[_Waiting], run: Run) -> None:
        try:
            run(STATEMENT, values_of([waiting.one for waiting in batch]))
        except Unavailable as error:
            for waiting in batch:
                waiting.failed = error
        except OrtetError:  # of one of them: nothing was written, each asks for itself
            for waiting in batch:
                waiting.doubt = False
        else:
            for waiting in batch:
                waiting.done = True

    def _told(self, mine: _Waiting, alone: Callable[[bool], None]) -> None:
        if mine.failed is not None:  # the same for several threads: to each its own
            error = mine.failed
            raise Unavailable(error.kind, error.message, **error.details) from error
        if not mine.done:
            alone(mine.doubt)

    def _next(self) -> None:
        """A statement has ended: the first of those who wait makes the next one, for all of them;
        nobody waits: one fewer is under way."""
        with self._lock:
            batch, self._waiting = self._waiting[:_TOGETHER], self._waiting[_TOGETHER:]
            if batch:
                batch[0].batch = batch
            else:
                self._running -= 1
        if batch:
            batch[0].told.release()

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self) -> None:
        if self._pid != os.getpid():  # those threads are the parent's
            self._pid, self._running, self._waiting = os.getpid(), 0, []
        self._lock.release()


def values_of(several: Sequence[One]) -> dict[str, Any]:
    """Events one behind the other, and where those of each begin and end. In the order of their
    timelines, so that two of us do not wait for each other."""
    ordered = sorted(several, key=lambda one: one.line)
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


_ALL: WeakValueDictionary[Database, Together] = WeakValueDictionary()
"""Of this process, as its pools are."""


def together(database: Database) -> Together:
    """The one that all catalogs of this process share."""
    found = _ALL.get(database)
    if found is None:  # two threads may make two at once: those write apart, and that is all
        found = _ALL[database] = Together()
    return found
