"""The overlay engine: machines with a private view of the files by overlayfs.

Start with `engine.OverlayEngine`, which opens machines, and `overlaymachine.OverlayMachine`. A
machine has its own mount namespace, which a supervisor process holds (`supervisor_client.py`). Its
workspace is an overlay mount: read-only lower layers, which machines share, and an upper directory
of its own. `layers.py` builds and caches lower layers, `home.py` is the directory of a machine in
the store, `mount_plan.py` computes the mounts, and `upper/` takes a snapshot of an upper directory.

Invariants:

  - A snapshot reads the upper directory only, so its cost depends on the number of changes. All
    files are scanned only if ignore rules changed or trees of the layers are not in the store.
  - A complete layer is never changed.
  - A fork shares the layers of its parent. Neither sees later changes of the other.
  - The layout of a machine (`home.LayerLayout`) is replaced as a whole, so a crash leaves the old
    or the new one.
  - The mounts end with the supervisor process, and that ends with the process that opened it.

This package may import `capture`, `restore`, `control`, `command`, `folder`, `services`, `kernels`
and `standalone` of `machines`, and the layers below `machines`. It does not depend on `live`,
except for a file that a live machine gets (`live/network/slirp.py`).
"""
