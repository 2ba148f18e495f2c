"""Commit, restore, fork, merge, compare and replay of a session.

Start with `navigation.py`: it commits and moves an open session. Then `participants.py`,
which connects an open session with the commits of its files.

- `commit`: moves the branch of a session without files
- `load`: the state of a session, from its last commit and the events after it
- `forking` and `fork_session`: sessions that continue from a commit or from an event
- `event_commit`: a commit of a session at any of its events
- `merge`, `compare` and `preview`: merge of two sessions, differences, dry runs
- `replay`: the parts by which a session replays its recorded events
- `shared_directory`: several sessions that work in one directory
- `swarm_results`: adopting and harvesting the attempts of a swarm
- `restore_report`: what a restore does not bring back

Invariants: head, session row and timeline change in one transaction. A restore starts a new
timeline at the target commit; the old timeline keeps its events. Uncommitted work is committed
before each move. Effects and spends are never undone.

Imports: the other packages of `sessions`, `workspaces`, `store`, `journal`, `history` and below.
"""
