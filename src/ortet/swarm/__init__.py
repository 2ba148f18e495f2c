"""Swarms: many attempts at a task from one commit, scored; the best is kept.

Start with `runner.LocalSwarms`, which runs a swarm to its end. Then:

- `plan`: checks the request of the caller and turns it into a SwarmPlan.
- `records`: the catalog rows of a swarm and its attempts.
- `scheduler`: starts attempts as slots become free, and records how each ended.
- `attempt`: one attempt, in a process of its own: fork, run, score, commit.
- `budget`: reserves and returns the budget shares of attempts.
- `task_transport`: sends a task function or command to another process.
- `workers/`: the processes that start attempts, on this host or on a Ray cluster.
- `lazy`: loads all of this only when a swarm is used.

Main invariants:

- Every step is recorded before the next one starts. Another process can continue a swarm by name.
- An attempt row has a version. A process of an earlier try can no longer write to it.
- Each chosen attempt is adopted or merged exactly once.
- One process at a time drives the swarms of a session; it holds a lease.

This package may import everything below `config`: hub, sessions, workspaces, store and below.
"""
