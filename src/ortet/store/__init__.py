"""Building blocks that hub, sessions and workspaces share when they work on an open store.

Start with `context.StoreContext`: the services of an open store (catalog, objects, clock and so
on). Then:

- `lease`: one process writes to a session at a time.
- `commit`: writes a commit record durably.
- `sweep_retry`: runs a sweep of a shared store, and retries writes that a sweep refused.
- `pin_commit`: protects a commit that only its id refers to from a concurrent sweep.

Main invariants:

- A commit record and all its objects are durable before any head refers to the commit.
- A write passes the lease under which it is made. The catalog refuses it if the lease is lost.
- A write refused with Conflict("swept") has changed nothing, so it can be retried.

This package may import `machines`, `journal`, `memory`, `history`, `objects`, `backends` and below.
It imports `hub` only for type checking or inside functions.
"""
