"""What a Python kernel needs of a machine: to be started inside, and layers for its forks."""

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
"""A kernel's descriptors: stdin, stdout, stderr, and the socket it answers on."""

VENV_DIRECTORIES = (".venv", "venv")


FilesSnapshot = tuple[Oid, Image]


ListKernelPids = Callable[[], Collection[int]]


class KernelLayer(msgspec.Struct, frozen=True):
    """Files for one fork: a directory to make its root, and what keeps the mounts there alive. Both
    are open here until it is dropped."""

    number: int
    root: int
    namespace: int


class ForkLayers(msgspec.Struct, frozen=True):
    """Layers that nobody writes to any more: `grow` makes files upon them for one fork.

    `moved`: the machine itself went on to new ones, so its kernels have to follow. `instead`: the
    fork that is forked has to, to this branch.
    """

    grow: Callable[[], KernelLayer]
    moved: bool = False
    instead: KernelLayer | None = None


class KernelChannel(NamedTuple):
    """Our ends of a kernel's socket and streams; `theirs` are the others, not yet given away."""

    sock: socket.socket
    out: int
    err: int
    theirs: list[int]


class KernelProcess(NamedTuple):
    """A kernel's process, and how to reach it."""

    channel: KernelChannel
    pid: int
    pidfd: int


class KernelHost(ABC):
    """One thread at a time, but for `end`. `place` is the workspace as processes inside see it,
    `view` where the host can read it."""

    engine: str
    workspace_path: str
    host_path: Path
    contained = True  # its processes end with the hub by themselves
    captures_processes = False  # its processes are part of what is frozen

    @abstractmethod
    def start_interpreter(
        self, name: str, argv: Sequence[str], *, env: Mapping[str, str]
    ) -> KernelProcess:
        """Start an interpreter. OSError when it cannot be executed."""

    def find_running(self, name: str) -> KernelProcess | None:
        """One that is there already, as after a restore of a machine with its processes."""
        del name
        return None

    def startup_output(self, name: str) -> str:
        """What one that did not start said, where it cannot be read at its streams."""
        del name
        return ""

    def add_snapshot_hooks(
        self,
        check: Callable[[], None],
        disconnect: Callable[[], None],
        reconnect: Callable[[], None],
    ) -> None:
        """To be called before and after what lives here is frozen; `check` well before."""
        del check, disconnect, reconnect

    @abstractmethod
    def kill_kernel(self, pid: int, mark: str, exclude: Collection[int]) -> None:
        """Kill it with all it started, but for other kernels; -1 for one that has ended."""

    @abstractmethod
    def wait_exit_code(self, pid: int) -> int | None:
        """How one that was started here ended; called once. None: nobody knows."""

    # files of their own for forks: what a machine without them refuses

    def host_pid(self, pid: int, pidfd: int) -> int:
        """Under which `end` knows a process that a kernel told of."""
        del pidfd
        return pid

    def capture_files(self, layer: KernelLayer | None = None) -> FilesSnapshot:
        """What the machine's files are now, or those of a fork; for `branching`."""
        del layer
        raise fork_unsupported(self.engine)

    def fork_layers(
        self,
        list_kernel_pids: ListKernelPids,
        snapshot: FilesSnapshot,
        layer: KernelLayer | None = None,
    ) -> AbstractContextManager[ForkLayers]:
        """Files for forks, as they were `seen`. `residents` are the kernels that work on them, and
        can follow; asked for at need.

        What changes there later shows neither in the machine nor in another branch.
        """
        del list_kernel_pids, snapshot, layer
        raise fork_unsupported(self.engine)

    def base_image(self, layer: KernelLayer) -> Oid:
        """The image of the machine that a branch began from."""
        del layer
        raise fork_unsupported(self.engine)

    def check_can_adopt(self, pid: int) -> None:
        """Conflict when a fork has what it cannot take along to the machine's own files."""
        del pid

    def adopt_layer(self, layer: KernelLayer, kernel_pids: Collection[int]) -> int:
        """Make a branch's files those of the machine; returns the machine's root, open."""
        del layer, kernel_pids
        raise fork_unsupported(self.engine)

    def drop_layer(self, layer: KernelLayer) -> None:
        """Let go of a branch and delete its files, or what `take` left of it; once."""
        del layer


Launch = Callable[..., tuple[int, int]]
"""(argv, *, env, fds) -> pid inside and pidfd: starts a program that stays, in the workspace, with
`fds` as its descriptors from 0 on and the right to change its root directory."""


def launch_interpreter(
    launch: Launch, argv: Sequence[str], env: Mapping[str, str]
) -> KernelProcess:
    """Start an interpreter that has its socket and streams from us."""
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
    return Unsupported(
        "no_kernel_fork",
        f"engine {engine!r} cannot give the fork of a kernel files of its own: use a private "
        "workspace with engine='overlay'; `ortet doctor` says whether this host can",
    )


class LocalKernelHost(KernelHost):
    """For machines whose commands run on the host itself."""

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
    """The interpreter for a kernel: the one asked for, the workspace's own, or this one."""
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
