"""An open store: sessions, workspaces, recall, maintenance, transfer and governance.

Entry point: `hub.Hub`. `ortet.open()` (in `config`) builds a `StoreContext` and returns a `Hub`.
`Hub` owns the backends of the store and the sessions and workspaces that it opened. `Hub.close()`
closes all of them.

The verbs of `Hub` are one-line calls of its parts:

- `sessions.manager.SessionManager`: open, list and read sessions.
- `memory_queries.MemoryQueries` (`hub.memory`): recall, episodes, consolidation.
- `maintenance.Maintenance` (`hub.maintenance`): verify, sweep, tidy, drop, backup.
- `transfer.Transfer` (`hub.transfer`): export, import, pull, push, carry tokens, checkpoints.
- `governance.service.Governance` (`hub.governance`): audit, erase, archive, retention.
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
