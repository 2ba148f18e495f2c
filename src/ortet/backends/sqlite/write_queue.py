"""Whose turn it is to write to a SQLite file: the threads of a process wait in order, and what
several of them append is made durable at once.

SQLite lets one connection write at a time, and a connection that finds another at it sleeps, longer
each time: with a connection for each of many threads most would sleep while nobody writes, and some
for seconds. Other processes are still met that way.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from weakref import WeakValueDictionary

import apsw

Insert = Callable[[apsw.Connection], bool]
"""One statement that inserts, or finds that it must not; whether it did."""

_MAX_BATCH = 256
"""Appends that are made durable together."""


class _QueuedWrite:
    """One thread that waits. Its gate is shut until it leads, or what it asked for was done."""

    __slots__ = ("done", "insert", "is_busy", "is_leader", "wakeup_lock")

    def __init__(self, insert: Insert | None = None) -> None:
        self.insert = insert
        self.is_leader = False
        self.done: bool | None = None  # None: it has to do it itself
        self.is_busy = False
        self.wakeup_lock = Lock()
        self.wakeup_lock.acquire()


class WriteQueue:
    """Those of one file, in one process. Who waits holds the lock of its own connection, and a fork
    waits for all of those: nobody has a turn in a child."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._is_busy = False
        self._waiting: deque[_QueuedWrite] = deque()

    @contextmanager
    def exclusive(self, seconds: float) -> Iterator[None]:
        """No other thread writes; BusyError after so many seconds."""
        self._wait_turn(_QueuedWrite(), seconds)
        try:
            yield
        finally:
            self._release()

    def insert_batched(self, db: apsw.Connection, insert: Insert, seconds: float) -> bool:
        """What `add` says. It may be done by another thread, on that one's connection."""
        if not self._try_lead():
            turn = _QueuedWrite(insert)
            if not self._wait_turn(turn, seconds):
                if turn.is_busy:
                    raise _busy_error()
                if turn.done is not None:
                    return turn.done
                with self.exclusive(
                    seconds
                ):  # all failed together: whose fault it is each finds alone
                    return insert(db)
        others: list[_QueuedWrite] = []
        try:
            if not self._waiting:
                return insert(db)
            # before any is chosen: who waits for another process is not kept by our patience
            db.execute("BEGIN IMMEDIATE")
            others = self._take_waiting_inserts()
            return _insert_all(db, insert, others)
        finally:
            self._release(others)

    def _try_lead(self) -> bool:
        """Whether it leads at once, as most do: for those no gate is made."""
        with self._lock:
            free = not self._is_busy
            self._is_busy = True
        return free

    def _wait_turn(self, turn: _QueuedWrite, seconds: float) -> bool:
        """Whether it leads now."""
        with self._lock:
            if not self._is_busy:
                self._is_busy = turn.is_leader = True
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
        """False: somebody was faster to serve it."""
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
                next_.is_leader = True
                next_.wakeup_lock.release()
            else:
                self._is_busy = False
        for one in served:
            one.wakeup_lock.release()


def _insert_all(db: apsw.Connection, first: Insert, others: Sequence[_QueuedWrite]) -> bool:
    """In the transaction that was begun; when it fails as a whole, the first is done by itself."""
    try:
        done = first(db)
        rest = [one.insert(db) for one in others if one.insert is not None]
        db.execute("COMMIT")
    except BaseException as error:
        if db.in_transaction:
            with suppress(apsw.Error):
                db.execute("ROLLBACK")
        if isinstance(error, apsw.BusyError):
            for one in others:
                one.is_busy = True
        if isinstance(error, apsw.BusyError) or not isinstance(error, Exception):
            raise
        return first(db)
    for one, fine in zip(others, rest, strict=True):
        one.done = fine
    return done


def _busy_error() -> apsw.BusyError:
    return apsw.BusyError("other threads of this process write")


_QUEUES: WeakValueDictionary[str, WriteQueue] = WeakValueDictionary()
_QUEUES_LOCK = Lock()
# Of the whole process, as the locks are that the kernel and SQLite keep on the file.


def _reset_in_child() -> None:
    global _QUEUES_LOCK
    _QUEUES_LOCK = Lock()  # a thread that is not here may have held it


os.register_at_fork(after_in_child=_reset_in_child)


def write_queue_for(path: Path) -> WriteQueue:
    """Those of a file, whoever in this process has it open."""
    key = os.path.realpath(path)
    with _QUEUES_LOCK:
        found = _QUEUES.get(key)
        if found is None:
            found = _QUEUES[key] = WriteQueue()
        return found
