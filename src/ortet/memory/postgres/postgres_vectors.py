"""Vectors in PostgreSQL, by embedder and hash of text.

No host embeds a text that another host has embedded.
"""
# ruff: noqa: PLC0415 - who erases needs no numpy

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

import psycopg

from ortet.errors import Invalid, OrtetError
from ortet.memory.postgres.index import MemoryDatabase

_TYPE = """SELECT format_type(atttypid, atttypmod) FROM pg_attribute
    WHERE attrelid = to_regclass('memory_vectors') AND attname = 'vector'
    AND to_regclass('memory_embedders') IS NOT NULL
    AND to_regclass('memory_vector_marks') IS NOT NULL"""
_STATE = """SELECT mark, coalesce((SELECT size FROM memory_embedders WHERE name = %s), 0)
    FROM memory_vector_marks"""
_GET = """SELECT hash, {sent} FROM memory_vectors WHERE hash = ANY (%s::bytea[])
    AND embedder = (SELECT no FROM memory_embedders WHERE name = %s)"""
_PUT = """SELECT memory_put_vectors(%s, %s, %s::int, %b::bytea[], %s::text[], %b::bytea[])"""
_WALKED = "; ".join(
    f"SET LOCAL {setting} = off" for setting in ("enable_nestloop", "enable_mergejoin", "jit")
)
_NO_TABLE = "42P01"
_BATCH_SIZE = 4096
_HEADER = 4
"""Bytes of a halfvec before its numbers."""
_ROW = 64
"""Bytes of a row beside its vector."""


class PostgresVectorStore:
    """`VectorStore` of a store that several hosts share.

    `column_type` is "bytea", or the halfvec type of pgvector with its schema. Missing tables are
    created.
    """

    def __init__(self, database: MemoryDatabase, embedder: str) -> None:
        self.name = embedder
        self._database = database
        self._column_type = ""

    @property
    def column_type(self) -> str:
        """Type of the vector column. Missing tables are created."""
        if not self._column_type:
            rows = self._database.run(_TYPE)
            if not rows:
                self._database.run("SELECT memory_make_vectors()")
                rows = self._database.run(_TYPE)
            self._column_type = rows[0][0]
        return self._column_type

    @property
    def schema(self) -> str:
        """Schema of pgvector with a trailing dot, or "" without pgvector."""
        return self.column_type.removesuffix("halfvec") if self.column_type != "bytea" else ""

    @property
    def has_pgvector(self) -> bool:
        """True if the database can search for the nearest vectors."""
        return self.column_type != "bytea"

    def vector_expression(self, column: str = "vector") -> str:
        return f"{self.schema}halfvec_send({column})" if self.has_pgvector else column

    def state(self) -> tuple[bytes, int]:
        ((mark, size),) = self.run(_STATE, (self.name,)) or [(UUID(int=0), 0)]
        return mark.bytes, size

    def get(self, hashes: Iterable[bytes]) -> dict[bytes, bytes]:
        wanted = list(dict.fromkeys(hashes))
        found: dict[bytes, bytes] = {}
        for start in range(0, len(wanted), _BATCH_SIZE):
            statement = _GET.format(sent=self.vector_expression())
            rows = self.run(statement, (wanted[start : start + _BATCH_SIZE], self.name))
            found.update((digest, self.to_float16(raw)) for digest, raw in rows)
        return found

    def to_float16(self, raw: bytes) -> bytes:
        """Return a vector as float16 bytes, as a file stores it."""
        if not self.has_pgvector:
            return raw
        import numpy as np

        return np.frombuffer(raw, ">f2", offset=_HEADER).astype(np.float16).tobytes()

    def put(self, mark: bytes, size: int, rows: Sequence[tuple[bytes, bytes]]) -> bool:
        hashes = [digest for digest, _ in rows]
        texts = [to_pgvector_text(raw) for _, raw in rows] if self.has_pgvector else None
        raws = None if self.has_pgvector else [raw for _, raw in rows]
        values = (UUID(bytes=mark), self.name, size, hashes, texts, raws)
        ((done,),) = self.run(_PUT, values)
        if done is None:
            raise Invalid(
                "vector_size",
                f"{self.name} gave {size} numbers a text, and {self.state()[1]} before: "
                "a model that changed needs another name",
            )
        return bool(done)

    def forget(self, hashes: Iterable[bytes]) -> int:
        return self._drop_vectors(list(hashes), None)

    def prune(self) -> int:
        return self._drop_vectors(None, self.name)

    def empty(self) -> None:
        self._drop_vectors(None, None)

    def _drop_vectors(self, hashes: list[bytes] | None, keep_embedder: str | None) -> int:
        if not self._database.run(_TYPE):
            return 0
        statement = "SELECT memory_drop_vectors(%s::bytea[], %s::text)"
        many = int(self.run(statement, (hashes, keep_embedder))[0][0])
        if many:
            with self._database.dedicated_connection() as connection:
                # otherwise the pages still contain the deleted rows
                connection.execute("VACUUM (FULL) memory_vectors")
        return many

    def close(self) -> None:
        """Do nothing: the database belongs to the catalog."""

    def estimated_rows(self, size: int) -> int:
        """Estimate the number of rows from the size of the table."""
        ((bytes_,),) = self.run("SELECT pg_relation_size('memory_vectors')")
        return int(bytes_) // (2 * size + _ROW)

    def walk(self, statement: str, values: Any) -> list[tuple[Any, ...]]:
        """Run a statement that joins so many rows that index lookups are slower than a scan."""
        rows: list[tuple[Any, ...]]
        with self._database.read_transaction(_WALKED) as connection:
            rows = connection.execute(statement, values, prepare=False, binary=True).fetchall()
        return rows

    def run(self, statement: str, values: Any = ()) -> list[tuple[Any, ...]]:
        assert self.column_type  # creates missing tables
        try:
            return self._database.run(statement, values)
        except OrtetError as error:
            cause = error.__cause__
            if not isinstance(cause, psycopg.Error) or cause.sqlstate != _NO_TABLE:
                raise
        self._column_type = ""  # the tables were dropped; create them again
        assert self.column_type
        return self._database.run(statement, values)


def to_pgvector_text(raw: bytes) -> str:
    """Return a vector as text for pgvector, without loss."""
    import numpy as np

    return str(np.frombuffer(raw, np.float16).astype(np.float64).tolist())
