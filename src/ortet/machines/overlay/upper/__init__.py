"""Snapshot of the upper directory of an overlay mount.

Start with `scanner.UpperScanner`. The upper directory holds only what changed above the lower
layers: new files, whiteouts for removed names, and directories. This package applies these changes
to the tree of the lower layers. `tree.py` keeps what the last scan found, `entry.py` captures one
name, `inotify.py` tells which directories changed, and `fd_cache.py` keeps files open.

Invariants:

  - The result equals a full scan of the merged view, unless `has_changed_rules` is True. Then the
    caller must do a full scan.
  - Only names that may have changed since the last scan are read. Where changes cannot be watched,
    the stat of every name is compared.
  - A failed scan forgets nothing: the same changes are read again by the next one.

This package may import `machines.capture`, `machines.base`, `machines.dirfd`, and the layers below
`machines`.
"""
