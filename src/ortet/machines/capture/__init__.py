"""Snapshots of files: from a directory to tree entries in the object store.

Start with `scanner.scan`. It compares a directory with its `StatIndex`, reads only the files that
differ, and returns the root entry and the hardlink groups. `walk.py` is its main loop, `entry.py`
captures one name, `ignore_rules.py` decides which names are state.

Invariants:

  - The stat index is the truth. inotify (`inotify.py`) only narrows down which names to compare.
  - A file whose ctime is too close to the scan is racy: it is compared again at the next scan.
  - A file that changes while it is read is read again. The stored stat belongs to that content.
  - A name that is too large or cannot be read is reported as a `Loss` at every scan.
  - No symlink below the root is followed, and no depth exhausts the stack or the descriptors.

This package may import `machines.base`, `machines.dirfd`, and the layers below `machines`.
"""
