"""Access to the store itself over HTTP, for remote hubs: `ortet.open("http://...")`.

Start with `routes.raw_routes`. It serves each method of Catalog and Signal as a route; `bucket`
serves the bucket as clients see it, with tails and indexes as keys. The wire format is in
`ortet.backends.remote.protocol`, and the client in `ortet.backends.remote`.

- `grants`: which store a caller gets, and which rows it may see and change.
- `rawaccess`: authenticates, reads and parses calls.
- `write_once`: a catalog write that a client repeats is applied once.

Invariants:
- Clients are not trusted to keep the store intact: packs are verified, and clients cannot delete
  them.
- A client never sees rows of the server: tokens, idempotency keys.
- A write fails with Conflict("swept") if garbage collection ran since the client read the store.

The package may import `objects`, `backends`, and row types of `sessions`, `workspaces` and `vault`.
Of the server it uses `context`, `dispatch`, `auth` and `middleware`.
"""
