"""Catalog and Signal of a shared store, in a PostgreSQL database.

Start with `catalog.PostgresCatalog`. Then:

- `rows`: parameters of rows and leases, and their limits.
- `connection`: runs statements, and retries them.
- `pool`: the connections that all catalogs of a process share.
- `schema`: creates and migrates the schema.
- `group_commit`: writes concurrent appends in one transaction.
- `stall_detection`: notices a server that no longer answers.
- `notify`: the signal, by LISTEN and NOTIFY.
- `errors`: translates errors of PostgreSQL into ours.

Main invariants:

- Each catalog method is one statement, and so one transaction. The logic is in SQL functions
  (folder `migrations`).
- A statement whose connection was lost is retried only if repeating it is safe or recognised.
- A write carries its sweep epoch. The database refuses it if a sweep has started since.
- No connection lives through fork(2).

This package may import the top-level modules of `backends`, `_util`, `ids` and `errors`. psycopg is
an optional dependency.
"""
