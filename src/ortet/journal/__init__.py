"""The journal of a session: hash-chained events, and the state that they fold into.

Start with `event_chain.EventChain` (make, chain and read events) and `event_log.EventLog` (read the
events of a timeline). `kinds.registry.fold` turns events into a `state.state.SessionState`. To add
an event kind, write a record in `kinds`.

- `events`, `event_chain`, `upcasts`, `spill`: one event, its hash chain, older schema versions and
  long texts.
- `kinds`: one record for each event kind, which all other modules ask, and folding.
- `event_log`, `segments`: events of a timeline, in catalog rows and in sealed objects.
- `state`: the records of a session state, and its three-way merge.
- `conversation`: messages, tool calls, compaction, and formats of model providers.
- `reports`: briefing, progress and checkpoint texts.
- `replay`: the cursor of a replay, and comparison of runs.
- `environment`: packages, variables, hosts and git state around a workspace.

Invariants:

- Events are never changed. Header and body are separate, so that a body can be erased and the hash
  chain stays valid.
- Folding is deterministic: equal events give an equal state.
- Events of an unknown kind, from a later release, are kept and do not change the state.

Imports: `history`, `objects`, `backends`, `_util`, `ids` and `errors`. The siblings `machines` and
`memory` and all higher layers are not imported.
"""
