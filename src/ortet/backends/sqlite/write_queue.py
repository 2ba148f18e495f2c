"""Orders the writes of a process to one SQLite file, and commits concurrent appends together.

SQLite lets one connection write at a time. A connection that finds the file locked sleeps, each
time longer. With one connection per thread, most threads would sleep while the file is free, some
for seconds. In this queue, threads wait in order. Only other processes are still waited for by
sleeping.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock, get_ident
from weakref import WeakValueDictionary

import apsw

Insert = Callable[[apsw.Connection], bool]
"""A function that runs one INSERT statement. It returns True if a row was inserted."""

_MAX_BATCH = 256
"""The maximum number of appends in one transaction."""


class _QueuedWrite:
    """A waiting thread. `wakeup_lock` is released when the thread leads or its insert is done."""

    __slots__ = ("done", "insert", "is_busy", "is_leader", "thread", "wakeup_lock")

    def __init__(self, insert: Insert | None = None) -> None:
        self.insert = insert
        self.thread = get_ident()
        self.is_leader = False
        self.done: bool | None = None  # None: the thread must run the insert itself
        self.is_busy = False
        self.wakeup_lock = Lock()
        self.wakeup_lock.acquire()


class WriteQueue:
    """The queue of one file in one process.

    A waiting thread holds the lock of its own connection, and a fork waits for all those locks. So
    there is no waiting thread in a child.

    A thread that leads and begins another write was interrupted in the first one, for example by
    KeyboardInterrupt. It leads on.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._leader = 0  # the thread that writes; 0: none
        self._waiting: deque[_QueuedWrite] = deque()

    @contextmanager
    def exclusive(self, seconds: float) -> Iterator[None]:
        """Within this block, no other thread writes. Raise BusyError after `seconds`."""
        self._wait_turn(_QueuedWrite(), seconds)
        try:
            yield
        finally:
            self._release()

    def insert_batched(self, db: apsw.Connection, insert: Insert, seconds: float) -> bool:
        """Run `insert` and return its result. Another thread may run it, on its own connection."""
        if not self._try_lead():
            turn = _QueuedWrite(insert)
            if not self._wait_turn(turn, seconds):
                if turn.is_busy:
                    raise _busy_error()
                if turn.done is not None:
                    return turn.done
                with self.exclusive(
                    seconds
                    # the batch failed as a whole; each thread finds out alone if its insert is the
                    # cause
                ):
                    return insert(db)
        others: list[_QueuedWrite] = []
        try:
            if not self._waiting:
                return insert(db)
            # Lock the file before taking the others out of the queue: while this thread waits for
            # another process, their own timeouts apply.
            db.execute("BEGIN IMMEDIATE")
            others = self._take_waiting_inserts()
            return _insert_all(db, insert, others)
        finally:
            self._release(others)

    def _try_lead(self) -> bool:
        """Become the leader if no thread writes. This common case needs no _QueuedWrite."""
        me = get_ident()
        with self._lock:
            free = self._leader in (0, me)
            if free:
                self._leader = me
        return free

    def _wait_turn(self, turn: _QueuedWrite, seconds: float) -> bool:
        """Wait in the queue. Return True if this thread leads now."""
        with self._lock:
            if self._leader in (0, turn.thread):
                self._leader, turn.is_leader = turn.thread, True
                return True
            self._waiting.append(turn)
        try:
            there = turn.wakeup_lock.acquire(timeout=seconds)
        except BaseException:
            if not self._try_withdraw(turn) and turn.is_leader:
                self._release()
            raise
        if not there and self._try_withdraw(turn):
            raise _busy_error()
        return turn.is_leader

    def _try_withdraw(self, turn: _QueuedWrite) -> bool:
        """Leave the queue. Return False if the write was already served or leads."""
        with self._lock:
            if turn in self._waiting:
                self._waiting.remove(turn)
                return True
        turn.wakeup_lock.acquire()
        return False

    def _take_waiting_inserts(self) -> list[_QueuedWrite]:
        with self._lock:
            chosen = [one for one in self._waiting if one.insert is not None][:_MAX_BATCH]
            if chosen:
                gone = set(map(id, chosen))
                self._waiting = deque(one for one in self._waiting if id(one) not in gone)
            return chosen

    def _release(self, served: Sequence[_QueuedWrite] = ()) -> None:
        with self._lock:
            if self._waiting:
                next_ = self._waiting.popleft()
                self._leader, next_.is_leader = next_.thread, True
                next_.wakeup_lock.release()
            else:
                self._leader = 0
        for insert in served:
            insert.wakeup_lock.release()


def _insert_all(db: apsw.Connection, first: Insert, others: Sequence[_QueuedWrite]) -> bool:
    """Run all inserts in the open transaction. If it fails, run only the first one by itself."""
    try:
        done = first(db)
        rest = [insert.insert(db) for insert in others if insert.insert is not None]
        db.execute("COMMIT")
    except BaseException as error:
        if db.in_transaction:
            with suppress(apsw.Error):
                db.execute("ROLLBACK")
        if isinstance(error, apsw.BusyError):
            for insert in others:
                insert.is_busy = True
        if isinstance(error, apsw.BusyError) or not isinstance(error, Exception):
            raise
        return first(db)
    for insert, fine in zip(others, rest, strict=True):
        insert.done = fine
    return done


def _busy_error() -> apsw.BusyError:
    return apsw.BusyError("other threads of this process write")


_QUEUES: WeakValueDictionary[str, WriteQueue] = WeakValueDictionary()
_QUEUES_LOCK = Lock()
# For the whole process, like the locks that the kernel and SQLite keep on the file.


def _reset_in_child() -> None:
    global _QUEUES_LOCK
    _QUEUES_LOCK = Lock()  # a thread that does not exist here may have held it


os.register_at_fork(after_in_child=_reset_in_child)


def write_queue_for(path: Path) -> WriteQueue:
    """Return the queue of a file, shared by all its connections in this process."""
    key = os.path.realpath(path)
    with _QUEUES_LOCK:
        queue = _QUEUES.get(key)
        if queue is None:
            queue = _QUEUES[key] = WriteQueue()
        return queue
