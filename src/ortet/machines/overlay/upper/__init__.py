"""Snapshot of the upper layer of an overlay mount.

Start with `scanner.py`. The upper layer holds only what changed above the lower layers: new files,
whiteouts for removed names, and directories. This package translates them into changes of the tree
of the lower layers. `tree.py` keeps the result, `inotify.py` tells which directories changed since
the last snapshot, and `fd_cache.py` keeps directories open.

Invariants:

  - The result equals a full scan of the merged view.
  - Only names that may have changed since the last snapshot are read.

This package may import `machines.capture`, `machines.dirfd`, and the layers below `machines`.
"""
