"""Creates the memory index of a store in PostgreSQL.

This is a module of its own because the catalog imports it, and a store without recall must not load
the index.
"""
# ruff: noqa: PLC0415 - who recalls nothing loads nothing of it

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ortet.ids import Clock
    from ortet.memory.base import SemanticIndex, WordIndex
    from ortet.memory.embedders.base import Embedder
    from ortet.memory.postgres.index import MemoryDatabase
    from ortet.memory.postgres.vectors import PostgresVectorStore


class PostgresIndexFactory:
    """`IndexFactory` in the schema of a PostgreSQL catalog."""

    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database

    def word_index(self) -> WordIndex:
        from ortet.memory.postgres.index import PostgresWordIndex

        return PostgresWordIndex(self._database)

    def vector_store(self, embedder: str) -> PostgresVectorStore:
        from ortet.memory.postgres.vectors import PostgresVectorStore

        return PostgresVectorStore(self._database, embedder)

    def semantic_index(self, embedder: Embedder, clock: Clock) -> SemanticIndex:
        """Return an index in the database if it has pgvector, otherwise one on this host."""
        store = self.vector_store(embedder.name)
        if store.has_pgvector:
            from ortet.memory.postgres.vectors import PostgresSemanticIndex

            return PostgresSemanticIndex(store, embedder, clock)
        from ortet.memory.vectors.index import LocalSemanticIndex

        return LocalSemanticIndex(store, embedder, clock=clock)
