"""An open store: sessions, workspaces, recall, maintenance, transfer and governance.

Entry point: `hub.Hub`. `ortet.open()` (in `config`) builds a `StoreContext` and returns a `Hub`.
`Hub` owns the backends of the store and the sessions and workspaces that it opened. `Hub.close()`
closes all of them.

The public verbs of `Hub` are spread over base classes, one for each area:

- `minding.SessionApi`: open, list and read sessions; redact secrets.
- `memory_queries.MemoryQueries`: recall, episodes, consolidation.
- `maintenance.Maintenance`: verify, sweep, tidy, drop, export, import, pull, push.
- `governance.service.Governance`: audit, erase, archive, retention, carry tokens.
- `inbox_api.InboxApi`: comment and approve without the lease of the session.

Invariants:

- Objects are written inside `StoreContext.writing()`. No sweep deletes an object before the head
  has moved.
- A store on a shared catalog can be swept by another host at any time. Such writes run in
  `run_with_sweep_retry`.
- Verbs import their implementation when they are called, so that a command about files does not
  load session code.

Imports: `sessions`, `workspaces`, `store`, `vault` and the layers below. Surfaces, `config` and
`swarm` are above this package and are not imported.
"""
