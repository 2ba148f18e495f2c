"""The contract between kernels and machines: start an interpreter, and create layers for forks."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from ortet.errors import Invalid, Unavailable, Unsupported
from ortet.history.records import Image
from ortet.ids import Oid
from ortet.machines.standalone.process_tree import kill_run

KERNEL_FD_COUNT = 4
"""Number of descriptors of a kernel: stdin, stdout, stderr, and its control socket."""

VENV_DIRECTORIES = (".venv", "venv")


FilesSnapshot = tuple[Oid, Image]


ListKernelPids = Callable[[], Collection[int]]


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
    the workspace inside the machine; `host_path` is a path under which this process can read it.
    """

    engine: str
    workspace_path: str
    host_path: Path
    contained = True  # the processes end automatically with the hub
    captures_processes = False  # the processes are part of a snapshot

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


Launch = Callable[..., tuple[int, int]]
"""(argv, *, env, fds) -> (pid inside the machine, pidfd).

Starts a long-running program in the workspace. `fds` become its descriptors from 0 on, and it may
change its root directory.
"""


def launch_interpreter(
    launch: Launch, argv: Sequence[str], env: Mapping[str, str]
) -> KernelProcess:
    """Start an interpreter whose socket and streams are connected to this process."""
    ends = open_channel()
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    out, err, sock = ends.theirs
    try:
        pid, pidfd = launch(argv, env=env, fds=[null, out, err, sock])
    except BaseException:
        close_channel(ends)
        raise
    finally:
        for fd in (null, out, err, sock):
            os.close(fd)
    return KernelProcess(ends._replace(theirs=[]), pid, pidfd)


def fork_unsupported(engine: str) -> Unsupported:
    """Return the error for an engine that has no layers for kernel forks."""
    return Unsupported(
        "no_kernel_fork",
        f"engine {engine!r} cannot give the fork of a kernel files of its own: use a private "
        "workspace with engine='overlay'; `ortet doctor` says whether this host can",
    )


class LocalKernelHost(KernelHost):
    """Kernels of machines whose commands run directly on the host."""

    contained = False

    def __init__(self, engine: str, workspace_path: Path) -> None:
        self.engine = engine
        self.workspace_path = str(workspace_path)
        self.host_path = workspace_path
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start_interpreter(
        self, name: str, argv: Sequence[str], *, env: Mapping[str, str]
    ) -> KernelProcess:
        del name
        return launch_interpreter(self._launch, argv, env)

    def _launch(
        self, argv: Sequence[str], *, env: Mapping[str, str], fds: Sequence[int]
    ) -> tuple[int, int]:
        number = fds[KERNEL_FD_COUNT - 1]
        process = subprocess.Popen(
            list(argv),
            cwd=self.workspace_path,
            env={**env, "ORTET_KERNEL_FD": str(number)},
            stdin=fds[0],
            stdout=fds[1],
            stderr=fds[2],
            pass_fds=[number],
            start_new_session=True,
        )
        try:
            pidfd = os.pidfd_open(process.pid)
        except (AttributeError, OSError) as error:
            process.kill()
            process.wait()
            raise Unsupported(
                "no_pidfd", "a kernel needs Linux 5.3 or later: run scripts with run() instead"
            ) from error
        self._processes[process.pid] = process
        return process.pid, pidfd

    def kill_kernel(self, pid: int, mark: str, exclude: Collection[int]) -> None:
        kill_run(mark, pid, exclude)
        with suppress(ProcessLookupError):
            if pid > 0:
                os.kill(pid, signal.SIGKILL)

    def wait_exit_code(self, pid: int) -> int | None:
        process = self._processes.pop(pid, None)
        return None if process is None else process.wait()


def open_channel() -> KernelChannel:
    """Create the socket and the output pipes of a kernel."""
    ours, theirs = socket.socketpair()
    made: list[int] = []
    try:
        for _ in range(2):
            made += os.pipe()
    except BaseException:
        for fd in made:
            os.close(fd)
        ours.close()
        theirs.close()
        raise
    out, their_out, err, their_err = made
    return KernelChannel(ours, out, err, [their_out, their_err, theirs.detach()])


def close_channel(channel: KernelChannel) -> None:
    channel.sock.close()
    os.close(channel.out)
    os.close(channel.err)


def choose_python(host: KernelHost, requested: str | None) -> str:
    """Return the interpreter for a kernel: the requested one, the workspace's own, or this one."""
    if requested is not None:
        if not requested or "\0" in requested:
            raise Invalid("bad_python", "python is no program: give its name or path")
        return requested
    for name in VENV_DIRECTORIES:
        if os.path.lexists(host.host_path / name / "bin" / "python"):
            return f"{host.workspace_path}/{name}/bin/python"
    if not sys.executable:
        raise Unavailable("no_python", "this process does not know its interpreter: give python=…")
    return sys.executable
