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

from msgspec.structs import replace

from ortet._util.codec import encode
from ortet.errors import Conflict, NotFound, OrtetError, Unavailable, Unsupported
from ortet.history.records import Image
from ortet.ids import Oid
from ortet.machines.control.client import InitClient
from ortet.machines.kernel_host import (
    FilesSnapshot,
    ForkLayers,
    KernelChannel,
    KernelHost,
    KernelLayer,
    KernelProcess,
    ListKernelPids,
)
from ortet.machines.live.criu.preflight import foreign_files, processes_rooted_at
from ortet.machines.live.supervisor_client import SupervisorClient
from ortet.machines.overlay.files import OverlayFiles
from ortet.machines.overlay.ignored_files import add_ignored_layer
from ortet.machines.overlay.kernel_host import KernelLayers
from ortet.machines.overlay.layers.store import LayerStack
from ortet.machines.standalone.process_tree import kill_run
from ortet.objects.base import Kind

_START_TIMEOUT_SECONDS = 30.0  # until a new interpreter listens
_POLL_SECONDS = 0.005
_REAP_TIMEOUT_SECONDS = 5.0  # until pid 1 has reaped a killed kernel
_NO_MARK = "-"  # matches no run
_CREDENTIALS = struct.Struct("3i")


class LiveKernelHost(KernelHost):
    """The kernels of a live machine.

    `init_client` is called each time, because a restore replaces the machine's pid 1.
    `current_image` captures the files of the machine.
    """

    engine = "criu"
    captures_processes = True

    def __init__(
        self,
        files: OverlayFiles,
        supervisor: SupervisorClient,
        *,
        init_client: Callable[[], InitClient],
        current_image: Callable[[], Image],
    ) -> None:
        self.workspace_path = str(files.spec.path)
        self._files = files
        self._layers = KernelLayers(files, LiveLayerMounts(files, supervisor))
        self._init_client = init_client
        self._current_image = current_image
        self._names_by_pid: dict[int, str] = {}
        self._snapshot_hooks: list[tuple[Callable[[], None], ...]] = []

    @property
    def host_path(self) -> Path:
        return self._files.path

    def close(self) -> None:
        """Release the layers of all forks."""
        self._layers.close()

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
        environ = {**env, "ORTET_KERNEL_AT": f"/{_socket_path(name)}"}
        try:
            job = self._init_client().spawn(
                _job_name(name), argv, env=environ, cwd=self.workspace_path
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
            credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
            pid = _CREDENTIALS.unpack(credentials)[0]
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

    def wait_exit_code(self, pid: int) -> int | None:
        del pid
        return None

    # layers for forks

    def capture_files(self, layer: KernelLayer | None = None) -> FilesSnapshot:
        if layer is not None:
            return self._layers.capture(layer)
        image = replace(self._current_image(), services=b"", processes=b"")
        return self._files.context.objects.put(Kind.IMAGE, encode(image)), image

    def fork_layers(
        self,
        list_kernel_pids: ListKernelPids,
        snapshot: FilesSnapshot,
        layer: KernelLayer | None = None,
    ) -> AbstractContextManager[ForkLayers]:
        return self._layers.fork_layers(list_kernel_pids, snapshot, layer)

    def base_image(self, layer: KernelLayer) -> Oid:
        return self._layers.origin(layer).basis

    def check_can_adopt(self, pid: int) -> None:
        if left := foreign_files(pid, self._files.process.pid):
            raise Conflict(
                "files_stuck",
                f"a fork that loaded {', '.join(left[:5])} cannot become part of this machine's "
                "image: import it before you fork, or close what was deleted",
                files=left,
            )

    def adopt_layer(self, layer: KernelLayer, kernel_pids: Collection[int]) -> int:
        """Write the files of a fork into the machine: its mounts must stay as CRIU knows them."""
        del kernel_pids
        image = self._layers.capture(layer)[1]
        current = self._current_image()
        self._files.restore(current, replace(current, root=image.root, links=image.links), None)
        flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
        return os.open(f"/proc/{self._files.process.pid}/root", flags)

    def drop_layer(self, layer: KernelLayer) -> None:
        self._layers.drop(layer)


class LiveLayerMounts:
    """Mounts layers for kernel forks beside a live machine.

    The machine's own mounts never change, because CRIU must find them as its processes hold them.
    So the layers of a fork are written from the store.
    """

    def __init__(self, files: OverlayFiles, supervisor: SupervisorClient) -> None:
        self._files = files
        self._context = files.context
        self._supervisor = supervisor

    def freeze(self, list_kernel_pids: ListKernelPids, image: Image) -> LayerStack:
        del list_kernel_pids
        stack = self._files.layout.stack
        if stack.image == replace(image, system=None) and not self._files.layout.ignoring:
            return stack
        stack = self._context.layer_store.ensure_stack(image, stack)[0]
        return add_ignored_layer(self._context, stack, self._files.ignored_files())[0]

    def mount(self, stack: LayerStack, upper: str, work: str) -> tuple[int, int]:
        context = self._context
        plan = {
            "place": str(self._files.spec.path),
            "root": "",
            "held": context.mount_sources(self._files.home),
            "steps": [{"do": "hold", "at": str(context.layer_store.area / "hold"), "host": True}],
            "workspace": context.mount_options(stack, upper, work),
        }
        try:
            return self._supervisor.clone_mounts(self._files.process.pid, plan)
        except Unsupported as error:
            raise Unavailable(
                "mount_refused",
                f"the kernel refused layers for a fork ({error}); the machine is as it was",
            ) from error

    def other_users(self, kernel_pids: Collection[int], layer: KernelLayer) -> list[str]:
        return processes_rooted_at(layer.root, kernel_pids)


def _job_name(name: str) -> str:
    return f"kernel {name}"


def _socket_path(name: str) -> str:
    """Return the socket path of a kernel; a hash keeps it within the length limit of sockets."""
    return f"run/ortet/kernel-{hashlib.sha256(name.encode()).hexdigest()[:16]}.sock"
