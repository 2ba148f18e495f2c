"""The state of a session: records, folding and three-way merge.

Entry point: `state.SessionState`, a small core record and tables of records. `fold.fold` changes it
event by event, with the reducers of `journal.kinds`. Nothing else changes it.

- `records` and `external_state`: the record types, and how events make them.
- `state`: the core, the tables, and their stored form.
- `fold`: applies events to a state.
- `merge.merge_states`: the three-way merge of two states.

Invariants:

- Tables are Merkle trees, so that storing a state at each commit costs only its changes.
- The state holds event numbers of messages, never their texts.
- Secrets are named and never stored.

Imports: `journal` modules, `history`, `objects` and the layers below. Only `fold` imports
`journal.kinds`, because the kinds change a state.
"""
