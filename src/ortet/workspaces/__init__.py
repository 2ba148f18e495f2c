"""Workspaces: a branch of commits together with a machine.

Start with `workspace.py`: `Workspace` has the verbs commit, restore, rewind, fork, merge and land.
It is built from mixins:

- `onbranch`: the head of the branch and how it moves;
- `programs` and `kernels`: commands, services, shells and Python kernels;
- `undo`: undo and redo along the reflog.

Other modules: `table` (rows of all workspaces), `machine_homes` (where machines live, and
locks in a machine's home), `forks`, `merge` and `branches`.

`commit_participant.py` is the contract with sessions: a session takes part in the commits of its
workspace as a `CommitParticipant`.

Invariants: the head moves in one catalog transaction, after all objects are durable. Files are
replaced only under the exclusive lock, after uncommitted work was committed. If a process dies
between files and branch, the next open restores the files.

Imports: packages of the same layer (`hub`, `sessions`, `store`, `vault`), then `machines`,
`journal`, `memory`, `history` and below.
"""
