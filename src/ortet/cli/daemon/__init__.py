"""The host agent: a resident process that runs commands without the cost of a new start.

Start with `client.py` (the protocol and the client side) and `server.py` (the resident process, one
for each store and user). The server forks a worker for each workspace (`worker.py`). A worker keeps
the hub and workspaces open (`cache.py`). `live_machines.py` records machines that stay alive.

- `fast_path.py`: sends a command to the agent before click is imported.
- `control.py`: starts, stops and queries the agent.
- `machines.py`: finds, starts and uses the live machines of the agent.

Invariants:
- The client imports almost nothing. Its start time is the time of the command.
- The agent serves only processes of the same user, installation and mount namespace.
- Commands about one workspace run one after another, about several workspaces in parallel.
- A command runs with its caller's directory, variables and streams.
- After each command, sessions and locks are released.
- If the agent is not available, the caller runs the command itself.

This package imports `cli`, `config` and all layers below. `client.py` and `fast_path.py` import
only the standard library, `ortet` itself and each other.
"""
