"""The Catalog of an embedded store, in one SQLite file.

Start with `catalog.SqliteCatalog`. Then:

- `rows`: leases and records, inside a transaction of the caller.
- `connection`: opens, migrates and locks the file; translates errors.
- `write_queue`: orders the writes of all threads, and batches appends.
- `peek`: a fast read-only view for shell completion.

Main invariants:

- The file is in WAL mode with synchronous=FULL: a committed transaction survives a power cut.
- No connection lives through fork(2). It is closed before the fork and reopened at the next use.
- Every write transaction starts with BEGIN IMMEDIATE.

This package may import the top-level modules of `backends`, `backends.local`, `_util`, `ids` and
`errors`.
"""
