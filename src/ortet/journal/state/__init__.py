"""The state of a session: records, their tables and three-way merge.

Entry point: `state.SessionState`, a small core record and tables of records. `kinds.registry.fold`
changes it event by event, with the reducers of `journal.kinds`. Nothing else changes it.

- `records`: the record types, and how events make them.
- `state`: the core, the tables, and their stored form.
- `merge.merge_states`: the three-way merge of two states.

Invariants:

- Tables are Merkle trees, so that storing a state at each commit costs only its changes.
- The state holds event numbers of messages, never their texts.
- Secrets are named and never stored.

Imports: `journal` modules, `history`, `objects` and the layers below. Never `journal.kinds`: the
kinds change a state, so they import this package.
"""
