"""Live machines: machines whose running processes are committed, forked and restored.

A live machine is an overlay machine with its own process, mount, network, IPC and UTS namespaces.
CRIU dumps its processes at a commit, so memory, open files and sockets are part of the image.

Start with `engine.py` (`CriuEngine`) and `machine.py` (`LiveMachine`). `process.py` starts a
machine and talks to its pid 1; `supervisor_client.py` talks to the helper process that forks
machines and CRIU. `criu/` dumps and restores, `images/` stores dump files, `network/` connects a
machine to the outside.

Invariants:

- The files are captured while CRIU has the processes stopped, so files and memory match.
- During a dump no descriptor inside the machine leads to a process outside it.
- All machines end when the supervisor ends, and the supervisor ends with the hub process.
- A restore replaces the running processes last: if it fails, the old ones keep running.

May import: `machines.overlay`, `machines.kernels`, `machines.control`, `machines.standalone`, the
modules directly in `machines`, and the layers `history`, `objects`, `_util`, `ids`, `errors`.
"""
