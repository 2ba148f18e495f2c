"""Shell completion, without importing the commands.

Start with `engine.py` (`complete`). `parser.py` finds the position in an unfinished command line.
It reads `words.tsv`, the list of all commands and options. `word_list.py` generates that file from
the click commands. `shells/` has the scripts for bash, zsh and fish.

Invariants:
- A completion imports almost nothing, because it runs at every Tab.
- A completion creates nothing and prints no error. A failure gives no candidates.
- A test fails if `words.tsv` is not up to date.

At a Tab only this package, `cli.entry`, the client of the host agent (`cli.daemon.fast_path`) and
the catalog reader of `backends.sqlite` are imported. Values that need a hub (facts, artifacts,
effects, approvals) come from the host agent, or from a full start.
"""
