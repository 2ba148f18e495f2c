"""The SQLite file of an index.

It is opened at first use and emptied when damaged. If it cannot be written, a database in memory
replaces it.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from threading import Lock, RLock

import apsw

from ortet._util.fork_safety import close_at_fork
from ortet.backends.sqlite.page_checksums import (
    is_cut,
    is_page_damaged,
    load_checksums,
    reserve_checksums,
)
from ortet.backends.sqlite.write_queue import write_queue_for
from ortet.errors import Conflict, Invalid, Unavailable

_SETTINGS = """PRAGMA synchronous = NORMAL; PRAGMA cell_size_check = ON;
    PRAGMA trusted_schema = OFF; PRAGMA cache_size = -8192"""
_MEMORY = ":memory:"
_WRITE_TIMEOUT_SECONDS = 60.0
"""Seconds that threads of this process wait for each other's writes."""
_NAMES = re.compile(r"(?:TABLE|INDEX) (\w+)")
_READ_ERRORS = (apsw.SQLError, UnicodeDecodeError)
"""Errors of reads, besides those of SQLite about damage, that a damaged file causes."""


class IndexLost(Conflict):
    """The index does not hold the requested events. Add them and search again."""

    name = "conflict"


def index_lost(why: str) -> IndexLost:
    return IndexLost("index_lost", f"{why}: fill the index again, then ask again")


class IndexFile:
    """One connection of this process under a lock, for transactions.

    All content can be rebuilt, so damage is never an error for the user. The file is emptied in
    place, under the locks of SQLite, and the caller gets IndexLost. The file is not deleted: other
    processes may have it open, and its log could mix with that of a new file. If nothing can be
    written, a database in memory is used for the life of this object.
    """

    def __init__(self, path: Path, *, schema: str, version: int, busy_ms: int) -> None:
        self._path = Path(os.path.abspath(path))
        self._schema = schema
        self._names = set(_NAMES.findall(schema))
        self._version = version
        self._busy_ms = busy_ms
        self._write_queue = write_queue_for(self._path)
        self._lock = RLock()
        self._connection: apsw.Connection | None = None
        self._in_memory = False
        self._inode = 0
        self._closed = False
        close_at_fork(self)

    @property
    def in_memory(self) -> bool:
        return self._in_memory

    @contextmanager
    def transaction(self, *, write: bool = False) -> Iterator[apsw.Connection]:
        """Run a transaction. All reads see the same moment. Raises IndexLost or Unavailable."""
        with self._lock:
            try:
                connection = self._connect()
                with (
                    self._write_queue.exclusive(_WRITE_TIMEOUT_SECONDS) if write else nullcontext()
                ):
                    try:
                        connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                        yield connection
                        connection.execute("COMMIT")
                    except BaseException:
                        self._roll_back()  # before the next writer gets its turn
                        raise
            except BaseException as error:
                if isinstance(error, apsw.Error | UnicodeDecodeError | OSError):
                    raise self._recover_from(error) from error
                if isinstance(error, TypeError | ValueError) and self._is_damaged():
                    self._reset()
                    raise index_lost(f"the index of memories is damaged ({error})") from error
                raise

    def empty(self) -> None:
        """Empty the index. Nothing of its content stays in the directory.

        Raises:
            Unavailable: If another process locks the file, or it cannot be removed.
        """
        with self._lock:
            if self._in_memory:
                self._disconnect()
                self._in_memory = False
            if self._connection is None and not any(os.path.exists(f) for f in self._files()):
                return
            try:
                self._reset()
            except (apsw.BusyError, apsw.LockedError) as error:
                raise self._recover_from(error) from error
            except (apsw.Error, OSError):
                self._disconnect()
                self._unlink()

    def close(self) -> None:
        with self._lock:
            self._disconnect()
            self._closed = True

    def before_fork(self) -> None:
        """Close the connection: it must not exist in two processes, even if one only closes it."""
        self._lock.acquire()
        if not self._in_memory:
            self._disconnect()

    def after_fork(self) -> None:
        self._lock.release()

    def _connect(self) -> apsw.Connection:
        if self._closed:
            raise Invalid("closed", "the index of memories was closed: open the store again")
        if self._connection is not None and (
            self._in_memory or self._inode == self._inode_at_path()
        ):
            return self._connection
        self._disconnect()
        try:
            self._connection = self._open()
        except (apsw.BusyError, apsw.LockedError):
            raise
        except (apsw.Error, OSError) as error:
            if _is_damage(error):
                self._reset()
            else:
                self._switch_to_memory()
        assert self._connection is not None
        return self._connection

    def _open(self) -> apsw.Connection:
        os.makedirs(self._path.parent, exist_ok=True)
        is_new = not self._inode_at_path()
        if not is_new and is_cut(self._path):
            raise apsw.CorruptError("the file ends within a page")
        connection = apsw.Connection(str(self._path))
        try:
            if is_new and load_checksums():
                reserve_checksums(connection)
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        self._inode = self._inode_at_path()
        return connection

    def _prepare(self, connection: apsw.Connection) -> None:
        connection.set_busy_timeout(self._busy_ms)
        _to_wal(connection, self._busy_ms)
        connection.execute(_SETTINGS)
        if connection.execute("PRAGMA user_version").get == self._version:
            return
        connection.execute("BEGIN IMMEDIATE")
        # another process may have created the schema first
        version = connection.execute("PRAGMA user_version").get
        if (
            version != self._version
            and connection.execute("SELECT count(*) FROM sqlite_schema").get
        ):
            connection.execute("ROLLBACK")
            _empty(connection)
            self._prepare(connection)
            return
        if version != self._version:
            connection.execute(self._schema)
            connection.execute(f"PRAGMA user_version = {self._version}")
        connection.execute("COMMIT")

    def _reset(self) -> None:
        """Empty the file, whatever it contains, and open it again."""
        self._disconnect()
        connection = apsw.Connection(str(self._path))
        try:
            connection.set_busy_timeout(self._busy_ms)
            _empty(connection)
        finally:
            connection.close()
        self._connection = self._open()

    def _switch_to_memory(self) -> None:
        self._disconnect()
        connection = apsw.Connection(_MEMORY)
        connection.execute(self._schema)
        self._connection = connection
        self._in_memory = True

    def _recover_from(self, error: Exception) -> Exception:
        """Recover from an error, and return the error for the caller."""
        if isinstance(error, apsw.BusyError | apsw.LockedError):
            return Unavailable(
                "index_busy", f"{self._path} is locked by another process: try again in a moment"
            )
        try:
            if isinstance(error, apsw.SQLError) and self._is_intact():
                pass
            elif _is_damage(error, more=_READ_ERRORS) and not self._in_memory:
                self._reset()
            else:
                self._switch_to_memory()
        except (apsw.Error, OSError):
            self._switch_to_memory()
        return index_lost(f"the index of memories could not be used ({error})")

    def _is_damaged(self) -> bool:
        """Return True if SQLite finds the file damaged: its rows then hold what nobody wrote.

        SQLite reads the missing end of a file as zeros, without an error.
        """
        if self._connection is None or self._in_memory:
            return False
        try:
            found: object = self._connection.execute("PRAGMA integrity_check(1)").get
        except apsw.Error:
            return True
        return found != "ok"

    def _is_intact(self) -> bool:
        """Return True if tables are missing only because another process is emptying the file.

        It must be opened again then, and not emptied once more.
        """
        if self._in_memory:
            return False
        self._disconnect()
        connection = apsw.Connection(str(self._path))
        try:
            connection.set_busy_timeout(self._busy_ms)
            version = int(connection.execute("PRAGMA user_version").get)
            names = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
        finally:
            connection.close()
        return not names if version == 0 else version == self._version and self._names <= names

    def _inode_at_path(self) -> int:
        """Return the inode at the path, or 0."""
        try:
            return os.stat(self._path).st_ino
        except OSError:
            return 0

    def _roll_back(self) -> None:
        if self._connection is not None and self._connection.in_transaction:
            with suppress(apsw.Error):
                self._connection.execute("ROLLBACK")

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        with suppress(apsw.Error):
            if not self._in_memory and self._inode != self._inode_at_path():
                # The log at the path belongs to another file now. Closing would delete it.
                connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            connection.close()

    def _files(self) -> list[str]:
        return [f"{self._path}{suffix}" for suffix in ("", "-wal", "-shm", "-journal")]

    def _unlink(self) -> None:
        for file in self._files():
            try:
                os.unlink(file)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise Unavailable(
                    "index_kept", f"{file} cannot be removed ({error}): remove it yourself"
                ) from error


def _to_wal(connection: apsw.Connection, busy_ms: int) -> None:
    """Switch to WAL mode, with retries.

    The switch needs exclusive access and ignores the busy timeout.
    """
    deadline = time.monotonic() + busy_ms / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except apsw.BusyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.005)


def _is_damage(error: Exception, more: tuple[type[Exception], ...] = ()) -> bool:
    """Return True if an error means that the file is damaged, and not the disk full or busy."""
    if isinstance(error, (apsw.CorruptError, apsw.NotADBError, *more)):
        return True
    return isinstance(error, apsw.Error) and is_page_damaged(error)


def _empty(connection: apsw.Connection) -> None:
    connection.config(apsw.SQLITE_DBCONFIG_RESET_DATABASE, 1)
    if load_checksums():
        reserve_checksums(connection)
    try:
        connection.execute("VACUUM")
    finally:
        connection.config(apsw.SQLITE_DBCONFIG_RESET_DATABASE, 0)
    busy = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").get[0]
    if busy:
        raise apsw.BusyError("the log is being read")


# Connections to an index file that a whole process shares.
#
# A process may have hundreds of hubs on one store: a server has one for each open session. With one
# connection for each, searching threads switch the interpreter at every row. Thirty of them did
# half
# the work of one, and each cached megabytes of the same pages. Therefore a process has a small
# pool.
# A thread that finds no free connection waits in a queue.

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
            connection = self._next_free() if not self._waiting else None
            if connection is not None:
                return connection
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
            while self._waiting and (next_free := self._next_free()) is not None:
                turn = self._waiting.popleft()
                turn.file = next_free
                turn.gate.release()
        # outside the lock: closing waits for a fork, and a fork waits for the lock
        for connection in gone:
            connection.close()

    def close(self) -> None:
        """Close free connections. Borrowed ones are closed when they are returned."""
        with self._lock:
            gone, self._free = self._free, []
            self._count -= len(gone)
        for connection in gone:
            connection.close()

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
