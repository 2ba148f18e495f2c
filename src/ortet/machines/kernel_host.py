"""The contract between kernels and machines: `KernelHost` starts interpreters and layers forks.

Every kind of machine has a kernel host. The package `kernels` uses it.
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import msgspec

from ortet.errors import Unsupported
from ortet.history.records import Image
from ortet.ids import Oid

FilesSnapshot = tuple[Oid, Image]
"""An image of files, and its id."""

ListKernelPids = Callable[[], Collection[int]]
"""Returns the pids of the kernels that can move to other layers."""


class KernelLayer(msgspec.Struct, frozen=True):
    """Private files of one fork.

    `root` is a directory that becomes the root directory of the fork, and `namespace` keeps its
    mounts alive. Both are descriptors that stay open until the layer is dropped.
    """

    number: int
    root: int
    namespace: int


class ForkLayers(msgspec.Struct, frozen=True):
    """Read-only layers that forks start on; `grow` creates a private layer on top for one fork.

    `moved` is True if the machine itself moved to a new upper layer, so that its kernels must
    follow. `instead` is the new layer of the forked kernel, if that kernel is itself a fork.
    """

    grow: Callable[[], KernelLayer]
    moved: bool = False
    instead: KernelLayer | None = None


class KernelChannel(NamedTuple):
    """This process's ends of a kernel's socket and streams.

    `theirs` are the opposite ends that have not been passed to the kernel yet.
    """

    sock: socket.socket
    out: int
    err: int
    theirs: list[int]


class KernelProcess(NamedTuple):
    """A kernel's process and the channel to it."""

    channel: KernelChannel
    pid: int
    pidfd: int


class KernelHost(ABC):
    """Services that a machine must provide for kernels.

    Only one thread may call it at a time, except for `kill_kernel`. `workspace_path` is the path of
    the workspace inside the machine.
    """

    engine: str
    workspace_path: str
    contained = True  # the processes end automatically with the hub
    captures_processes = False  # the processes are part of a snapshot

    @property
    @abstractmethod
    def host_path(self) -> Path:
        """The path under which this process can read the workspace."""

    @abstractmethod
    def start_interpreter(
        self, name: str, argv: Sequence[str], *, env: Mapping[str, str]
    ) -> KernelProcess:
        """Start an interpreter. Raises OSError if it cannot be executed."""

    def find_running(self, name: str) -> KernelProcess | None:
        """Return a kernel that runs already, for example after a restore of a live machine."""
        del name
        return None

    def startup_output(self, name: str) -> str:
        """Return the output of an interpreter that failed to start.

        Only needed where its streams cannot be read directly.
        """
        del name
        return ""

    def add_snapshot_hooks(
        self,
        check: Callable[[], None],
        disconnect: Callable[[], None],
        reconnect: Callable[[], None],
    ) -> None:
        """Register callbacks for snapshots of processes.

        `check` is called early and may raise; `disconnect` and `reconnect` surround the snapshot.
        """
        del check, disconnect, reconnect

    @abstractmethod
    def kill_kernel(self, pid: int, mark: str, exclude: Collection[int]) -> None:
        """Kill a kernel and all processes it started, except the kernels in `exclude`.

        `pid` is -1 for a kernel that has ended.
        """

    @abstractmethod
    def wait_exit_code(self, pid: int) -> int | None:
        """Wait for a kernel started here, and return its exit code; called once.

        Returns None if the exit code is unknown.
        """

    # layers for forks: a machine without private files refuses them

    def host_pid(self, pid: int, pidfd: int) -> int:
        """Return the pid that `kill_kernel` expects for a process that a kernel reported."""
        del pidfd
        return pid

    def capture_files(self, layer: KernelLayer | None = None) -> FilesSnapshot:
        """Snapshot the files of the machine, or of a fork, for `fork_layers`."""
        del layer
        raise fork_unsupported(self.engine)

    def fork_layers(
        self,
        list_kernel_pids: ListKernelPids,
        snapshot: FilesSnapshot,
        layer: KernelLayer | None = None,
    ) -> AbstractContextManager[ForkLayers]:
        """Yield layers with the files of `snapshot`, on which forks can start.

        `list_kernel_pids` returns the kernels that work on these files and can move to other
        layers; it is called only if needed. Changes in a fork's layer are visible neither in the
        machine nor in another fork.
        """
        del list_kernel_pids, snapshot, layer
        raise fork_unsupported(self.engine)

    def base_image(self, layer: KernelLayer) -> Oid:
        """Return the image of the machine that a fork's layer started from."""
        del layer
        raise fork_unsupported(self.engine)

    def check_can_adopt(self, pid: int) -> None:
        """Raise Conflict if a fork has something that cannot move to the machine's own files."""
        del pid

    def adopt_layer(self, layer: KernelLayer, kernel_pids: Collection[int]) -> int:
        """Make a fork's files the files of the machine, and return its root directory, open."""
        del layer, kernel_pids
        raise fork_unsupported(self.engine)

    def drop_layer(self, layer: KernelLayer) -> None:
        """Release a layer and delete its files, or what `adopt_layer` left of them; called once."""
        del layer


def fork_unsupported(engine: str) -> Unsupported:
    """Return the error for an engine that has no layers for kernel forks."""
    return Unsupported(
        "no_kernel_fork",
        f"engine {engine!r} cannot give the fork of a kernel files of its own: use a private "
        "workspace with engine='overlay'; `ortet doctor` says whether this host can",
    )
