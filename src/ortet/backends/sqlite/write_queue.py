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

Add = Callable[[apsw.Connection], bool]
"""One statement that inserts, or finds that it must not; whether it did."""

_MOST = 256
"""Appends that are made durable together."""


class _Turn:
    """One thread that waits. Its gate is shut until it leads, or what it asked for was done."""

    __slots__ = ("add", "busy", "done", "gate", "leads")

    def __init__(self, add: Add | None = None) -> None:
        self.add = add
        self.leads = False
        self.done: bool | None = None  # None: it has to do it itself
        self.busy = False
        self.gate = Lock()
        self.gate.acquire()


class Turns:
    """Those of one file, in one process. Who waits holds the lock of its own connection, and a fork
    waits for all of those: nobody has a turn in a child."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._busy = False
        self._waiting: deque[_Turn] = deque()

    @contextmanager
    def alone(self, seconds: float) -> Iterator[None]:
        """No other thread writes; BusyError after so many seconds."""
        self._wait(_Turn(), seconds)
        try:
            yield
        finally:
            self._leave()

    def together(self, db: apsw.Connection, add: Add, seconds: float) -> bool:
        """What `add` says. It may be done by another thread, on that one's connection."""
        if not self._begins():
            turn = _Turn(add)
            if not self._wait(turn, seconds):
                if turn.busy:
                    raise _busy()
                if turn.done is not None:
                    return turn.done
                with self.alone(seconds):  # all failed together: whose fault it is each finds alone
                    return add(db)
        others: list[_Turn] = []
        try:
            if not self._waiting:
                return add(db)
            # before any is chosen: who waits for another process is not kept by our patience
            db.execute("BEGIN IMMEDIATE")
            others = self._others()
            return _all(db, add, others)
        finally:
            self._leave(others)

    def _begins(self) -> bool:
        """Whether it leads at once, as most do: for those no gate is made."""
        with self._lock:
            free = not self._busy
            self._busy = True
        return free

    def _wait(self, turn: _Turn, seconds: float) -> bool:
        """Whether it leads now."""
        with self._lock:
            if not self._busy:
                self._busy = turn.leads = True
                return True
            self._waiting.append(turn)
        try:
            there = turn.gate.acquire(timeout=seconds)
        except BaseException:
            if not self._withdrawn(turn) and turn.leads:
                self._leave()
            raise
        if not there and self._withdrawn(turn):
            raise _busy()
        return turn.leads

    def _withdrawn(self, turn: _Turn) -> bool:
        """False: somebody was faster to serve it."""
        with self._lock:
            if turn in self._waiting:
                self._waiting.remove(turn)
                return True
        turn.gate.acquire()
        return False

    def _others(self) -> list[_Turn]:
        with self._lock:
            chosen = [one for one in self._waiting if one.add is not None][:_MOST]
            if chosen:
                gone = set(map(id, chosen))
                self._waiting = deque(one for one in self._waiting if id(one) not in gone)
            return chosen

    def _leave(self, served: Sequence[_Turn] = ()) -> None:
        with self._lock:
            if self._waiting:
                next_ = self._waiting.popleft()
                next_.leads = True
                next_.gate.release()
            else:
                self._busy = False
        for one in served:
            one.gate.release()


def _all(db: apsw.Connection, first: Add, others: Sequence[_Turn]) -> bool:
    """In the transaction that was begun; when it fails as a whole, the first is done by itself."""
    try:
        done = first(db)
        rest = [one.add(db) for one in others if one.add is not None]
        db.execute("COMMIT")
    except BaseException as error:
        if db.in_transaction:
            with suppress(apsw.Error):
                db.execute("ROLLBACK")
        if isinstance(error, apsw.BusyError):
            for one in others:
                one.busy = True
        if isinstance(error, apsw.BusyError) or not isinstance(error, Exception):
            raise
        return first(db)
    for one, fine in zip(others, rest, strict=True):
        one.done = fine
    return done


def _busy() -> apsw.BusyError:
    return apsw.BusyError("other threads of this process write")


_KNOWN: WeakValueDictionary[str, Turns] = WeakValueDictionary()
_KNOWING = Lock()
# Of the whole process, as the locks are that the kernel and SQLite keep on the file.


def _forked() -> None:
    global _KNOWING
    _KNOWING = Lock()  # a thread that is not here may have held it


os.register_at_fork(after_in_child=_forked)


def turns_of(path: Path) -> Turns:
    """Those of a file, whoever in this process has it open."""
    key = os.path.realpath(path)
    with _KNOWING:
        found = _KNOWN.get(key)
        if found is None:
            found = _KNOWN[key] = Turns()
        return found
