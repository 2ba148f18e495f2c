"""Client of the live supervisor: the helper process that forks machines and CRIU."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any

from ortet.errors import OrtetError, Unavailable, Unsupported
from ortet.machines.command import environ_without_vault_key
from ortet.machines.control.connection import machine_gone
from ortet.machines.live.cgroups import CgroupFactory
from ortet.machines.live.criu.rpc import CriuWorker
from ortet.machines.live.criu.worker_pool import (
    ReservedCgroups,
    SpareCriu,
    SpareCriuPool,
    read_mountinfo,
)
from ortet.machines.standalone import ipc

READY = b"\n"
"""Bytes that pid 1 of a machine writes when it is ready for requests."""

_START_TIMEOUT_SECONDS = 30.0  # a start takes milliseconds, but longer on a host that swaps
_INIT_PROGRAM = str(Path(__file__).parents[1] / "standalone" / "init.py")
_READ_BYTES = 1 << 16
_RETRYABLE_REQUESTS = ("start", "spare")  # requests that do not depend on earlier ones


class SupervisorClient:
    """Connection to one supervisor process, which is started at first use.

    The supervisor ends with this object or with this process, and all its machines end with it.
    """

    def __init__(self, criu: str, area: Path, cgroups: CgroupFactory) -> None:
        self._criu = criu
        self._area = area
        self._sock: socket.socket | None = None
        self._finalizer: Callable[[], object] = lambda: None
        self._lock = Lock()
        self._spares = SpareCriuPool()
        self._reserved_cgroups = ReservedCgroups(cgroups, area)

    def start_machine(
        self, plan: dict[str, Any], hostname: str, cgroup_paths: Sequence[str] = ()
    ) -> StartingProcess:
        """Start a machine with the mounts of `plan`, in the given control groups.

        Its pid 1 is `standalone/init.py`, a program inside the machine.
        """
        # -B: bytecode files would change the machine's system
        argv = [os.path.realpath(sys.executable), "-I", "-S", "-B", _INIT_PROGRAM]
        env = {"PATH": os.defpath, "LANG": "C.UTF-8"}
        request = {"do": "start", "plan": plan, "hostname": hostname, "argv": argv, "env": env}
        request["groups"] = list(cgroup_paths)
        return self._start_process(request, [])

    def start_dump_worker(self, pid: int) -> CriuWorker:
        """Start a CRIU worker that can dump the machine whose pid 1 is `pid`."""
        with _open_network_namespace(pid) as net:
            return self._start_criu_worker({"do": "worker"}, [net])

    def take_spare(self) -> SpareCriu:
        """Return a CRIU process that is ready to restore a machine."""
        return self._spares.acquire() or self._start_spare()

    def prepare_restore_worker(
        self, spare: SpareCriu, plan: dict[str, Any], cgroup_paths: Sequence[str] = ()
    ) -> CriuWorker:
        """Turn a spare CRIU into a worker that restores one machine.

        The mounts of `plan` are made concurrently. The worker joins the control groups of the
        machine.
        """
        join = [group for group in cgroup_paths if group != spare.cgroup]
        with spare.open_mount_namespace() as space:
            request = {"do": "fit", "pid": spare.pid, "plan": plan, "groups": join}
            fitting = self._start_process(request, [space])
        self._reserved_cgroups.assign(spare.cgroup)
        return CriuWorker(spare.sock, fitting.wait, fitting.close, pid=spare.pid)

    def set_network_blocked(self, pid: int, *, blocked: bool) -> None:
        """Stop all outgoing packets in the network namespace of `pid`, or let them pass again."""
        with suppress(FileNotFoundError), _open_network_namespace(pid) as net:
            self._start_process({"do": "hush", "on": blocked}, [net]).wait()

    @contextmanager
    def network_blocked(self, pid: int) -> Iterator[None]:
        """Block outgoing packets in the network namespace of `pid` during the block."""
        self.set_network_blocked(pid, blocked=True)
        try:
            yield
        finally:
            self.set_network_blocked(pid, blocked=False)

    def refill_spares(self) -> None:
        """Start spare CRIU processes for the next restores.

        Starting one takes as long as a small restore.
        """
        with suppress(OrtetError):
            self._spares.fill(self._start_spare)

    def _start_spare(self) -> SpareCriu:
        mounts, group = read_mountinfo(), self._reserved_cgroups.create()
        request = {"do": "spare", "groups": [group] if group else []}
        try:
            sock, starting = self._start_criu(request, [])
        except BaseException:
            self._reserved_cgroups.abandon(group)
            raise

        def ended() -> None:
            starting.close()
            self._reserved_cgroups.abandon(group)

        return SpareCriu(sock, starting.pid, mounts, group, starting.wait, ended)

    def start_pager(self, images: Path, work_dir: Path) -> int:
        """Start a CRIU pager, which loads the memory of a dump into running processes.

        The pager ends when all memory is loaded. Returns its pid.
        """
        request = {"do": "pager", "images": str(images), "work": str(work_dir)}
        starting = self._start_process(request, [])
        starting.wait()
        return starting.pid

    def start_port_forwarder(self, pid: int, port: int, listener: socket.socket) -> int:
        """Forward connections on a host socket to a port of a machine.

        Returns the pid of the forwarding process.
        """
        try:
            machine = os.pidfd_open(pid)
        except ProcessLookupError as error:
            raise machine_gone() from error
        try:
            with _open_network_namespace(pid) as net:
                request = {"do": "porter", "port": port}
                starting = self._start_process(request, [listener.fileno(), net, machine])
            starting.wait()
            return starting.pid
        except FileNotFoundError as error:  # the machine was killed in between
            raise machine_gone() from error
        finally:
            os.close(machine)

    def start_outbound_network(self, pid: int, argv: Sequence[str], log: int) -> StartingProcess:
        """Start a program that connects the network namespace of `pid` to the outside.

        See `OutboundNetwork` in `network/slirp.py`.
        """
        with _open_network_namespace(pid) as net:
            return self._start_process({"do": "outlet", "argv": list(argv)}, [net, log])

    def set_fallback_address(self, pid: int, *, on: bool) -> None:
        """Assign the outbound address to loopback, or remove it again.

        Loopback holds the address while the machine has no outbound network.
        """
        with _open_network_namespace(pid) as net:
            self._start_process({"do": "stand", "on": on}, [net]).wait()

    def kill_with_machine(self, machine_pidfd: int, other_pidfd: int) -> None:
        """Have the supervisor kill a process when a machine ends, even if this hub does nothing.

        Both processes are given as pidfds.
        """
        self._ask({"do": "tie"}, [machine_pidfd, other_pidfd])

    def clone_mounts(self, pid: int, plan: dict[str, Any]) -> tuple[int, int]:
        """Copy the mount namespace of the machine whose pid 1 is `pid`, with another workspace.

        Returns open descriptors of the copy's root directory and of its mount namespace.
        """
        machine = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        ours, theirs = socket.socketpair()
        with ours:
            try:
                with theirs:
                    starting = self._start_process(
                        {"do": "branch", "plan": plan}, [theirs.fileno(), machine]
                    )
            finally:
                os.close(machine)
            starting.wait()
            try:
                root, namespace = ipc.receive(ours)[1]
            except ipc.ConnectionClosed as error:
                raise machine_refused("it ended without a word") from error
            return root, namespace

    def close(self) -> None:
        """Stop the supervisor and with it all machines; a later request starts a new one."""
        self._spares.close()
        self._sock = None
        self._finalizer()
        self._reserved_cgroups.close()

    # internals

    def _start_criu_worker(self, request: dict[str, Any], fds: list[int]) -> CriuWorker:
        sock, starting = self._start_criu(request, fds)
        return CriuWorker(sock, starting.wait, starting.close)

    def _start_criu(
        self, request: dict[str, Any], fds: list[int]
    ) -> tuple[socket.socket, StartingProcess]:
        # CRIU resolves descriptors in a request against the process that created the socket: this
        # one.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                return ours, self._start_process(request, [theirs.fileno(), *fds])
        except BaseException:
            ours.close()
            raise

    def _start_process(self, request: dict[str, Any], fds: Sequence[int]) -> StartingProcess:
        result, result_writer = os.pipe2(os.O_CLOEXEC)
        try:
            reply = self._ask(request, [*fds, result_writer])
        except BaseException:
            os.close(result)
            raise
        finally:
            os.close(result_writer)
        if "error" in reply:
            os.close(result)
            raise machine_refused(reply["error"])
        return StartingProcess(reply["pid"], result)

    def _ask(self, request: dict[str, Any], fds: Sequence[int]) -> dict[str, Any]:
        """Send a request to the supervisor and return its reply.

        A supervisor that was killed is started again for requests that do not need its old
        machines.
        """
        with self._lock:
            for last in (False, True):
                try:
                    sock = self._connect()
                    ipc.send(sock, request, fds)
                    return ipc.receive(sock)[0]
                except ipc.ConnectionClosed as error:
                    dead = self._supervisor_died()
                    if last or request["do"] not in _RETRYABLE_REQUESTS:
                        raise dead from error
        raise AssertionError("not reached")

    def _connect(self) -> socket.socket:
        if self._sock is not None:
            return self._sock
        for name in ("root", "hold"):
            (self._area / name).mkdir(parents=True, exist_ok=True)
        ours, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            program = str(Path(__file__).parents[1] / "standalone" / "live_supervisor.py")
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", program, str(number), self._criu, str(self._area)],
                pass_fds=[number],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=environ_without_vault_key(),
                start_new_session=True,
            )
        self._sock, self._finalizer = ours, weakref.finalize(self, _stop_supervisor, ours, process)
        try:
            ours.settimeout(_START_TIMEOUT_SECONDS)
            ipc.receive(ours)
            ours.settimeout(None)
        except (ipc.ConnectionClosed, TimeoutError) as error:
            raise self._supervisor_died() from error
        return ours

    def _supervisor_died(self) -> OrtetError:
        self.close()
        return Unavailable(
            "no_keeper",
            "the process that keeps this hub's live machines has ended, and they with it: open "
            "them again from their last commits",
        )


class StartingProcess:
    """A process that the supervisor has forked, and that has not started its program yet."""

    def __init__(self, pid: int, status_fd: int) -> None:
        self.pid = pid
        self._status_fd = status_fd

    def wait(self) -> None:
        """Wait until the process runs its own program.

        Raises Unsupported("machine_refused"), with the reason, if it could not start.
        """
        status = self.read_status()
        if status not in (b"", READY):
            raise machine_refused(status.decode(errors="replace"))

    def read_status(self, expected: bytes = READY) -> bytes:
        """Return what the process reports until it has started.

        That is `expected` or nothing on success, otherwise the error text.
        """
        if self._status_fd < 0:
            return b""
        received = b""
        try:
            while part := os.read(self._status_fd, _READ_BYTES):
                received += part
                if received == expected:
                    break
        finally:
            self.close()
        return received

    def close(self) -> None:
        if self._status_fd >= 0:
            os.close(self._status_fd)
            self._status_fd = -1


@contextmanager
def _open_network_namespace(pid: int) -> Iterator[int]:
    """Open the network namespace of a process for the duration of the block."""
    net = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield net
    finally:
        os.close(net)


def machine_refused(reason: str) -> Unsupported:
    """Return the error for a machine that this host did not let start."""
    return Unsupported(
        "machine_refused",
        f"this host did not let the machine start ({reason}): run `ortet doctor`, or use "
        "engine='overlay'",
    )


def _stop_supervisor(sock: socket.socket, process: subprocess.Popen[bytes]) -> None:
    """Close the connection and reap the supervisor, which exits at once."""
    with suppress(OSError):
        sock.close()
    process.wait()
