"""The Guard of a live machine: begins it, fresh or from a dump, and asks its pid 1."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ortet.errors import OrtetError, Unavailable
from ortet.machines.control.client import InitClient
from ortet.machines.live.cgroups import MachineCgroup
from ortet.machines.live.criu.connections import has_connections
from ortet.machines.live.criu.errors import restore_error
from ortet.machines.live.criu.file_locks import LockRestorer
from ortet.machines.live.criu.rpc import CriuError, CriuWorker
from ortet.machines.live.network.slirp import OutboundNetwork
from ortet.machines.live.supervisor_client import StartingProcess, SupervisorClient
from ortet.machines.overlay.mount_plan import parse_mounts
from ortet.machines.overlay.supervisor_client import wait_readable
from ortet.machines.standalone.live_supervisor import NETWORK_FD

LAZY_PAGES_MIN_BYTES = 64 << 20
"""Bytes of memory from which on processes begin before all of it is there."""

_LAZY_PAGES_SOCKET = "lazy-pages.socket"
_PAGER_TIMEOUT_SECONDS = 30.0
_CRIU_MOUNT_TYPES = frozenset(("proc", "devpts", "sysfs", "mqueue"))


class LiveMachineProcess:
    """`begin` waits until the machine's pid 1 can be asked, and returns its pid; `group` has it
    within its limits, `outlet` is its way out, begun in the network of process `host`."""

    def __init__(
        self,
        start_init: Callable[[], int],
        workspace_path: str,
        *,
        cgroup: MachineCgroup,
        outbound: OutboundNetwork,
        network_pid: int,
    ) -> None:
        self.pid = 0
        self.cgroup = cgroup
        self.outbound = outbound
        self._network_pid = network_pid
        self._workspace_path = workspace_path
        self.external_mounts: list[str] = []
        """Mount points inside that CRIU must be handed when it restores."""
        self._start_init = start_init
        self._is_started = False
        self._pidfd = -1
        self._pager_pidfd = -1
        self._init_client: InitClient | None = None

    def ready(self) -> None:
        if self._init_client is not None:
            return
        self._is_started = True
        self.outbound.wait_ready(self._network_pid)  # before anything runs that counts on it
        self.pid = self._start_init()
        self._pidfd = os.pidfd_open(self.pid)
        self.outbound.attach_to_machine(self.pid, self._pidfd)
        self.cgroup.drop_criu_headroom()
        mounts = parse_mounts(Path(f"/proc/{self.pid}/mountinfo").read_bytes())
        self.external_mounts = [
            m.at for m in mounts if m.at != "/" and m.kind not in _CRIU_MOUNT_TYPES
        ]
        self._init_client = InitClient(self.pid)
        self._init_client.reconnect()  # one that was restored was frozen with its door closed

    def describe_process(self, pid: int) -> str:
        """Which process has this number inside."""
        with suppress(OSError):
            line = Path(f"/proc/{self.pid}/root/proc/{pid}/cmdline").read_bytes()
            return f"process {pid} ({os.fsdecode(line.replace(bytes(1), b' '))[:80].strip()})"
        return f"process {pid}"

    @property
    def init_client(self) -> InitClient:
        assert self._init_client is not None
        return self._init_client

    def ask(
        self, message: dict[str, Any], fds: Sequence[int] = ()
    ) -> tuple[dict[str, Any], list[int]]:
        del fds
        if message["do"] == "unmount":  # its pid 1 is no more than a program in it
            return {"done": False}, []
        return self.init_client.ask({**message, "place": self._workspace_path}), []

    def attach_pager(self, pager_pid: int, socket_path: Path) -> None:
        """Its memory comes from this process, once that listens."""
        self._pager_pidfd = os.pidfd_open(pager_pid)
        until = time.monotonic() + _PAGER_TIMEOUT_SECONDS
        while not socket_path.exists():
            if wait_readable(self._pager_pidfd, 1) or time.monotonic() > until:
                raise Unavailable("no_pager", "CRIU's pager did not start: try again")

    def wait_for_memory(self) -> None:
        """Wait until all its memory is there: a dump before that would silently lose the rest."""
        if self._pager_pidfd >= 0:
            wait_readable(self._pager_pidfd, None)
            os.close(self._pager_pidfd)
            self._pager_pidfd = -1

    def close(self) -> None:
        """Kill all of it, and wait until its mounts are released."""
        if not self._is_started:
            with suppress(OrtetError):
                self.ready()
        if self._init_client is not None:
            self._init_client.close()
        if self._pidfd >= 0:
            _kill_init(self._pidfd)
            self._pidfd = -1
        if self._pager_pidfd >= 0:  # without its processes it has nothing to do
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pager_pidfd, signal.SIGKILL)
            os.close(self._pager_pidfd)
            self._pager_pidfd = -1
        self.outbound.close()
        self.cgroup.close()


def start(
    starting: StartingProcess,
    workspace_path: str,
    *,
    cgroup: MachineCgroup,
    outbound: OutboundNetwork,
) -> LiveMachineProcess:
    """A machine whose pid 1 begins now; `place` is its workspace, as it sees it."""

    def begin() -> int:
        starting.wait()
        return starting.pid

    outbound.start(starting.pid)
    return LiveMachineProcess(
        begin, workspace_path, cgroup=cgroup, outbound=outbound, network_pid=starting.pid
    )


def restore(
    worker: CriuWorker,
    images: Path,
    workspace_path: str,
    *,
    cgroup: MachineCgroup,
    outbound: OutboundNetwork,
    work_dir: Path,
    root: Path,
    mounts: Sequence[str],
    supervisor: SupervisorClient,
) -> LiveMachineProcess:
    """A machine that goes on from a dump, with mounts that `worker` finds below `root`. Much memory
    comes later, from a pager."""
    external = [f"mnt[{at}]:{root}{at}" for at in mounts]

    def begin() -> int:
        locks, hushed = LockRestorer(images), has_connections(images, include_closed=True)
        lazy = dump_memory_bytes(images) >= LAZY_PAGES_MIN_BYTES
        if lazy:
            guard.attach_pager(
                supervisor.start_pager(images, work_dir), work_dir / _LAZY_PAGES_SOCKET
            )

        def restored(pid: int) -> None:
            if hushed:
                supervisor.set_network_blocked(pid, blocked=False)
            locks.stop_processes(pid)

        try:
            if hushed:
                supervisor.set_network_blocked(worker.pid, blocked=True)
            pid = worker.restore(
                images,
                work_dir,
                root=root,
                external=external,
                network_fd=NETWORK_FD,
                lazy_pages=lazy,
                on_restored=restored if locks.is_needed or hushed else None,
            )
        except CriuError as failed:
            raise restore_error(failed) from failed
        try:
            locks.reacquire()
        except BaseException:  # without its locks it would do harm
            _kill_init(os.pidfd_open(pid))
            raise
        return pid

    outbound.start(worker.pid)
    guard = LiveMachineProcess(
        begin, workspace_path, cgroup=cgroup, outbound=outbound, network_pid=worker.pid
    )
    return guard


def _kill_init(pidfd: int) -> None:
    """Kill a pid 1, and wait for it: all others of its machine end before it does."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    wait_readable(pidfd, None)
    os.close(pidfd)


def dump_memory_bytes(images: Path) -> int:
    """Bytes of memory in a dump."""
    return sum(file.stat().st_size for file in images.glob("pages-*.img"))
