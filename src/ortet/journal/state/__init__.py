"""The state of a session: records, reducers and three-way merge.

Entry point: `state.SessionState`, a small core record and tables of records. `reducers.fold`
changes it event by event. Nothing else changes it.

- `records` and `around`: the record types.
- `reducers`: one function for each event kind.
- `merge.merge_states`: the three-way merge of two states.

Invariants:

- Tables are Merkle trees, so that storing a state at each commit costs only its changes.
- The state holds event numbers of messages, never their texts.
- Secrets are named and never stored.

Imports: `journal` modules, `history`, `objects` and the layers below.
"""
