"""Machines: where the commands of an agent run, and the files that they change.

Start with `base.py`. An `Engine` opens machines; a `Machine` runs commands, takes snapshots of its
state and restores them. There are three engines:

  folder    a directory in place, or a private copy; commands run on the host (`folder.py`)
  overlay   a private view of the files by overlayfs; programs may outlive a run (`overlay/`)
  criu      overlay files, and processes that are part of a commit (`live/`)

`capture/` stores the files of a directory, `restore/` writes them back, `secrets/` looks for
secrets before something is stored. `control/` talks to the programs of a machine, `kernels/` are
Python kernels. `standalone/` holds scripts that run inside a machine and import only the standard
library.

Invariants:

  - A snapshot of the same state has the same Oid.
  - A restore is all or nothing, also after kill -9.
  - Nothing is lost silently: state that cannot be captured or restored is reported as a `Loss`.

This package may import `history`, `objects`, `backends`, `_util`, `ids` and `errors`. It must not
import its siblings `journal` and `memory`, nor any package above. Inside of it, the order is:
`standalone` < `dirfd`, `host_compat`, `jobs`, `kernel_host`, `limits`, `poll` < `base`, `secrets` <
`capture`, `services` < `restore` < `command` < `control`, `kernels` < `folder` < `overlay` <
`live` < `cleanup`, `doctor`. A contract of import-linter enforces it.
"""
