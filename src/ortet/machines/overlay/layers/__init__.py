"""Layers on disk: the read-only directories below an overlay, and the home of a machine above them.

Start with `store.LayerStore`, which finds or builds the layers of an image and records which are
complete. `home.MachineHome` is the directory of one machine in the store; its `LayerLayout` names
the layers and the upper directories that the machine uses. `system_diff.py` captures what a machine
changed outside of its workspace, as layers over the directories of the host. `resolv_conf.py` is
the one file there that Ortet writes itself.

Invariants:

  - A layer is complete as soon as its record exists, and a complete layer is never changed.
  - Every layer can be built again from the store, except those that hold ignored files.
  - A layer of an earlier boot is checked once before it is used.
  - The record of a machine's layout is replaced as a whole.

This package may import `overlay.upper`, `overlay.mount_plan`, `machines.capture`,
`machines.restore`, `machines.standalone`, the modules directly in `machines` that they may import,
and the layers below `machines`. It knows nothing of running machines.
"""
