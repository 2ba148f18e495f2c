"""The processes that start attempts: on this host by fork, or on the nodes of a Ray cluster.

Start with `client.SwarmWorkerClient`, the scheduler's connection to such a process. Then:

- `fork_server`: forks attempts on this host. It runs a dummy attempt before forking, so that
  attempts start faster.
- `placement`: parses `on=` and `needs=`, which choose a cluster.
- `ray_server`: submits attempts to a Ray cluster.
- `ray_node`: runs one attempt on a node, through a fork server there.

Main invariants:

- A process that has a hub open is never forked.
- If the driver dies, its worker process and all attempts end.
- Ray never retries an attempt. Only the scheduler decides about a retry.

This package may import what `swarm` may import. Ray is an optional dependency.
"""
