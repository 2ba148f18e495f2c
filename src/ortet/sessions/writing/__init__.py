"""Writing the events of one session: lease, inbox, automatic commits, state cache.

Start with `event_writer.py`: `EventWriter` appends events to the catalog and folds them into the
in-memory state. `pipeline.py` has the steps that each writing verb goes through. Then:

- `inbox`: messages that other processes leave without a lease;
- `lease_handover`: how a process gets the lease from a server that keeps the session open;
- `auto_commit`: when a session commits automatically;
- `state_cache`: the folded state in a cache that several hosts share;
- `large_events`: data that is too large for an event;
- `bulk_import`: many events in one transaction, for programs that import events;
- `idempotent_turns`: keys that make repeated messages harmless.

Invariants: every append presents the lease of the session. Events and the rows that belong to them
are written in one transaction. The in-memory state changes only by folding written or buffered
events.

Imports: the other packages of `sessions`, `store`, `journal`, `backends` and below.
"""
