"""The command line program `ortet`.

Start with `entry.py` (the console script) and `main.py` (the table of commands). `call.py` is one
invocation: its output, its store and its workspace. The commands are in `commands/`. `terminal/`
formats values and prints results. `daemon/` is the host agent, a resident process that runs some
commands faster. `completion/` answers the shell at every Tab.

Invariants:
- A module of a command is imported only when that command runs.
- Results go to standard output, remarks and errors to standard error.
- With --json, a result or an error is JSON. An error sets the exit code of its class.
- Text from a store is made safe before it is written to a terminal.
- Every command also works without the host agent, except those about live machines.

This package is a surface. It may import `config` and all layers below it. Modules of other surfaces
(`server`, `mcp_server`, `integrations`) are imported only in the commands that start or use them.
"""
