"""The file of an index as a whole process has it open: a few connections, lent for a transaction.

A process may have hundreds of hubs on one store: a server has one for each open session. With a
connection for each of them every thread that searches gives the interpreter away at every row, to
some other thread that does the same: thirty of them did half as much as one alone, and each kept
megabytes of the same pages. Who finds no connection free waits, in order.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

import apsw

from ortet._util.fork_safety import close_at_fork
from ortet.errors import Invalid, Unavailable
from ortet.memory.lexical.index_file import IndexFile

_MOST = 2
"""Connections of a process: while one waits for SQLite, another scores."""
_TURN = 60.0
"""Seconds for which a thread waits for one: all others get on meanwhile."""


class SharedFile:
    """An IndexFile for one user of it, who closes it. What is said there holds here."""

    def __init__(self, path: Path, opened: Callable[[], IndexFile], most: int = _MOST) -> None:
        self._key = os.path.realpath(path)
        self._pool: _Pool | None = _joined(self._key, opened, most)

    @property
    def in_memory(self) -> bool:
        return self._opened().alone is not None

    @contextmanager
    def transaction(self, *, write: bool = False) -> Iterator[apsw.Connection]:
        with self._opened().lent() as file, file.transaction(write=write) as connection:
            yield connection

    def empty(self) -> None:
        with self._opened().lent() as file:
            file.empty()

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            _left(self._key, pool)

    def _opened(self) -> _Pool:
        if self._pool is None:
            raise Invalid("closed", "the index of memories was closed: open the store again")
        return self._pool


class _Turn:
    """A thread that waits. Its gate is shut until `file` is lent to it."""

    __slots__ = ("file", "gate")

    def __init__(self) -> None:
        self.file: IndexFile | None = None
        self.gate = Lock()
        self.gate.acquire()


class _Pool:
    """The connections to one file. `alone` is the one that had to begin in memory: all that is
    known is in it, so it is used by all, for as long as it is so."""

    def __init__(self, opened: Callable[[], IndexFile], most: int) -> None:
        self.users = 0
        self.alone: IndexFile | None = None
        self._opened = opened
        self._most = most
        self._count = 0
        self._free: list[IndexFile] = []
        self._waiting: deque[_Turn] = deque()
        self._lock = Lock()
        close_at_fork(self)

    @contextmanager
    def lent(self) -> Iterator[IndexFile]:
        file = self._take()
        try:
            yield file
        finally:
            self._give_back(file)

    def _take(self) -> IndexFile:
        with self._lock:
            found = self._found() if not self._waiting else None
            if found is not None:
                return found
            turn = _Turn()
            self._waiting.append(turn)
        try:
            turn.gate.acquire(timeout=_TURN)
        except BaseException:
            if not self._withdrawn(turn) and turn.file is not None:
                self._give_back(turn.file)
            raise
        if turn.file is None and self._withdrawn(turn):
            raise Unavailable("index_busy", "others search memories for long: try again")
        assert turn.file is not None
        return turn.file

    def _withdrawn(self, turn: _Turn) -> bool:
        """False: somebody was faster to lend it one."""
        with self._lock:
            if turn.file is None:
                self._waiting.remove(turn)
            return turn.file is None

    def _found(self) -> IndexFile | None:
        if self._free:
            return self._free.pop()  # its pages are those that are warm
        if self.alone is not None or self._count >= self._most:
            return None
        self._count += 1
        return self._opened()

    def _give_back(self, file: IndexFile) -> None:
        with self._lock:
            gone: list[IndexFile] = []
            if self.alone is None and file.in_memory:
                self.alone, gone, self._free = file, self._free, []
            elif self.alone is file and not file.in_memory:
                self.alone = None
            if not self.users or self.alone not in (None, file):
                gone.append(file)
            else:
                self._free.append(file)
            self._count -= len(gone)
            while self._waiting and (found := self._found()) is not None:
                turn = self._waiting.popleft()
                turn.file = found
                turn.gate.release()
        for one in gone:  # which waits for a fork, as a fork does for us
            one.close()

    def close(self) -> None:
        """What is lent is closed when it comes back."""
        with self._lock:
            gone, self._free = self._free, []
            self._count -= len(gone)
        for one in gone:
            one.close()

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self) -> None:
        self._lock.release()


_KNOWN: dict[str, _Pool] = {}
_KNOWING = Lock()
# Of the whole process, as the locks are that the kernel and SQLite keep on the file.


def _forked() -> None:
    """Threads that are not here may have held what is in them. Their connections were closed."""
    global _KNOWING
    _KNOWING = Lock()
    _KNOWN.clear()


os.register_at_fork(after_in_child=_forked)


def _joined(key: str, opened: Callable[[], IndexFile], most: int) -> _Pool:
    with _KNOWING:
        pool = _KNOWN.get(key)
        if pool is None:
            pool = _KNOWN[key] = _Pool(opened, most)
        pool.users += 1
        return pool


def _left(key: str, pool: _Pool) -> None:
    with _KNOWING:
        pool.users -= 1
        if pool.users:
            return
        if _KNOWN.get(key) is pool:
            del _KNOWN[key]
    pool.close()
