"""Python kernels: persistent interpreters inside a machine that fork in milliseconds.

A kernel runs code cells in one namespace. A fork of a kernel shares its memory copy-on-write. Each
fork has a private layer of files, so that forks do not see each other's changes.

Start with `kernel.py` (`Kernel`, the public object) and `manager.py` (`KernelManager`, all kernels
of one machine). `link.py` is the connection to one kernel process; `standalone/kernel_guest.py` is
the program at its other end. `machines/kernel_host.py` is the contract `KernelHost`, what a machine
must provide; `local_host.py`, `overlay/kernel_host.py` and `live/kernel_host.py` implement it.

Invariants:

- Nothing that a kernel sends is executed or unpickled in this process. Every reply is checked.
- `Kernel.fork` creates all requested forks or none.
- A machine is not committed with its processes while it has living kernel forks.

May import: `machines.standalone`, the modules directly in `machines`, and the layers `history`,
`objects`, `_util`, `ids`, `errors`. It does not know `machines.overlay` and `machines.live`.
"""
