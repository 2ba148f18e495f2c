"""Replay of a journal, and comparison of runs.

- `cursor.ReplayCursor` is the entry point of a replay. It matches each call of the program with a
  recorded event and returns the recorded outcome.
- `run_diff.diff_runs` compares two runs event by event. The module defines when two events of
  different runs are equal.
- `divergence.find_divergence` finds the last common event of two journals.

Invariants: a replay never executes a recorded action again. Ids, times and salts are ignored in
comparisons, because they differ between any two runs.

Imports: `journal` modules, `history`, `objects` and the layers below.
"""
