"""Live machines: machines whose running processes are committed, forked and restored.

A live machine has the files of an overlay machine (`overlay/files.py`), and its own process, mount,
network, IPC and UTS namespaces. CRIU dumps its processes at a commit, so memory, open files and
sockets are part of the image.

Start with `engine.py` (`CriuEngine`) and `machine.py` (`LiveMachine`). `startup.py` starts the
processes of a machine, fresh or from a dump, and `process.py` is the handle on them;
`supervisor_client.py` talks to the helper process that forks machines and CRIU. `criu/` dumps and
restores, `images/` stores dump files, `network/` connects a machine to the outside. `prefork.py`
starts announced forks early, `kernel_host.py` hosts Python kernels, and `temp_dirs.py` captures
files that only the processes need.

Invariants:

- The files are captured while CRIU has the processes stopped, so files and memory match.
- During a dump no descriptor inside the machine leads to a process outside it.
- All machines end when the supervisor ends, and the supervisor ends with the hub process.
- A restore replaces the running processes last: if it fails, the old ones keep running.

May import: `machines.overlay`, `machines.kernels`, `machines.control`, `machines.standalone`, the
modules directly in `machines`, and the layers `history`, `objects`, `_util`, `ids`, `errors`.
"""
