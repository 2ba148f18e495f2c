"""The way out of a live machine, by choice: slirp4netns beside it, which carries what its processes
send out as connections of this host's own."""

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
from ortet.machines.live.network.resolver import give_names
from ortet.machines.live.supervisor_client import Keeper, Starting
from ortet.machines.overlay.mount_plan import Cover
from ortet.machines.poll import readable
from ortet.machines.standalone.syscalls import CLONE_NEWNET, Kernel, privileged

NETWORKS: tuple[Network, ...] = get_args(Network)
PROGRAM = "slirp4netns"

_TUN = "/dev/net/tun"
_READY = b"1"
_WORDS = 4096  # bytes of what it says that are kept
_MOMENT = 0.0002  # seconds
_PATIENCE = 30.0
_ARGUMENTS = (
    "--configure",
    "--mtu=65520",
    "--enable-sandbox",
    "--enable-seccomp",
    "--netns-type=path",
)
_NO_LOOPBACK = "--disable-host-loopback"
_AS_ROOT = "run as root; commands of engine='overlay' have the host's own network"
_FIX = f"install {PROGRAM} (Debian and Fedora: the package {PROGRAM}), or leave network= out"


def parse_network(given: Any) -> Network:
    for one in NETWORKS:
        if given == one:
            return one
    raise Invalid(
        "bad_network", f"network is {str(given)[:40]!r}: give one of {', '.join(NETWORKS)}"
    )


def prepare(
    keeper: Keeper, covers: Sequence[Cover], network: Network, *, counted_on: bool = False
) -> Outlet:
    """Of a machine that is about to be made, with what its programs need to find names by it."""
    give_names(covers, network)
    return Outlet(keeper, network, counted_on=counted_on)


def check_network(network: Network) -> None:
    """Unsupported, with what to install, where this host cannot give it to a machine."""
    (line,) = probe_network() if network != "none" else [Capability("network", True)]
    if not line.ok:
        raise Unsupported("no_network", f"no network for machines here: {line.detail}; {line.fix}")


def probe_network() -> list[Capability]:
    """Tried for real. Not one of an engine's needs: machines have none unless asked for."""
    why = _lacks()
    if why:
        return [Capability("network", False, why, _FIX if privileged() else _AS_ROOT)]
    detail = f"live machines may have outbound network, if asked for ({_program()})"
    return [Capability("network", True, detail)]


class Outlet:
    """Of one machine. `network` "none" has none; `counted_on`: processes that are to be restored
    have sockets that need the address of one."""

    def __init__(self, keeper: Keeper, network: Network, *, counted_on: bool = False) -> None:
        self._keeper = keeper
        self._network = network
        self._counted_on = counted_on
        self._starting: Starting | None = None
        self._log = -1
        self._pid = 0
        self._pidfd = -1
        self.losses: list[Loss] = []

    def begin(self, pid: int) -> None:
        """For the network of this process; `ready` waits for it."""
        if self._network == "none":
            return
        program = _program()
        if not program:
            self._lose(f"{PROGRAM} is not installed")
            return
        self._log = _words()
        try:
            self._starting = self._keeper.outlet(pid, _command(program, self._network), self._log)
        except (OSError, OrtetError) as error:
            self._lose(str(error))

    def ready(self, pid: int) -> None:
        """Wait until what is done in the network of this process can go out, if it ever will."""
        if self._starting is not None:
            said = self._starting.hear(_READY)
            if said == _READY:
                self._pid = self._starting.pid
                self._pidfd = os.pidfd_open(self._pid)
            else:
                words = os.pread(self._log, _WORDS, 0).rstrip(b"\0") or said
                self._lose(words.decode(errors="replace").strip() or f"{PROGRAM} has ended")
            self._starting = None
        if self._log >= 0:
            os.close(self._log)
            self._log = -1
        if self._counted_on and not self.open:
            self._keeper.stand(pid, on=True)

    def belong(self, pid: int, machine: int) -> None:
        """The machine has begun: it has this pid 1, which is also given as a descriptor."""
        if self.open:
            self._keeper.tie(machine, self._pidfd)
        elif self._counted_on:
            self._keeper.stand(pid, on=False)

    @property
    def open(self) -> bool:
        return self._pidfd >= 0

    @property
    def counted_on(self) -> bool:
        """Processes may have sockets that need its address."""
        return self.open or self._counted_on

    def missed(self) -> list[Loss]:
        """That it has ended by itself, if so: what it carried is broken, and nothing goes out."""
        if not self.open or not readable(self._pidfd):
            return []
        why = f"{PROGRAM} of this machine was killed: close and open the machine to have it again"
        return [Loss("", "network", why)]

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nothing comes in meanwhile: what arrives waits, and no peer notices."""
        if not self.open:
            yield
            return
        try:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGSTOP)
                self._stand_still()
            yield
        finally:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGCONT)

    def close(self) -> None:
        self._counted_on = False
        self.ready(0)
        if self.open:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            os.close(self._pidfd)
            self._pidfd = -1

    def _stand_still(self) -> None:
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until:
            try:
                stat = Path(f"/proc/{self._pid}/stat").read_bytes()
            except OSError:  # it has ended
                return
            if stat.rpartition(b")")[2].split()[0] in b"TtZX":
                return
            time.sleep(_MOMENT)

    def _lose(self, why: str) -> None:
        text = f"this machine has no way out here ({why}): {_FIX}"
        self.losses.append(Loss("", "network", text))


def _command(program: str, network: Network) -> list[str]:
    """The keeper puts in which network, and where to say that it is there."""
    closed = [] if network == "host" else [_NO_LOOPBACK]
    return [program, *_ARGUMENTS, *closed, "TOLD", "NET", "tap0"]


def _program() -> str:
    return shutil.which(PROGRAM, path=f"{os.environ.get('PATH', '')}:/usr/bin:/usr/sbin") or ""


def _words() -> int:
    """A file in memory for what a program says; not more than some."""
    fd = os.memfd_create("outlet", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, _WORDS)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    return fd


def _lacks() -> str:
    """Why this host cannot; nothing when it can."""
    program = _program()
    if not privileged():
        return "live machines are for root only"
    if not program:
        return f"{PROGRAM} is not installed"
    if not os.path.exists(_TUN):
        return f"there is no {_TUN}"
    try:
        net = _new_network()
    except OSError as error:
        return f"this host gives us no network of our own ({error.strerror})"
    told, tell = os.pipe2(os.O_CLOEXEC)
    numbers = {"NET": f"/proc/self/fd/{net}", "TOLD": f"--ready-fd={tell}"}
    argv = [numbers.get(word, word) for word in _command(program, "outbound")]
    with subprocess.Popen(
        argv,
        pass_fds=[net, tell],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        os.close(tell)
        good = bool(readable(told, seconds=_PATIENCE)) and os.read(told, 1) == _READY
        process.kill()
        said = process.stderr.read() if process.stderr else b""
    os.close(told)
    os.close(net)
    words = said.decode(errors="replace").strip().splitlines()[-2:]
    return "" if good else f"{program} does not work ({'; '.join(words)})"


def _new_network() -> int:
    """A network namespace, open: a thread makes it, for a thread may have its own."""
    found: list[int | OSError] = []

    def make() -> None:
        try:
            Kernel().unshare(CLONE_NEWNET)
            found.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            found.append(error)

    thread = Thread(target=make)
    thread.start()
    thread.join()
    (net,) = found
    if isinstance(net, OSError):
        raise net
    return net
