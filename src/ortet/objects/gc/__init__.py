"""Garbage collection and verification of objects.

Start with `sweep.py` (one host) or `sweep_remote.py` (a bucket shared by hosts). Both mark
reachable objects (`reachability.py`), copy them out of the packs to delete (`repack.py`), and then
delete those packs. `verify.py` reads every frame and follows every reference. `lock.py` excludes
writers from the last phase of a local sweep.

Invariants:
- A sweep never deletes an object that a root, a tail or a pending write can reach.
- Copies are durable before the old packs are deleted.
- The sweep epoch is raised before the first deletion. A writer that sees a new epoch forgets the
  object ids that it remembered.
- A sweep that finds a reachable object missing raises `Corrupt` and deletes nothing.

This package imports the rest of `objects`, `backends`, `_util`, `ids` and `errors`.
"""
