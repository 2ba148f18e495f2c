"""Programs and kernels in the machine of a session.

Start with `programs.py`: the facet for commands, services, shells, ports and kernels, which are
actions of the session. `session_files.py` opens the workspace, and makes the private files of a
session without a directory. `kernels.py` has the kernels whose runs are recorded as actions.

Invariants: starting a program or running code is an action, with an intent before it and an outcome
after it. The machine starts at first use; a session that never uses one starts nothing. Declared
variables of a kernel are saved with each commit.

Imports: `sessions.history`, `sessions.actions`, `workspaces`, `machines`, `journal` and below.
"""
