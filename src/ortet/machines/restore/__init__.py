"""Restore of files: make a directory equal to an image, safely against crashes.

Start with `restore.restore_directory`, which changes an existing directory in place, and with
`checkout.checkout_image`, which writes an image into a new directory. `compare_images.py` computes
what differs, `conflict_check.py` verifies that no file changed since the snapshot, `write_tree.py`
and `write_entry.py` create files, `step_order.py` orders the steps, and `steps.py` does them.

Invariants:

  - A restore is all or nothing. `steps.py` stores all steps before the first one is applied, and
    `recover_restore` undoes an interrupted restore at the next open.
  - Old files are moved into a staging area, and deleted only after the restore is complete.
  - A file that changed since the snapshot is never overwritten, and ignored files are not touched.
  - Metadata that cannot be applied (owner, xattrs, devices) is reported as a `Loss`.

This package may import `machines.capture`, `machines.base`, `machines.dirfd`, `machines.services`,
and the layers below `machines`.
"""
