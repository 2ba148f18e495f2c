"""Opens a SQLite file: WAL mode, synchronous=FULL, migrated, and never used across a fork."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import RLock
from types import TracebackType

import apsw

from ortet._util.fork_safety import close_at_fork
from ortet._util.lock_timeout import current_lock_timeout
from ortet.backends.local.bucket import sync_directory
from ortet.backends.sqlite.page_checksums import (
    is_cut,
    is_page_damaged,
    load_checksums,
    no_checksums,
    reserve_checksums,
)
from ortet.backends.sqlite.write_queue import Insert, write_queue_for
from ortet.errors import Corrupt, Invalid, OrtetError, Unavailable, Unsupported

MIGRATIONS = ("0001_ground.sql", "0002_journal.sql")
"""The migrations in order. `user_version` is the number of those applied to a file."""

CHECKED_FORMAT = len(MIGRATIONS) + 1
"""The `user_version` of a file with all migrations whose pages have checksums.

A file gets checksums when it is created. Files of earlier releases stay without.
"""

OLDEST_SAFE = 3_051_003
"""Before 3.51.3, two connections that reset the WAL at the same time could lose a commit."""

APPLICATION_ID = 1869771877

_NO_SPACE = (apsw.SQLITE_IOERR_SHMSIZE,)
"""Codes of I/O errors that only a full disk causes. SQLite says FULL for all others."""

_O_PATH = getattr(os, "O_PATH", 0)
"""Opens a file without affecting its locks.

Closing any other descriptor of the file would release the locks of this process.
"""


class SqliteHandle:
    """One connection of this process under a lock: `with handle as connection`.

    Leaving the block by an exception rolls back, and translates SQLite errors into ours.

    The kernel keeps file locks per process, and SQLite caches them in memory. A connection that
    lives through fork(2) can damage the file, even if the child only closes it. The connection is
    therefore closed before every fork and reopened at the next use.
    """

    def __init__(self, path: Path, *, create: bool, busy_ms: int) -> None:
        self._path = Path(os.path.abspath(path))
        self._busy_ms = self._waits_ms = busy_ms
        self._write_queue = write_queue_for(self._path)
        self._lock = RLock()
        self._pid = os.getpid()
        self._closed = False
        self._path_fd = -1
        self._connection: apsw.Connection | None = None
        self._open(create=create)
        close_at_fork(self)

    def __enter__(self) -> apsw.Connection:
        patience = current_lock_timeout()
        if patience is None:
            self._lock.acquire()
        elif not self._lock.acquire(timeout=self._lock_wait_seconds()):
            raise translate_sqlite_error(apsw.BusyError("another thread waits for it"), self._path)
        try:
            connection = self._connection
            if self._pid != os.getpid() or connection is None:
                connection = self._reopen()
            wait = self._busy_ms if patience is None else round(self._lock_wait_seconds() * 1000)
            if wait != self._waits_ms:
                connection.set_busy_timeout(wait)
                self._waits_ms = wait
            return connection
        except BaseException:
            self._lock.release()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self._lock.release()
            return
        if self._connection is not None:
            _roll_back(self._connection)
        self._lock.release()
        if isinstance(error, apsw.BusyError) and (patience := current_lock_timeout()) is not None:
            patience.expire()
        if isinstance(error, apsw.Error):
            raise translate_sqlite_error(error, self._path) from error
        # all stored text is valid UTF-8, so the file is damaged
        if isinstance(error, UnicodeDecodeError):
            raise catalog_damaged(self._path, error) from error

    @contextmanager
    def writing(self) -> Iterator[apsw.Connection]:
        """Yield the connection while no other thread of this process writes to the file."""
        with self as connection, self._write_queue.exclusive(self._lock_wait_seconds()):
            self._check()
            try:
                yield connection
            except BaseException:
                # before the queue is released: the next writer must find the file unlocked
                _roll_back(connection)
                raise

    def insert_batched(self, make_insert: Callable[[], Insert]) -> bool:
        """Run one insert, batched with concurrent inserts of other threads.

        Return True if it inserted.

        `make_insert` is called while no other thread uses this connection.
        """
        with self as connection:
            self._check()
            return self._write_queue.insert_batched(
                connection, make_insert(), self._lock_wait_seconds()
            )

    def _lock_wait_seconds(self) -> float:
        """Return how many seconds to wait for a lock."""
        patience, most = current_lock_timeout(), self._busy_ms / 1000
        return most if patience is None else min(most, patience.seconds)

    def close(self) -> None:
        """Close the connection for good."""
        with self._lock:
            self._drop()
            self._closed = True

    def _drop(self) -> None:
        if self._connection is not None and self._pid == os.getpid():
            self._connection.close()
            self._connection = None
            if self._path_fd >= 0:
                os.close(self._path_fd)
                self._path_fd = -1

    def _open(self, *, create: bool) -> apsw.Connection:
        connection = self._connection = open_connection(self._path, create, self._busy_ms)
        if _O_PATH:
            with suppress(OSError):
                self._path_fd = os.open(self._path, _O_PATH)
        return connection

    def _check(self) -> None:
        """Raise Unavailable if the file was deleted.

        SQLite would silently write to the deleted file.
        """
        if self._path_fd >= 0 and os.fstat(self._path_fd).st_nlink == 0:
            raise Unavailable(
                "store_gone",
                f"{self._path} was deleted while it was open: nothing was written; bring it back "
                "from a copy or make another store, and open that",
            )

    def _reopen(self) -> apsw.Connection:
        if self._closed:
            raise Invalid("closed", "the catalog was closed: open the store again")
        if self._connection is not None:
            raise Unsupported(
                "forked_handle",
                "this process was forked behind Python's back while the catalog was open: "
                "use os.fork or multiprocessing, or open the store only in the child",
            )
        self._pid, self._waits_ms = os.getpid(), self._busy_ms
        return self._open(create=False)

    def before_fork(self) -> None:
        """Wait for transactions of other threads, then close. The child must not inherit one."""
        self._lock.acquire()
        self._drop()

    def after_fork(self) -> None:
        self._lock.release()


def _roll_back(connection: apsw.Connection) -> None:
    if connection.in_transaction:
        with suppress(apsw.Error):
            connection.execute("ROLLBACK")


def open_connection(path: Path, create: bool, busy_ms: int) -> apsw.Connection:
    """Open a catalog and apply missing migrations. Create the file if `create` is true."""
    check_library(apsw.SQLITE_VERSION_NUMBER)
    checked = load_checksums()
    try:
        new = not path.exists() or path.stat().st_size == 0
        if new and not create:
            raise _missing(path)
        if not new and is_cut(path):
            raise catalog_damaged(path, "its last page is not whole")
        connection = _connect(path, busy_ms, checked=new and checked)
        try:
            _migrate(connection, path, create, checked=checked)
        except BaseException:
            connection.close()
            raise
        if new:
            # SQLite syncs the directory entry of its log, but not that of the database
            sync_directory(path.parent)
        return connection
    except apsw.Error as error:
        raise translate_sqlite_error(error, path) from error
    except OSError as error:
        raise _no_access(path, error) from error


def check_library(version: int) -> None:
    """Raise Unsupported("old_sqlite") if this SQLite version can lose commits."""
    if version < OLDEST_SAFE:
        raise Unsupported(
            "old_sqlite",
            f"SQLite {version // 1_000_000}.{version // 1000 % 1000}.{version % 1000} can lose "
            "commits in WAL mode: install apsw 3.51.3 or newer",
        )


def _connect(path: Path, busy_ms: int, *, checked: bool = False) -> apsw.Connection:
    connection = apsw.Connection(str(path))
    if checked:
        reserve_checksums(connection)
    connection.set_busy_timeout(busy_ms)
    deadline = time.monotonic() + busy_ms / 1000
    while True:
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").get
            break
        except apsw.BusyError:
            # Switching to WAL needs exclusive access and, unlike other operations, does not wait.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.005)
    if mode != "wal":
        raise Unsupported(
            "no_wal",
            f"{path.parent} cannot hold a WAL database ({mode}): "
            "put the store on a local file system",
        )
    connection.execute(
        "PRAGMA synchronous = FULL; PRAGMA cell_size_check = ON; PRAGMA trusted_schema = OFF"
    )
    return connection


def _migrate(connection: apsw.Connection, path: Path, create: bool, *, checked: bool) -> None:
    if read_format_version(connection, path) >= len(MIGRATIONS):
        return
    # Importing this costs 6 ms, and it is needed once in the life of a store.
    from importlib.resources import files  # noqa: PLC0415

    connection.execute("BEGIN IMMEDIATE")
    # again: another process may have migrated the file meanwhile
    done = read_format_version(connection, path)
    if done == 0 and not create:
        raise _missing(path)
    for number, name in enumerate(MIGRATIONS[done:], done + 1):
        connection.execute(
            (files("ortet.backends.sqlite") / "migrations" / name).read_text("utf-8")
        )
        connection.execute(f"PRAGMA user_version = {number}")
    if checked and not done:
        connection.execute(f"PRAGMA user_version = {CHECKED_FORMAT}")
    connection.execute("COMMIT")


def read_format_version(connection: apsw.Connection, path: Path) -> int:
    """Return the number of applied migrations.

    Raise Corrupt for a foreign database, and Unsupported for a newer format.
    """
    # One transaction: another process may be creating the file. An error, such as a full disk, can
    # end the transaction: `_roll_back` does not replace the error by one of its own.
    nested = connection.in_transaction
    try:
        if not nested:
            connection.execute("BEGIN")
        version = int(connection.execute("PRAGMA user_version").get)
        ours = connection.execute("PRAGMA application_id").get == APPLICATION_ID
        empty = version == 0 and connection.execute("SELECT count(*) FROM sqlite_schema").get == 0
    finally:
        if not nested:
            _roll_back(connection)
    if not ours and not empty:
        raise Corrupt(
            "not_a_catalog", f"{path} is another program's database: name another directory"
        )
    if version > CHECKED_FORMAT:
        raise Unsupported(
            "newer_format",
            f"{path} was written by a newer Ortet (format {version}, known here: "
            f"{CHECKED_FORMAT}): upgrade Ortet",
        )
    if version == CHECKED_FORMAT and not load_checksums():
        raise no_checksums()
    return version


def translate_sqlite_error(error: apsw.Error, path: Path) -> OrtetError:
    """Return our error for an error of SQLite."""
    match error:
        case apsw.BusyError() | apsw.LockedError():
            return Unavailable(
                "busy", f"{path} is locked by another process: try again in a moment"
            )
        case apsw.IOError() if is_page_damaged(error):
            return catalog_damaged(path, error)
        case apsw.FullError():
            return _disk_full(path, error)
        case apsw.IOError() if getattr(error, "extendedresult", 0) in _NO_SPACE:
            return _disk_full(path, error)
        case apsw.IOError():
            return Unavailable(
                "storage_error",
                f"{path} cannot be read or written ({error}): check the disk, then repeat",
            )
        case apsw.CorruptError() | apsw.NotADBError() | apsw.SQLError():
            return catalog_damaged(path, error)
        case apsw.CantOpenError() | apsw.ReadOnlyError() | apsw.PermissionsError():
            return _no_access(path, error)
    return OrtetError("sqlite", f"{path}: {error}: please report this as a bug of Ortet")


def _disk_full(path: Path, error: object) -> Unavailable:
    return Unavailable(
        "disk_full", f"{path} cannot be written ({error}): free some space, then repeat"
    )


def catalog_damaged(path: Path, error: object) -> Corrupt:
    """Return the error for a damaged database file."""
    return Corrupt(
        "catalog_damaged",
        f"{path} is damaged ({error}): keep the file and restore it from a copy; "
        "the objects are not touched by this",
    )


def _no_access(path: Path, error: Exception) -> Unavailable:
    return Unavailable("no_access", f"{path} cannot be opened ({error}): check its permissions")


def _missing(path: Path) -> Corrupt:
    return Corrupt(
        "no_catalog",
        f"{path} is missing or empty: restore it from a copy; the objects are still there",
    )
