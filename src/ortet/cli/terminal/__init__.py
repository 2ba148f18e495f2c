"""Output of commands, and use of the terminal.

Start with `output.CliOutput`: a command prints its result, its remarks and its errors with it, as
text or as JSON. The functions of `output` format values, and make text safe for a terminal.

- `output`: formats and prints lines, tables, JSON and errors.
- `pager`: sends long output to the user's pager.
- `progress`: draws a progress bar while slow work runs.
- `attached`: connects the terminal of the user to a shell in a machine.

Invariants:
- Nothing from a store reaches a terminal without `output.safe`, because it may contain control
  characters.
- With --json, standard output has JSON only. With -q it has nothing.
- Decoration (colours, bars, pager) appears only on a terminal.

This package imports the layers below `cli`, and nothing else of `cli`. Imports are inside the
functions where possible, because the start time of a command counts.
"""
