"""Workspaces: a branch of commits together with a machine.

Start with `workspace.py`: `Workspace` has the verbs commit, restore, rewind, fork, merge and land.
It is a facade of these parts:

- `branch`: the head of the branch and how it moves;
- `files`: the machine; files and head move together;
- `programs`: commands, services, shells and Python kernels;
- `undo`: undo and redo along the reflog.

Other modules: `manager` (opens workspaces), `table` (rows of all workspaces), `machine_homes`
(where machines live, and locks in a machine's home), `cross_host`, `forks`, `merge`, `results`.

`commit_participant.py` is the contract with sessions: a session takes part in the commits of its
workspace as a `CommitParticipant`.

Invariants: the head moves in one catalog transaction, after all objects are durable. Files are
replaced only under the exclusive lock, after uncommitted work was committed. If a process dies
between files and branch, the next open restores the files.

Imports: `store` and `vault`, then `machines`, `journal`, `memory`, `history` and below.
"""
