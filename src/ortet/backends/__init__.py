"""Storage contracts (Bucket, Catalog, Signal, Cache) and their implementations.

Start with `base`, which defines the four contracts and the catalog rows.
Then read one implementation:

- `local/`: bucket, signal and cache in a directory or in the process.
- `sqlite/`: the catalog of an embedded store.
- `postgres/`: the catalog and signal of a store that hosts share.
- `object_storage/`: the bucket in S3 or a compatible service.
- `valkey/`: signal and cache in a Valkey or Redis server.
- `remote/`: all contracts over HTTP, for a store behind `ortet serve`.

Main invariants:

- Objects in a bucket are written once and never changed.
- Every catalog method is one atomic, durable transaction.
- A write under a lease fails if the lease has expired or another holder has a newer fence.
- Signal and Cache are hints. Nothing is lost if they forget everything.

Every implementation passes the conformance suites in `ortet.testing`.

This package may import `_util`, `ids` and `errors`.
"""
