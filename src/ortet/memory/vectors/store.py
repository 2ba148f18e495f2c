"""Vectors in a SQLite file, by embedder and hash of text. No text is embedded twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import apsw

from ortet.errors import Invalid, Unavailable
from ortet.memory.lexical.index_file import IndexFile, IndexLost

VERSION = 1

# Rows are numbered in creation order, so that neighbours in time are neighbours in the file. With
# the hash as primary key, 100,000 rows took 5 s to write and 0.5 s to read. Now it is 1 s and 0.3
# s. `mark` changes whenever a row is deleted; other processes compare it.
_SCHEMA = """
CREATE TABLE embedders (no INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, size INTEGER NOT NULL);
CREATE TABLE vectors (
    no INTEGER PRIMARY KEY, embedder INTEGER NOT NULL, hash BLOB NOT NULL, vector BLOB NOT NULL,
    UNIQUE (embedder, hash));
CREATE TABLE marks (no INTEGER PRIMARY KEY CHECK (no = 1), mark BLOB NOT NULL);
INSERT INTO marks VALUES (1, randomblob(16));
"""
_BATCH_SIZE = 500
_MARK = "SELECT mark FROM marks"
_NEW_MARK = "UPDATE marks SET mark = randomblob(16)"
_EMBEDDER = "SELECT no, size FROM embedders WHERE name = ?"
_NEW = "INSERT INTO embedders (name, size) VALUES (?, ?) RETURNING no"
_GET = f"""SELECT hash, vector FROM vectors
    WHERE embedder = ? AND hash IN ({", ".join("?" * _BATCH_SIZE)})"""
_PUT = "INSERT OR IGNORE INTO vectors (embedder, hash, vector) VALUES (?, ?, ?)"
_FORGET = "DELETE FROM vectors WHERE hash = ?"
_PRUNE = "DELETE FROM vectors WHERE embedder IN (SELECT no FROM embedders WHERE name <> ?)"
_PRUNE_NAMES = "DELETE FROM embedders WHERE name <> ?"

T = TypeVar("T")


class SqliteVectorStore:
    """The vectors of one embedder, as bytes. A damaged file is replaced by an empty one.

    Methods raise Unavailable if other processes lock the file for too long.
    """

    def __init__(self, path: Path, name: str, *, busy_ms: int = 5000) -> None:
        self._path = path
        self._name = name
        self._file = IndexFile(path, schema=_SCHEMA, version=VERSION, busy_ms=busy_ms)

    def state(self) -> tuple[bytes, int]:
        """Return the mark and the vector size of this embedder; size 0 means no vectors yet."""

        def work(db: apsw.Connection) -> tuple[bytes, int]:
            return db.execute(_MARK).get, self._embedder_row(db)[1]

        return self._run(work)

    def get(self, hashes: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the stored vectors of these hashes."""
        wanted = list(dict.fromkeys(hashes))

        def work(db: apsw.Connection) -> dict[bytes, bytes]:
            no, size = self._embedder_row(db)
            vectors: dict[bytes, bytes] = {}
            for start in range(0, len(wanted) if size else 0, _BATCH_SIZE):
                some: list[bytes | None] = [*wanted[start : start + _BATCH_SIZE]]
                some += [None] * (
                    _BATCH_SIZE - len(some)
                )  # fixed length, so that the statement stays prepared
                vectors.update(db.execute(_GET, (no, *some)))
            return vectors

        return self._run(work)

    def put(self, mark: bytes, size: int, rows: Sequence[tuple[bytes, bytes]]) -> bool:
        """Store vectors. Existing vectors stay.

        Returns:
            False, without any change, if the mark has changed. The texts may have been erased since
                they were read.

        Raises:
            Invalid: kind "vector_size", if this embedder has vectors of another size.
        """

        def work(db: apsw.Connection) -> bool:
            if db.execute(_MARK).get != mark:
                return False
            no, known = self._embedder_row(db)
            if known not in (0, size):
                raise Invalid(
                    "vector_size",
                    f"{self._name} gave {size} numbers a text, and {known} before: "
                    "a model that changed needs another name",
                )
            no = no or db.execute(_NEW, (self._name, size)).get
            db.executemany(_PUT, [(no, digest, vector) for digest, vector in rows])
            return True

        return self._run(work, write=True)

    def forget(self, hashes: Iterable[bytes]) -> int:
        """Delete the vectors of erased texts, of all embedders. Return their number.

        No page of the file or its log contains them afterwards. The texts must be erased before
        this call.
        """
        gone = list(hashes)

        def work(db: apsw.Connection) -> int:
            db.execute(_NEW_MARK)  # also without rows: another process may be about to store one
            count = 0
            for digest in gone:
                db.execute(_FORGET, (digest,))
                count += db.changes()
            return count

        return self._delete_and_vacuum(work)

    def prune(self) -> int:
        """Delete the vectors of other embedders. Return their number."""

        def work(db: apsw.Connection) -> int:
            db.execute(_PRUNE, (self._name,))
            count = db.changes()
            db.execute(_PRUNE_NAMES, (self._name,))
            return count

        return self._delete_and_vacuum(work)

    def empty(self) -> None:
        self._file.empty()

    def close(self) -> None:
        self._file.close()

    def _embedder_row(self, db: apsw.Connection) -> tuple[int, int]:
        row = db.execute(_EMBEDDER, (self._name,)).get
        return (row[0], row[1]) if row else (0, 0)

    def _run(self, work: Callable[[apsw.Connection], T], *, write: bool = False) -> T:
        try:
            with self._file.transaction(write=write) as db:
                return work(db)
        except IndexLost:  # the damaged file was replaced; try once more
            pass
        try:
            with self._file.transaction(write=write) as db:
                return work(db)
        except IndexLost as error:
            raise Unavailable(
                "no_vectors", f"{self._path} cannot be used ({error.message}): check the disk"
            ) from error

    def _delete_and_vacuum(self, work: Callable[[apsw.Connection], int]) -> int:
        def removed(db: apsw.Connection) -> int:
            count = work(db)
            if count:
                db.execute("COMMIT")
                db.execute("VACUUM")  # freed pages still contain the deleted data
                busy = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").get[0]
                db.execute("BEGIN")
                if busy:
                    raise Unavailable(
                        "vectors_busy",
                        f"{self._path} is being read, and its log still has what was taken out: "
                        "try again in a moment",
                    )
            return count

        return self._run(removed, write=True)
