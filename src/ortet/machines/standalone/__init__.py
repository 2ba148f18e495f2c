"""Programs that run inside or beside a machine, as plain scripts with `python -I -S`.

Where they run, the package `ortet` cannot be imported. They may use only the standard library, and
each other by bare name. `from ortet... import` is allowed below `TYPE_CHECKING` only.

The programs, each a process of its own:

- `zygote.py`: forks a supervisor for every overlay machine.
- `overlay_supervisor.py`: pid 1 of an overlay machine.
- `live_supervisor.py`: parent of all live machines of a hub; starts CRIU.
- `init.py`: pid 1 of a live machine, and parent of shells and services in an overlay machine.
  `requests.py` has the requests that it accepts.
- `kernel_guest.py`: a Python kernel. Its text is sent to the interpreter, so it also runs on old
  versions (3.8 and newer), together with `kernel_cell`, `kernel_variables` and `ipc`.

Invariants: every process started here ends when the hub ends, and nothing is left to clean up. A
message between processes is JSON (`ipc.py`), never pickle. The state of `init.py` is plain memory
without descriptors that lead out of its machine, so that a restored copy continues.
"""
