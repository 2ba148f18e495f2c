"""Connections to an index file that a whole process shares.

A process may have hundreds of hubs on one store: a server has one for each open session. With one
connection for each, searching threads switch the interpreter at every row. Thirty of them did half
the work of one, and each cached megabytes of the same pages. Therefore a process has a small pool.
A thread that finds no free connection waits in a queue.
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

_MAX_CONNECTIONS = 2
"""Connections of a process: while one waits for SQLite, another one scores."""
_CONNECTION_TIMEOUT_SECONDS = 60.0
"""Seconds that a thread waits for a connection."""


class SharedIndexFile:
    """An `IndexFile` of one user that shares its connections with others of the process."""

    def __init__(
        self,
        path: Path,
        open_file: Callable[[], IndexFile],
        max_connections: int = _MAX_CONNECTIONS,
    ) -> None:
        self._key = os.path.realpath(path)
        self._pool: _IndexFilePool | None = _join_pool(self._key, open_file, max_connections)

    @property
    def in_memory(self) -> bool:
        return self._require_pool().memory_file is not None

    @contextmanager
    def transaction(self, *, write: bool = False) -> Iterator[apsw.Connection]:
        with self._require_pool().borrow() as file, file.transaction(write=write) as connection:
            yield connection

    def empty(self) -> None:
        with self._require_pool().borrow() as file:
            file.empty()

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            _leave_pool(self._key, pool)

    def _require_pool(self) -> _IndexFilePool:
        if self._pool is None:
            raise Invalid("closed", "the index of memories was closed: open the store again")
        return self._pool


class _Waiter:
    """A waiting thread. Its gate is locked until `file` is assigned."""

    __slots__ = ("file", "gate")

    def __init__(self) -> None:
        self.file: IndexFile | None = None
        self.gate = Lock()
        self.gate.acquire()


class _IndexFilePool:
    """The connections to one file.

    `memory_file` is set if the file cannot be written. It holds the whole index, so that all users
    share it.
    """

    def __init__(self, open_file: Callable[[], IndexFile], max_connections: int) -> None:
        self.users = 0
        self.memory_file: IndexFile | None = None
        self._open_file = open_file
        self._max_connections = max_connections
        self._count = 0
        self._free: list[IndexFile] = []
        self._waiting: deque[_Waiter] = deque()
        self._lock = Lock()
        close_at_fork(self)

    @contextmanager
    def borrow(self) -> Iterator[IndexFile]:
        file = self._acquire()
        try:
            yield file
        finally:
            self._release(file)

    def _acquire(self) -> IndexFile:
        with self._lock:
            found = self._next_free() if not self._waiting else None
            if found is not None:
                return found
            turn = _Waiter()
            self._waiting.append(turn)
        try:
            turn.gate.acquire(timeout=_CONNECTION_TIMEOUT_SECONDS)
        except BaseException:
            if not self._cancel_wait(turn) and turn.file is not None:
                self._release(turn.file)
            raise
        if turn.file is None and self._cancel_wait(turn):
            raise Unavailable("index_busy", "others search memories for long: try again")
        assert turn.file is not None
        return turn.file

    def _cancel_wait(self, waiter: _Waiter) -> bool:
        """Stop waiting. Return False if a file was assigned first."""
        with self._lock:
            if waiter.file is None:
                self._waiting.remove(waiter)
            return waiter.file is None

    def _next_free(self) -> IndexFile | None:
        if self._free:
            return self._free.pop()  # the most recent one has the warmest page cache
        if self.memory_file is not None or self._count >= self._max_connections:
            return None
        self._count += 1
        return self._open_file()

    def _release(self, file: IndexFile) -> None:
        with self._lock:
            gone: list[IndexFile] = []
            if self.memory_file is None and file.in_memory:
                self.memory_file, gone, self._free = file, self._free, []
            elif self.memory_file is file and not file.in_memory:
                self.memory_file = None
            if not self.users or self.memory_file not in (None, file):
                gone.append(file)
            else:
                self._free.append(file)
            self._count -= len(gone)
            while self._waiting and (found := self._next_free()) is not None:
                turn = self._waiting.popleft()
                turn.file = found
                turn.gate.release()
        # outside the lock: closing waits for a fork, and a fork waits for the lock
        for one in gone:
            one.close()

    def close(self) -> None:
        """Close free connections. Borrowed ones are closed when they are returned."""
        with self._lock:
            gone, self._free = self._free, []
            self._count -= len(gone)
        for one in gone:
            one.close()

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self) -> None:
        self._lock.release()


_POOLS: dict[str, _IndexFilePool] = {}
_POOLS_LOCK = Lock()
# Shared by the process, as are the file locks of the kernel and of SQLite.


def _reset_after_fork() -> None:
    """Reset in a forked child: threads that do not exist here may have held locks."""
    global _POOLS_LOCK
    _POOLS_LOCK = Lock()
    _POOLS.clear()


os.register_at_fork(after_in_child=_reset_after_fork)


def _join_pool(
    key: str, open_file: Callable[[], IndexFile], max_connections: int
) -> _IndexFilePool:
    with _POOLS_LOCK:
        pool = _POOLS.get(key)
        if pool is None:
            pool = _POOLS[key] = _IndexFilePool(open_file, max_connections)
        pool.users += 1
        return pool


def _leave_pool(key: str, pool: _IndexFilePool) -> None:
    with _POOLS_LOCK:
        pool.users -= 1
        if pool.users:
            return
        if _POOLS.get(key) is pool:
            del _POOLS[key]
    pool.close()
