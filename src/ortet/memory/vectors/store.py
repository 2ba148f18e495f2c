"""Vectors in one SQLite file, by embedder and hash of text: no text is embedded twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import apsw

from ortet.errors import Invalid, Unavailable
from ortet.memory.lexical.index_file import IndexFile, IndexLost

VERSION = 1

# By number in the order of making, so that neighbours in time are neighbours in the file: with the
# hash as key 100 000 of them took 5 s to write and 0.5 s to read, so it is 1 s and 0.3 s.
# `mark` is another one whenever something was taken out, for processes that remember it.
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
    """The vectors of one embedder, as bytes. A damaged file is begun anew. Raises Unavailable when
    other processes have it locked for too long."""

    def __init__(self, path: Path, name: str, *, busy_ms: int = 5000) -> None:
        self._path = path
        self._name = name
        self._file = IndexFile(path, schema=_SCHEMA, version=VERSION, busy_ms=busy_ms)

    def state(self) -> tuple[bytes, int]:
        """The mark, and the size of this embedder's vectors; 0: there is none yet."""

        def work(db: apsw.Connection) -> tuple[bytes, int]:
            return db.execute(_MARK).get, self._embedder_row(db)[1]

        return self._run(work)

    def get(self, hashes: Iterable[bytes]) -> dict[bytes, bytes]:
        """Those that are there."""
        wanted = list(dict.fromkeys(hashes))

        def work(db: apsw.Connection) -> dict[bytes, bytes]:
            no, size = self._embedder_row(db)
            found: dict[bytes, bytes] = {}
            for start in range(0, len(wanted) if size else 0, _BATCH_SIZE):
                some: list[bytes | None] = [*wanted[start : start + _BATCH_SIZE]]
                some += [None] * (
                    _BATCH_SIZE - len(some)
                )  # one statement, so that it stays prepared
                found.update(db.execute(_GET, (no, *some)))
            return found

        return self._run(work)

    def put(self, mark: bytes, size: int, rows: Sequence[tuple[bytes, bytes]]) -> bool:
        """What another process was faster with stays as it is. False, and nothing is done, when
        the mark is another one by now: these texts may have been erased since they were read.
        Invalid when vectors under this name have another size."""

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
        """Takes the vectors of erased texts out, whoever made them, so that no page of the file or
        its log has them. Returns how many. The texts are to be out of reach already."""
        gone = list(hashes)

        def work(db: apsw.Connection) -> int:
            db.execute(_NEW_MARK)  # even for none: one may be on its way
            count = 0
            for digest in gone:
                db.execute(_FORGET, (digest,))
                count += db.changes()
            return count

        return self._delete_and_vacuum(work)

    def prune(self) -> int:
        """Takes out what other embedders made. Returns how many."""

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
        except IndexLost:  # begun anew
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
                db.execute("VACUUM")  # a page that was freed or split keeps what it held
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
