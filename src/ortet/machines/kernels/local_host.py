"""Starts kernels: interpreters on this host, and the sockets and pipes to any interpreter."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ortet.errors import Invalid, Unavailable, Unsupported
from ortet.machines.kernel_host import KernelChannel, KernelHost, KernelProcess
from ortet.machines.standalone.process_tree import kill_run

KERNEL_FD_COUNT = 4
"""Number of descriptors of a kernel: stdin, stdout, stderr, and its control socket."""

VENV_DIRECTORIES = (".venv", "venv")

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


class LocalKernelHost(KernelHost):
    """Kernels of machines whose commands run directly on the host."""

    contained = False

    def __init__(self, engine: str, workspace_path: Path) -> None:
        self.engine = engine
        self.workspace_path = str(workspace_path)
        self._host_path = workspace_path
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def host_path(self) -> Path:
        return self._host_path

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
    opened: list[int] = []
    try:
        for _ in range(2):
            opened += os.pipe()
    except BaseException:
        for fd in opened:
            os.close(fd)
        ours.close()
        theirs.close()
        raise
    out, their_out, err, their_err = opened
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
