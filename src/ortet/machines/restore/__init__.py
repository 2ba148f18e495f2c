"""Restore of files: make a directory equal to an image, safely against crashes.

Start with `restore.restore_directory`, which changes an existing directory in place, and with
`checkout.py` and `materialise.py`, which write an image into a new directory. `plan.py` computes
the steps, `conflict_check.py` verifies that no file changed since the snapshot, `write_tree.py` and
`write_entry.py` create files, and `steps.py` applies renames and metadata.

Invariants:

  - A restore is all or nothing. `journal.py` records each step before it is applied, and
    `recover_restore` undoes an interrupted restore at the next open.
  - Old files are moved into the stage directory, and removed only after the restore is complete.
  - A file that changed since the snapshot is never overwritten.
  - Metadata that cannot be applied (owner, xattrs, devices) is reported as a `Loss`.

This package may import `machines.capture`, `machines.base`, `machines.dirfd`, and the layers below
`machines`.
"""
