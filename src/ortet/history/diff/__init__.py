"""Differences between trees and between texts.

Start with `tree_diff.py` (`diff_images`, `diff_trees`, `file_diff`). It also pairs removed
and added paths to renames. `line_diff.py` finds the common lines of two texts and has no I/O.

Invariants:
- Equal pages and subtrees are not read. The cost depends on the size of the difference.
- A rename is reported only for equal content, never for similar content.
- A line diff stops after a fixed number of edits, so no input takes unbounded time.

This package imports `history.tree`, `history.records`, `history.references`, `objects` and `ids`.
"""
