"""The overlay engine: machines with a private view of the files by overlayfs.

Start with `engine.OverlayEngine`, which opens machines, and `machine.OverlayMachine`. A machine has
its own mount namespace, which a supervisor process holds (`supervisor_client.py`). The workspace is
an overlay mount: read-only lower layers, which machines share, and an upper layer of its own.
`layers.py` builds and caches lower layers, `home.py` is the directory of a machine in the store,
and `mount_plan.py` computes the mounts. `upper/` takes a snapshot of the upper layer.

Invariants:

  - A snapshot reads the upper layer only: its cost depends on the changes, not on the workspace.
  - A fork shares the lower layers of its parent; neither sees later changes of the other.
  - Lower layers are never changed after they are complete.
  - The mounts end with the supervisor process, so a crash leaves no mount on the host.

This package may import `capture`, `restore`, `control`, `command`, `kernels.host` and `standalone`
of `machines`, and the layers below `machines`. It must not import `live`.
"""
