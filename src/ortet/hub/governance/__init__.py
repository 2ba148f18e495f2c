"""Governance of recorded data: audit, erasure, retention, archive and data sets.

Entry point: `service.Governance`, which `Hub.governance` returns. Its verbs import the
other modules when they are called.

- `audit` checks the hash chain of a session and lists its events.
- `erase` destroys the bodies of events, also of uncommitted ones; `rewrite_objects` builds the
  objects that replace old ones; `tombstones` holds the signed records of both.
- `foreign_erasures` accepts erasures that another store made and a bundle carries.
- `retention` applies policies by agent; `legal_holds` blocks every deletion.
- `archive` moves a session to a bundle in the bucket; `remove` deletes a session.

Invariants:

- An erasure keeps every event header, so that the hash chain can still be checked.
- An event without a body must be named by a signed record of this store. Otherwise it counts as
  damage.
- Erasure and removal are recorded before they start. After a crash the next call finishes them.
- The next call repeats an interrupted archive.
- A hold wins over every policy, erasure, archive and removal.

Imports: `sessions`, `store`, `journal`, `history`, `objects` and the layers below, and
`hub.maintenance`.
"""
