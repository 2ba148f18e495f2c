"""Kernels in a live machine: they listen on a socket inside it, and are dumped with it."""

from __future__ import annotations

import hashlib
import os
import socket
import struct
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ortet.errors import NotFound, OrtetError
from ortet.ids import Oid
from ortet.machines.control.client import InitClient
from ortet.machines.kernels.host import (
    FilesSnapshot,
    ForkLayers,
    KernelChannel,
    KernelHost,
    KernelLayer,
    KernelProcess,
    ListKernelPids,
)
from ortet.machines.standalone.process_tree import kill_run

if TYPE_CHECKING:
    from ortet.machines.kernels.livebranches import LiveKernelLayers

_START_TIMEOUT_SECONDS = 30.0  # until a new interpreter listens
_POLL_SECONDS = 0.005
_REAP_TIMEOUT_SECONDS = 5.0  # until pid 1 has reaped a killed kernel
_NO_MARK = "-"  # matches no run
_CREDENTIALS = struct.Struct("3i")


class LiveKernelHost(KernelHost):
    """A live machine as kernel host.

    `init_client` is called each time, because a restore replaces the machine's pid 1.
    """

    engine = "criu"
    captures_processes = True

    def __init__(
        self,
        init_client: Callable[[], InitClient],
        workspace_path: str,
        host_path: Callable[[], Path],
        layers: LiveKernelLayers,
    ) -> None:
        self._layers = layers
        self.workspace_path = workspace_path
        self._init_client = init_client
        self._host_path = host_path
        self._names_by_pid: dict[int, str] = {}
        self._snapshot_hooks: list[tuple[Callable[[], None], ...]] = []

    @property
    def host_path(self) -> Path:  # type: ignore[override]
        return self._host_path()

    def add_snapshot_hooks(
        self,
        check: Callable[[], None],
        disconnect: Callable[[], None],
        reconnect: Callable[[], None],
    ) -> None:
        self._snapshot_hooks.append((check, disconnect, reconnect))

    def check_snapshot(self) -> None:
        """Raise Conflict if a kernel prevents a snapshot."""
        for check, _, _ in self._snapshot_hooks:
            check()

    @contextmanager
    def disconnected(self) -> Iterator[None]:
        """Close all kernel connections during a snapshot. Raises Conflict if a kernel is busy."""
        with ExitStack() as gone:
            for _, leave, welcome in self._snapshot_hooks:
                leave()
                gone.callback(welcome)
            yield

    def start_interpreter(
        self, name: str, argv: Sequence[str], *, env: Mapping[str, str]
    ) -> KernelProcess:
        given = {**env, "ORTET_KERNEL_AT": f"/{_socket_path(name)}"}
        try:
            job = self._init_client().spawn(
                _job_name(name), argv, env=given, cwd=self.workspace_path
            )
        except NotFound as error:
            raise FileNotFoundError(2, "No such file or directory") from error
        until = time.monotonic() + _START_TIMEOUT_SECONDS
        while time.monotonic() < until and job.wait(0) is None:
            if (entered := self.find_running(name)) is not None:
                return entered
            time.sleep(_POLL_SECONDS)
        raise OSError(0, self.startup_output(name).strip()[-500:] or "it ended without a word")

    def find_running(self, name: str) -> KernelProcess | None:
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.connect(f"/proc/{self._init_client().pid}/root/{_socket_path(name)}")
            size = _CREDENTIALS.size
            told = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
            pid = _CREDENTIALS.unpack(told)[0]
            pidfd = os.pidfd_open(pid)
        except OSError:
            sock.close()
            return None
        self._names_by_pid[pid] = name
        out, their_out = os.pipe()
        err, their_err = os.pipe()
        return KernelProcess(KernelChannel(sock, out, err, [their_out, their_err]), pid, pidfd)

    def startup_output(self, name: str) -> str:
        with suppress(OrtetError):
            job = self._init_client().job(_job_name(name))
            return job.logs().decode("utf-8", "replace")
        return ""

    def host_pid(self, pid: int, pidfd: int) -> int:
        """Return the pid on the host; the kernel reports its pid inside the machine."""
        del pid
        with open(f"/proc/self/fdinfo/{pidfd}", encoding="ascii") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("Pid:"))

    def kill_kernel(self, pid: int, mark: str, exclude: Collection[int]) -> None:
        """Kill a kernel from outside the machine.

        Pid 1 would also kill its forks, as processes that the kernel started.
        """
        kill_run(mark or _NO_MARK, pid, exclude)
        name = self._names_by_pid.pop(pid, None)
        with suppress(OrtetError):  # a fork that replaced its parent is not a job
            if name is not None:
                self._init_client().job(_job_name(name)).wait(_REAP_TIMEOUT_SECONDS)

    # layers for forks

    def capture_files(self, layer: KernelLayer | None = None) -> FilesSnapshot:
        return self._layers.capture_files(layer)

    def fork_layers(
        self,
        list_kernel_pids: ListKernelPids,
        snapshot: FilesSnapshot,
        layer: KernelLayer | None = None,
    ) -> AbstractContextManager[ForkLayers]:
        return self._layers.fork_layers(list_kernel_pids, snapshot, layer)

    def base_image(self, layer: KernelLayer) -> Oid:
        return self._layers.base_image(layer)

    def check_can_adopt(self, pid: int) -> None:
        self._layers.check_can_adopt(pid)

    def adopt_layer(self, layer: KernelLayer, kernel_pids: Collection[int]) -> int:
        return self._layers.adopt_layer(layer, kernel_pids)

    def drop_layer(self, layer: KernelLayer) -> None:
        self._layers.drop_layer(layer)

    def wait_exit_code(self, pid: int) -> int | None:
        del pid
        return None


def _job_name(name: str) -> str:
    return f"kernel {name}"


def _socket_path(name: str) -> str:
    """Return the socket path of a kernel; a hash keeps it within the length limit of sockets."""
    return f"run/ortet/kernel-{hashlib.sha256(name.encode()).hexdigest()[:16]}.sock"
