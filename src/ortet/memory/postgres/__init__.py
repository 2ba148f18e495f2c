"""Memory index and vectors in PostgreSQL, shared by all hosts of a store.

Entry point: `index_factory.PostgresIndexFactory`, the `IndexFactory` of a PostgreSQL catalog.

- `index` and `reader`: the word index and its reader, which counts terms.
- `vectors`: vectors by hash of text, with or without pgvector, and the search for the nearest
  vectors in the database, with pgvector.

Invariants: results equal those of the SQLite index. Everything is derived from the journals;
missing tables are created again. A search uses few statements, however many timelines are visible.
Connections belong to the catalog, which closes them.

Imports: `memory` modules, `_util`, `ids` and `errors`; psycopg, and numpy for vectors.
"""
