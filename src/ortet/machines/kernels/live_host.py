"""Kernels in a live machine: they listen on a socket inside it, and are dumped with it."""

from __future__ import annotations

import hashlib
import os
import socket
import stat
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
from ortet.machines.kernels.host import (
    FilesSnapshot,
    ForkLayers,
    KernelChannel,
    KernelHost,
    KernelLayer,
    KernelProcess,
    ListKernelPids,
)
from ortet.machines.live.context import LiveEngineContext
from ortet.machines.live.liveruns import LiveCommands
from ortet.machines.overlay.ignored_files import add_ignored_layer
from ortet.machines.overlay.layers import LayerStack
from ortet.machines.standalone.process_tree import kill_run
from ortet.objects.base import Kind

# Finds processes of a machine that use mounts other than the machine's own.
#
# They are kernel forks, or were started by one. CRIU finds files by the mounts of the machine, so
# it
# cannot dump such processes.

_MOUNT_ID_FIELD = b"mnt_id:"


def mount_ids_of(pid: int) -> set[int]:
    """Return the ids of all mounts that a process sees; it must not be a kernel fork."""
    with open(f"/proc/{pid}/mountinfo", "rb") as file:
        return {int(line.split(None, 1)[0]) for line in file}


def mount_id_at(path: str) -> int:
    """Return the id of the mount that a path is on, or -1 if it cannot be opened."""
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        return mount_id_of(fd)
    finally:
        os.close(fd)


def mount_id_of(fd: int) -> int:
    """Return the id of the mount that an open descriptor is on."""
    return _read_mount_id(f"/proc/self/fdinfo/{fd}")


def processes_rooted_at(root: int, exclude: Collection[int]) -> list[str]:
    """Return the processes whose root directory is the open directory `root`."""
    there = mount_id_of(root)
    found = []
    for name in os.listdir("/proc"):
        if (
            name.isdigit()
            and int(name) not in exclude
            and mount_id_at(f"/proc/{name}/root") == there
        ):
            with suppress(OSError), open(f"/proc/{name}/comm", encoding="utf-8") as file:
                found.append(f"{file.read().strip()} (pid {name})")
    return found


def foreign_files(pid: int, init_pid: int) -> list[str]:
    """Return files of other mounts that a process holds and cannot open again by name.

    These are mapped files, such as libraries, and deleted files. The machine's own mounts are those
    of its pid 1, `init_pid`.
    """
    known = mount_ids_of(init_pid)
    return sorted({*_foreign_mapped_files(pid, known), *_foreign_deleted_files(pid, known)})


def _foreign_mapped_files(pid: int, own_mounts: set[int]) -> Iterator[str]:
    place = f"/proc/{pid}/map_files"
    seen: set[str] = set()
    for name in os.listdir(place):
        with suppress(OSError):
            path = os.readlink(f"{place}/{name}")
            if path not in seen:
                seen.add(path)
                if mount_id_at(f"{place}/{name}") not in own_mounts | {-1} and not path.startswith(
                    "/dev/"
                ):
                    yield path


def _foreign_deleted_files(pid: int, own_mounts: set[int]) -> Iterator[str]:
    place = f"/proc/{pid}/fd"
    for name in os.listdir(place):
        with suppress(OSError):
            path, now = os.readlink(f"{place}/{name}"), os.stat(f"{place}/{name}")
            kind = stat.S_ISREG(now.st_mode) or stat.S_ISDIR(now.st_mode)
            gone = path.startswith("/") and now.st_nlink == 0
            if kind and gone and _read_mount_id(f"/proc/{pid}/fdinfo/{name}") not in own_mounts:
                yield path


def _read_mount_id(path: str) -> int:
    with open(path, "rb") as file:
        return next((int(line.split()[1]) for line in file if line.startswith(_MOUNT_ID_FIELD)), -1)


# File layers for kernel forks in a live machine.


class LiveKernelLayers(LiveCommands):
    """The part of a live machine that provides layers for kernel forks.

    The machine's own mounts never change, because CRIU must find them as its processes hold them.
    So the layers of a fork are written from the store, and the files of an adopted fork are written
    back.
    """

    _context: LiveEngineContext

    def snapshot_files(self) -> Oid:
        return self._context.objects.put(Kind.IMAGE, encode(self._current_image()))

    def capture_files(self, layer: KernelLayer | None = None) -> FilesSnapshot:
        if layer is not None:
            return super().capture_files(layer)
        image = replace(self._current_image(), services=b"", processes=b"")
        return self._context.objects.put(Kind.IMAGE, encode(image)), image

    def adopt_layer(self, layer: KernelLayer, kernel_pids: Collection[int]) -> int:
        del kernel_pids
        image = self.capture_files(layer)[1]
        current = self._current_image()
        self._restore_files(current, replace(current, root=image.root, links=image.links), None)
        flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
        return os.open(f"/proc/{self._live_process.pid}/root", flags)

    def check_can_adopt(self, pid: int) -> None:
        if left := foreign_files(pid, self._live_process.pid):
            raise Conflict(
                "files_stuck",
                f"a fork that loaded {', '.join(left[:5])} cannot become part of this machine's "
                "image: import it before you fork, or close what was deleted",
                files=left,
            )

    # internals

    def _frozen_layers(self, list_kernel_pids: ListKernelPids, image: Image) -> LayerStack:
        del list_kernel_pids
        stack = self._layout.stack
        if stack.image == replace(image, system=None) and not self._layout.ignoring:
            return stack
        stack = self._context.layer_store.ensure_stack(image, stack)[0]
        return add_ignored_layer(self._context, stack, self._ignored_files())[0]

    def _other_users(
        self, kernel_pids: Collection[int], layer: KernelLayer | None = None
    ) -> list[str]:
        return [] if layer is None else processes_rooted_at(layer.root, kernel_pids)

    def _mount_layer(self, stack: LayerStack, upper: str, work: str) -> tuple[int, int]:
        ground = self._context
        plan = {
            "place": self.workspace_path,
            "root": "",
            "held": ground.mount_sources(self._home),
            "steps": [{"do": "hold", "at": str(ground.layer_store.area / "hold"), "host": True}],
            "workspace": ground.mount_options(stack, upper, work),
        }
        try:
            return ground.supervisor.clone_mounts(self._live_process.pid, plan)
        except Unsupported as error:
            raise Unavailable(
                "mount_refused",
                f"the kernel refused layers for a fork ({error}); the machine is as it was",
            ) from error


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
