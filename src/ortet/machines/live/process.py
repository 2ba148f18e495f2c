"""The process tree of a live machine: starts pid 1, fresh or from a dump, and talks to it."""

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
from ortet.machines.standalone.ipc import NETWORK_FD
from ortet.machines.standalone.syscalls import CRIU_MOUNT_TYPES

LAZY_PAGES_MIN_BYTES = 64 << 20
"""Minimum size of a dump from which processes start before all of their memory is loaded."""

_LAZY_PAGES_SOCKET = "lazy-pages.socket"
_PAGER_TIMEOUT_SECONDS = 30.0


class LiveMachineProcess:
    """The running processes of a live machine.

    `start_init` blocks until the machine's pid 1 answers, and returns its pid. `cgroup` limits the
    machine. `outbound` is its outbound network, started in the network namespace of `network_pid`.
    """

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
        """Mount points inside the machine that CRIU must be given at a restore."""
        self._start_init = start_init
        self._is_started = False
        self._pidfd = -1
        self._pager_pidfd = -1
        self._init_client: InitClient | None = None

    def ready(self) -> None:
        """Wait until the machine runs and its pid 1 answers."""
        if self._init_client is not None:
            return
        self._is_started = True
        self.outbound.wait_ready(self._network_pid)  # before any program runs that uses the network
        self.pid = self._start_init()
        self._pidfd = os.pidfd_open(self.pid)
        self.outbound.attach_to_machine(self.pid, self._pidfd)
        self.cgroup.drop_criu_headroom()
        mounts = parse_mounts(Path(f"/proc/{self.pid}/mountinfo").read_bytes())
        self.external_mounts = [
            m.at for m in mounts if m.at != "/" and m.kind not in CRIU_MOUNT_TYPES
        ]
        self._init_client = InitClient(self.pid)
        self._init_client.reconnect()  # a restored pid 1 was dumped without a listening socket

    def describe_process(self, pid: int) -> str:
        """Return a description of the process that has this pid inside the machine."""
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
        """Send a request of the overlay supervisor's protocol to pid 1."""
        del fds
        if message["do"] == "unmount":  # pid 1 of a live machine may not change mounts
            return {"done": False}, []
        return self.init_client.ask({**message, "place": self._workspace_path}), []

    def attach_pager(self, pager_pid: int, socket_path: Path) -> None:
        """Load the machine's memory lazily from a CRIU pager process.

        Waits until the pager listens at `socket_path`. Raises Unavailable("no_pager") if it does
        not.
        """
        self._pager_pidfd = os.pidfd_open(pager_pid)
        until = time.monotonic() + _PAGER_TIMEOUT_SECONDS
        while not socket_path.exists():
            if wait_readable(self._pager_pidfd, 1) or time.monotonic() > until:
                raise Unavailable("no_pager", "CRIU's pager did not start: try again")

    def wait_for_memory(self) -> None:
        """Wait until all memory is loaded: an earlier dump would silently lose the rest."""
        if self._pager_pidfd >= 0:
            wait_readable(self._pager_pidfd, None)
            os.close(self._pager_pidfd)
            self._pager_pidfd = -1

    def close(self) -> None:
        """Kill all processes of the machine, and wait until its mounts are released."""
        if not self._is_started:
            with suppress(OrtetError):
                self.ready()
        if self._init_client is not None:
            self._init_client.close()
        if self._pidfd >= 0:
            _kill_init(self._pidfd)
            self._pidfd = -1
        if self._pager_pidfd >= 0:  # without its processes the pager has no work
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
    """Start a machine whose pid 1 is a fresh program.

    `workspace_path` is the path of the workspace inside the machine.
    """

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
    """Start a machine from a dump.

    `worker` is a CRIU that finds the mounts of the machine below `root`. A large dump is restored
    before its memory is loaded; a pager process loads the memory later.
    """
    external = [f"mnt[{at}]:{root}{at}" for at in mounts]

    def begin() -> int:
        locks, blocks_network = LockRestorer(images), has_connections(images, include_closed=True)
        lazy = dump_memory_bytes(images) >= LAZY_PAGES_MIN_BYTES
        if lazy:
            machine_process.attach_pager(
                supervisor.start_pager(images, work_dir), work_dir / _LAZY_PAGES_SOCKET
            )

        def restored(pid: int) -> None:
            if blocks_network:
                supervisor.set_network_blocked(pid, blocked=False)
            locks.stop_processes(pid)

        try:
            if blocks_network:
                supervisor.set_network_blocked(worker.pid, blocked=True)
            pid = worker.restore(
                images,
                work_dir,
                root=root,
                external=external,
                network_fd=NETWORK_FD,
                lazy_pages=lazy,
                on_restored=restored if locks.is_needed or blocks_network else None,
            )
        except CriuError as failed:
            raise restore_error(failed) from failed
        try:
            locks.reacquire()
        except BaseException:  # without its file locks the machine could damage data
            _kill_init(os.pidfd_open(pid))
            raise
        return pid

    outbound.start(worker.pid)
    machine_process = LiveMachineProcess(
        begin, workspace_path, cgroup=cgroup, outbound=outbound, network_pid=worker.pid
    )
    return machine_process


def _kill_init(pidfd: int) -> None:
    """Kill a pid 1 and wait for its end.

    The kernel ends all other processes of the machine first.
    """
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    wait_readable(pidfd, None)
    os.close(pidfd)


def dump_memory_bytes(images: Path) -> int:
    """Return the size of the memory pages in a dump, in bytes."""
    return sum(file.stat().st_size for file in images.glob("pages-*.img"))
