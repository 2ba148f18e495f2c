"""Sessions: one agent with its journal, memory, files and budget.

Start with `session.py`: `Session` is an open session with a lease, a facade of facets and internal
parts. They share the context in `context.py` and the steps of each verb in `writing/pipeline.py`.
`lifecycle.py` pauses and closes. `reader.py` has `SessionReader`, the same facets without a lease.
`manager.py` has `SessionManager`, by which a hub opens, creates, lists
and forks sessions. `table.py` has the catalog row of a session and its status.

- `writing`: events, lease hand-over, inbox, automatic commits
- `history`: commit, restore, fork, merge, compare, replay
- `actions`: actions, effects, approvals, budget, artifacts
- `memory`: facts, shared scopes, recall, context
- `environment`: what surrounds the workspace, external state, handover files
- `machine`: commands and kernels of the session's machine
- `portable`: checkpoints and carry tokens

Invariants: one process at a time writes to a session, under its lease. The state is the fold of the
events and changes only by events. A commit holds state and files together. A restore continues on a
new timeline; effects and spends survive it.

Imports: packages of the same layer (`hub`, `workspaces`, `store`, `vault`), then `machines`,
`journal`, `memory`, `history` and below. Never `swarm` or `config`: the hub is given a
`SwarmRunner` (`manager.py`).
"""
