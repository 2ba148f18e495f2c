"""Outbound network of a live machine, on request, through slirp4netns.

slirp4netns runs beside the machine and turns its traffic into connections of the host.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any, get_args

from ortet.errors import Invalid, OrtetError, Unsupported
from ortet.machines.base import Capability, Loss, Network
from ortet.machines.live.supervisor_client import StartingProcess, SupervisorClient
from ortet.machines.overlay.layers.resolv_conf import update_resolv_conf
from ortet.machines.overlay.mount_plan import HostOverlay
from ortet.machines.poll import poll_readable
from ortet.machines.standalone.syscalls import CLONE_NEWNET, LinuxSyscalls, is_privileged

NETWORKS: tuple[Network, ...] = get_args(Network)
PROGRAM = "slirp4netns"

_TUN_DEVICE = "/dev/net/tun"
_READY_BYTE = b"1"
_LOG_BYTES = 4096  # of its messages that are kept
_POLL_SECONDS = 0.0002
_TIMEOUT_SECONDS = 30.0
_ARGUMENTS = (
    "--configure",
    "--mtu=65520",
    "--enable-sandbox",
    "--enable-seccomp",
    "--netns-type=path",
)
_NO_LOOPBACK = "--disable-host-loopback"
_ROOT_FIX = "run as root; commands of engine='overlay' have the host's own network"
_FIX = f"install {PROGRAM} (Debian and Fedora: the package {PROGRAM}), or leave network= out"


def parse_network(value: Any) -> Network:
    """Return a valid network value. Raises Invalid("bad_network") for anything else."""
    for network in NETWORKS:
        if value == network:
            return network
    raise Invalid(
        "bad_network", f"network is {str(value)[:40]!r}: give one of {', '.join(NETWORKS)}"
    )


def prepare_network(
    supervisor: SupervisorClient,
    host_overlays: Sequence[HostOverlay],
    network: Network,
    *,
    needs_address: bool = False,
) -> OutboundNetwork:
    """Prepare the network of a machine that is about to be created, including name resolution."""
    update_resolv_conf(host_overlays, network)
    return OutboundNetwork(supervisor, network, needs_address=needs_address)


def check_network(network: Network) -> None:
    """Raise Unsupported("no_network"), with what to install, if this host cannot provide it."""
    (line,) = probe_network() if network != "none" else [Capability("network", True)]
    if not line.ok:
        raise Unsupported("no_network", f"no network for machines here: {line.detail}; {line.fix}")


def probe_network() -> list[Capability]:
    """Report whether slirp4netns works here, by running it. Machines need it only on request."""
    why = _why_unavailable()
    if why:
        return [Capability("network", False, why, _FIX if is_privileged() else _ROOT_FIX)]
    detail = f"live machines may have outbound network, if asked for ({_find_program()})"
    return [Capability("network", True, detail)]


class OutboundNetwork:
    """The outbound network of one machine; "none" means that it has none.

    `needs_address` is True if processes to be restored have sockets with the outbound address.
    """

    def __init__(
        self, supervisor: SupervisorClient, network: Network, *, needs_address: bool = False
    ) -> None:
        self._supervisor = supervisor
        self._network = network
        self._needs_address = needs_address
        self._starting: StartingProcess | None = None
        self._log_fd = -1
        self._pid = 0
        self._pidfd = -1
        self.losses: list[Loss] = []

    def start(self, pid: int) -> None:
        """Start slirp4netns for the network namespace of `pid`; `wait_ready` waits for it."""
        if self._network == "none":
            return
        program = _find_program()
        if not program:
            self._add_loss(f"{PROGRAM} is not installed")
            return
        self._log_fd = _make_log_file()
        try:
            self._starting = self._supervisor.start_outbound_network(
                pid, _slirp_argv(program, self._network), self._log_fd
            )
        except (OSError, OrtetError) as error:
            self._add_loss(str(error))

    def wait_ready(self, pid: int) -> None:
        """Wait until the network is usable, or has failed; a failure becomes a loss.

        If restored sockets need the outbound address, loopback of `pid` gets it instead.
        """
        if self._starting is not None:
            status = self._starting.read_status(_READY_BYTE)
            if status == _READY_BYTE:
                self._pid = self._starting.pid
                self._pidfd = os.pidfd_open(self._pid)
            else:
                words = os.pread(self._log_fd, _LOG_BYTES, 0).rstrip(b"\0") or status
                self._add_loss(words.decode(errors="replace").strip() or f"{PROGRAM} has ended")
            self._starting = None
        if self._log_fd >= 0:
            os.close(self._log_fd)
            self._log_fd = -1
        if self._needs_address and not self.is_open:
            self._supervisor.set_fallback_address(pid, on=True)

    def attach_to_machine(self, init_pid: int, machine_pidfd: int) -> None:
        """Bind the lifetime of slirp4netns to the started machine, or remove the fallback address.

        The machine is given by its pid 1, as a number and as a pidfd.
        """
        if self.is_open:
            self._supervisor.kill_with_machine(machine_pidfd, self._pidfd)
        elif self._needs_address:
            self._supervisor.set_fallback_address(init_pid, on=False)

    @property
    def is_open(self) -> bool:
        """True while slirp4netns was started for this machine and not closed."""
        return self._pidfd >= 0

    @property
    def needs_address(self) -> bool:
        """True if processes may have sockets with the outbound address."""
        return self.is_open or self._needs_address

    def runtime_losses(self) -> list[Loss]:
        """Return a loss if slirp4netns has ended.

        Its connections are then broken, and no new ones can be made.
        """
        if not self.is_open or not poll_readable(self._pidfd):
            return []
        why = f"{PROGRAM} of this machine was killed: close and open the machine to have it again"
        return [Loss("", "network", why)]

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop incoming packets during the block. They are delayed, and no peer notices."""
        if not self.is_open:
            yield
            return
        try:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGSTOP)
                self._wait_stopped()
            yield
        finally:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGCONT)

    def close(self) -> None:
        self._needs_address = False
        self.wait_ready(0)
        if self.is_open:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            os.close(self._pidfd)
            self._pidfd = -1

    def _wait_stopped(self) -> None:
        until = time.monotonic() + _TIMEOUT_SECONDS
        while time.monotonic() < until:
            try:
                stat = Path(f"/proc/{self._pid}/stat").read_bytes()
            except OSError:  # the process has ended
                return
            if stat.rpartition(b")")[2].split()[0] in b"TtZX":
                return
            time.sleep(_POLL_SECONDS)

    def _add_loss(self, why: str) -> None:
        text = f"this machine has no way out here ({why}): {_FIX}"
        self.losses.append(Loss("", "network", text))


def _slirp_argv(program: str, network: Network) -> list[str]:
    """Return its arguments; the supervisor replaces NET and TOLD by descriptors."""
    closed = [] if network == "host" else [_NO_LOOPBACK]
    return [program, *_ARGUMENTS, *closed, "TOLD", "NET", "tap0"]


def _find_program() -> str:
    return shutil.which(PROGRAM, path=f"{os.environ.get('PATH', '')}:/usr/bin:/usr/sbin") or ""


def _make_log_file() -> int:
    """Create a file in memory with a fixed size, for the messages of slirp4netns."""
    fd = os.memfd_create("outlet", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, _LOG_BYTES)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    return fd


def _why_unavailable() -> str:
    """Return why this host cannot provide the network, or nothing if it can."""
    program = _find_program()
    if not is_privileged():
        return "live machines are for root only"
    if not program:
        return f"{PROGRAM} is not installed"
    if not os.path.exists(_TUN_DEVICE):
        return f"there is no {_TUN_DEVICE}"
    try:
        net = _new_network_namespace()
    except OSError as error:
        return f"this host gives us no network of our own ({error.strerror})"
    ready, ready_writer = os.pipe2(os.O_CLOEXEC)
    numbers = {"NET": f"/proc/self/fd/{net}", "TOLD": f"--ready-fd={ready_writer}"}
    argv = [numbers.get(word, word) for word in _slirp_argv(program, "outbound")]
    with subprocess.Popen(
        argv,
        pass_fds=[net, ready_writer],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        os.close(ready_writer)
        good = (
            bool(poll_readable(ready, seconds=_TIMEOUT_SECONDS))
            and os.read(ready, 1) == _READY_BYTE
        )
        process.kill()
        errors = process.stderr.read() if process.stderr else b""
    os.close(ready)
    os.close(net)
    words = errors.decode(errors="replace").strip().splitlines()[-2:]
    return "" if good else f"{program} does not work ({'; '.join(words)})"


def _new_network_namespace() -> int:
    """Return a new network namespace, open.

    A thread creates it, because only that thread moves to it.
    """
    result: list[int | OSError] = []

    def make() -> None:
        try:
            LinuxSyscalls().unshare(CLONE_NEWNET)
            result.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            result.append(error)

    thread = Thread(target=make)
    thread.start()
    thread.join()
    (net,) = result
    if isinstance(net, OSError):
        raise net
    return net
