"""Sessions that the server keeps open between requests, and their hand-over to other processes.

Start with `pool.SessionPool`, the entry point for one store. `tenants.Tenants` has one pool per
tenant.

- `slot` and `slots`: one open session with its own hub, the table of all of them,
  and leases that could not be released.
- `eviction`: closes sessions that are idle, or that another process asks for.
- `handover`: asks for a lease, and gives the process that asked the first chance to take it.
- `readers`: idle hubs for requests that only read.
- `liveness`: the lease that shows that this server runs.
- `swarm_jobs`, `machine_access`: swarms that the server runs; questions to a machine without its
  session.

Invariants:
- A hub is used by one thread at a time, so each open session has its own hub.
- A session with running programs is never evicted.
- A slot that is in use stays in the table.

The package may import `config` and layers below it, and `server.middleware.idempotency`. It knows
no HTTP types.
"""
