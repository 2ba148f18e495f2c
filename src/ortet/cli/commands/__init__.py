"""The commands of `ortet`, one module for each group of related commands.

`cli/main.py` has the table of commands and modules. A module is imported when one of its commands
runs. `workspace.py` (init, status, commit, run) is a good example to start with.

Invariants:
- A command is a function with the decorator `verb` (or `group`) from `cli/call.py`.
- Its docstring is its help text.
- Its first parameter is the `CliCall`. It prints its result with `call.output.emit`.
- Heavy imports are inside the functions, so that other commands start fast.

`machine_internal.py` has hidden commands that only the host agent runs. Modules may import `cli`,
`config` and all layers below.
"""
