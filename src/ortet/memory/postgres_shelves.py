"""What the memories of a store in PostgreSQL are found by, for all its hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortet.memory.abc import WordIndex

if TYPE_CHECKING:
    from ortet.memory.postgres_index import Database


class PostgresShelves:
    """`abc.Shelves`, in the schema of a catalog. Who recalls nothing loads nothing of it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def words(self) -> WordIndex:
        from ortet.memory.postgres_index import PostgresIndex  # noqa: PLC0415

        return PostgresIndex(self._database)
