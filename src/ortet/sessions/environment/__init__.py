"""The environment of a session: what surrounds its workspace and is not restored with its files.

Start with `tracker.py`: when the environment is probed and recorded.

- `probe`, `git_state` and `rooted`: read packages, hosts, resolver and git state of a machine;
- `variables`: environment variables of commands, recorded and restored;
- `environments`: the recorded environment now and at a commit;
- `external_state`: collaborations, rate limits, tokens and browsers, and their facet;
- `removal_rows`: catalog rows that are removed or erased with a session;
- `handover`: files for the next worker.

Invariants: a probe does not trust the workspace. On the host it runs no program that the workspace
names. Secrets are recorded as references, never as values. External state is recorded as an event
and as a row; the row survives a restore.

Imports: `sessions.actions`, `sessions.writing`, `sessions.history`, `workspaces`, `vault`,
`machines`, `journal`, `backends` and below.
"""
