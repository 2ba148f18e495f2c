"""What the memories of a store in PostgreSQL are found by, for all its hosts."""
# ruff: noqa: PLC0415 - who recalls nothing loads nothing of it

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ortet.ids import Clock
    from ortet.memory.base import Meanings, WordIndex
    from ortet.memory.embedders.base import Embedder
    from ortet.memory.postgres.index import Database
    from ortet.memory.postgres.postgres_vectors import PostgresVectorStore


class PostgresShelves:
    """`abc.Shelves`, in the schema of a catalog."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def words(self) -> WordIndex:
        from ortet.memory.postgres.index import PostgresIndex

        return PostgresIndex(self._database)

    def vectors(self, embedder: str) -> PostgresVectorStore:
        from ortet.memory.postgres.postgres_vectors import PostgresVectorStore

        return PostgresVectorStore(self._database, embedder)

    def meanings(self, embedder: Embedder, clock: Clock) -> Meanings:
        """In the database, where pgvector can be had, else on this host."""
        store = self.vectors(embedder.name)
        if store.is_compared:
            from ortet.memory.postgres.vectors import PostgresMeanings

            return PostgresMeanings(store, embedder, clock)
        from ortet.memory.vectors.index import Vectors

        return Vectors(store, embedder, clock=clock)
