"""The overlay engine: machines with a private view of the files by overlayfs.

Start with `engine.OverlayEngine`, which opens machines, and `machine.OverlayMachine`. A machine has
its own mount namespace, which a supervisor process holds (`supervisor_client.py`). Its workspace is
an overlay mount: read-only lower layers, which machines share, and an upper directory of its own.

Overlay machines and live machines are built of the same parts: `files.OverlayFiles` (mounts and
snapshots), `layer_switcher.LayerSwitcher` (restores by other layers) and
`kernel_host.KernelLayers` (layers of forked kernels). Their engines share
`open_machines.OpenMachines`. `layers/` builds and caches lower layers and has the home of a
machine, `mount_plan.py` computes the mounts, `upper/` takes a snapshot of an upper directory.

Invariants:

  - A snapshot reads the upper directory only, so its cost depends on the number of changes. All
    files are scanned only if ignore rules changed or trees of the layers are not in the store.
  - A complete layer is never changed.
  - A fork shares the layers of its parent. Neither sees later changes of the other.
  - The layout of a machine (`LayerLayout`) is replaced as a whole, so a crash leaves the old
    or the new one.
  - The mounts end with the supervisor process, and that ends with the process that opened it.

This package may import `capture`, `restore`, `control`, `command`, `services`, `kernels` and
`standalone` of `machines`, the modules directly in `machines`, and the layers below. It does not
depend on `live`.
"""
