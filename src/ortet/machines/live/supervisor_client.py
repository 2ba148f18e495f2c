"""The hub's end of live machines: the keeper, started at first need, and what it is asked for."""

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
from ortet.machines.live.criu.spares import SpareCriu, SpareCriuPool, read_mountinfo
from ortet.machines.live.criu.worker_pool import ReservedCgroups
from ortet.machines.standalone import ipc

READY = b"\n"
"""What pid 1 of a machine writes when it can be asked."""

_START_TIMEOUT_SECONDS = (
    30.0  # seconds; a start takes milliseconds, and a machine that swaps may take longer
)
_INIT_PROGRAM = str(Path(__file__).parents[1] / "standalone" / "init.py")
_READ_BYTES = 1 << 16
_RETRYABLE_REQUESTS = ("start", "spare")  # requests that do not depend on what the keeper has


class SupervisorClient:
    """One helper process, started at first need; it ends with this object, or this process, and
    takes every machine with it."""

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
        """Begin a machine with these mounts, in these control groups; its pid 1 is a program inside
        it."""
        # -B: what it compiles would be a change of the machine's system
        argv = [os.path.realpath(sys.executable), "-I", "-S", "-B", _INIT_PROGRAM]
        env = {"PATH": os.defpath, "LANG": "C.UTF-8"}
        request = {"do": "start", "plan": plan, "hostname": hostname, "argv": argv, "env": env}
        request["groups"] = list(cgroup_paths)
        return self._start_process(request, [])

    def start_dump_worker(self, pid: int) -> CriuWorker:
        """CRIU, ready to dump the machine whose pid 1 is this."""
        with _open_network_namespace(pid) as net:
            return self._start_criu_worker({"do": "worker"}, [net])

    def take_spare(self) -> SpareCriu:
        """CRIU, ready to restore something."""
        return self._spares.acquire() or self._start_spare()

    def prepare_restore_worker(
        self, spare: SpareCriu, plan: dict[str, Any], cgroup_paths: Sequence[str] = ()
    ) -> CriuWorker:
        """The same, ready to restore a machine in these control groups and with these mounts, which
        are made meanwhile."""
        join = [group for group in cgroup_paths if group != spare.cgroup]
        with spare.open_mount_namespace() as space:
            request = {"do": "fit", "pid": spare.pid, "plan": plan, "groups": join}
            fitting = self._start_process(request, [space])
        self._reserved_cgroups.assign(spare.cgroup)
        return CriuWorker(spare.sock, fitting.wait, fitting.close, pid=spare.pid)

    def set_network_blocked(self, pid: int, *, blocked: bool) -> None:
        """Have nothing be sent in the network of this process, or all again."""
        with suppress(FileNotFoundError), _open_network_namespace(pid) as net:
            self._start_process({"do": "hush", "on": blocked}, [net]).wait()

    @contextmanager
    def network_blocked(self, pid: int) -> Iterator[None]:
        """Nothing is sent in its network during the block."""
        self.set_network_blocked(pid, blocked=True)
        try:
            yield
        finally:
            self.set_network_blocked(pid, blocked=False)

    def refill_spares(self) -> None:
        """Have CRIUs ready for the next restores: starting one takes as long as a small restore."""
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
        """CRIU that hands out the memory of a dump to processes that run already; returns its pid.
        It ends when they have all of it."""
        request = {"do": "pager", "images": str(images), "work": str(work_dir)}
        starting = self._start_process(request, [])
        starting.wait()
        return starting.pid

    def start_port_forwarder(self, pid: int, port: int, listener: socket.socket) -> int:
        """Let connections to a socket of the host into a machine; returns the process's pid."""
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
        except FileNotFoundError as error:  # it was killed in between
            raise machine_gone() from error
        finally:
            os.close(machine)

    def start_outbound_network(self, pid: int, argv: Sequence[str], log: int) -> StartingProcess:
        """A program that is the way out of the network of this process; see `outlet`."""
        with _open_network_namespace(pid) as net:
            return self._start_process({"do": "outlet", "argv": list(argv)}, [net, log])

    def set_fallback_address(self, pid: int, *, on: bool) -> None:
        """Have loopback stand in for a way out of the network of this process, or not any more."""
        with _open_network_namespace(pid) as net:
            self._start_process({"do": "stand", "on": on}, [net]).wait()

    def kill_with_machine(self, machine_pidfd: int, other_pidfd: int) -> None:
        """A process ends with a machine, also when nobody here does anything about it; both are
        given as descriptors."""
        self._ask({"do": "tie"}, [machine_pidfd, other_pidfd])

    def clone_mounts(self, pid: int, plan: dict[str, Any]) -> tuple[int, int]:
        """A copy of the mounts of the machine whose pid 1 is this, with another workspace: its root
        directory and its namespace, both open."""
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
        self._spares.close()
        self._sock = None
        self._finalizer()
        self._reserved_cgroups.close()

    # inside

    def _start_criu_worker(self, request: dict[str, Any], fds: list[int]) -> CriuWorker:
        sock, starting = self._start_criu(request, fds)
        return CriuWorker(sock, starting.wait, starting.close)

    def _start_criu(
        self, request: dict[str, Any], fds: list[int]
    ) -> tuple[socket.socket, StartingProcess]:
        # CRIU takes descriptors in a request for those of whoever made the socket: that is us
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                return ours, self._start_process(request, [theirs.fileno(), *fds])
        except BaseException:
            ours.close()
            raise

    def _start_process(self, request: dict[str, Any], fds: Sequence[int]) -> StartingProcess:
        told, tell = os.pipe2(os.O_CLOEXEC)
        try:
            reply = self._ask(request, [*fds, tell])
        except BaseException:
            os.close(told)
            raise
        finally:
            os.close(tell)
        if "error" in reply:
            os.close(told)
            raise machine_refused(reply["error"])
        return StartingProcess(reply["pid"], told)

    def _ask(self, request: dict[str, Any], fds: Sequence[int]) -> dict[str, Any]:
        """One that was killed is replaced; its machines are gone, new ones are not concerned."""
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
    """A process that the keeper has forked, on its way."""

    def __init__(self, pid: int, status_fd: int) -> None:
        self.pid = pid
        self._status_fd = status_fd

    def wait(self) -> None:
        """Until it has begun its own program; Unsupported, with the reason, if it could not."""
        said = self.read_status()
        if said not in (b"", READY):
            raise machine_refused(said.decode(errors="replace"))

    def read_status(self, expected: bytes = READY) -> bytes:
        """What it says until it has begun, and has said `word` or nothing; or why it could not."""
        if self._status_fd < 0:
            return b""
        said = b""
        try:
            while part := os.read(self._status_fd, _READ_BYTES):
                said += part
                if said == expected:
                    break
        finally:
            self.close()
        return said

    def close(self) -> None:
        if self._status_fd >= 0:
            os.close(self._status_fd)
            self._status_fd = -1


@contextmanager
def _open_network_namespace(pid: int) -> Iterator[int]:
    """The network namespace of a process, open."""
    net = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield net
    finally:
        os.close(net)


def machine_refused(reason: str) -> Unsupported:
    return Unsupported(
        "machine_refused",
        f"this host did not let the machine start ({reason}): run `ortet doctor`, or use "
        "engine='overlay'",
    )


def _stop_supervisor(sock: socket.socket, process: subprocess.Popen[bytes]) -> None:
    """Hang up; the keeper exits at once, and is reaped."""
    with suppress(OSError):
        sock.close()
    process.wait()
