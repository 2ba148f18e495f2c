"""Three-way merge of images, files and texts.

Start with `tree_merge.py` (`merge_images`). It merges directories, single entries and
hardlink groups, and calls `text_merge.py` for the lines of a file.

Invariants:
- A conflict is returned as data, not raised.
- Without `favor`, a path with a conflict keeps our version unchanged.
- A file is never partly merged.
- The result depends only on base, ours, theirs and `favor`.

This package imports `history.diff`, `history.tree`, `history.records`, `history.references`,
`objects`, `_util` and `ids`.
"""
