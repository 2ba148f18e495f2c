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
from ortet.machines.command import without_key
from ortet.machines.control.connection import gone
from ortet.machines.live.cgroups import Groups
from ortet.machines.live.criu.rpc import Worker
from ortet.machines.live.criu.spares import Spare, Spares, mounted
from ortet.machines.live.criu.worker_pool import Reserved
from ortet.machines.standalone import ipc

READY = b"\n"
"""What pid 1 of a machine writes when it can be asked."""

_START = 30.0  # seconds; a start takes milliseconds, and a machine that swaps may take longer
_INIT = str(Path(__file__).parents[1] / "standalone" / "init.py")
_LARGEST = 1 << 16
_ANEW = ("start", "spare")  # requests that do not depend on what the keeper has


class Keeper:
    """One helper process, started at first need; it ends with this object, or this process, and
    takes every machine with it."""

    def __init__(self, criu: str, area: Path, groups: Groups) -> None:
        self._criu = criu
        self._area = area
        self._sock: socket.socket | None = None
        self._end: Callable[[], object] = lambda: None
        self._lock = Lock()
        self._spares = Spares()
        self._reserved = Reserved(groups, area)

    def start(self, plan: dict[str, Any], hostname: str, groups: Sequence[str] = ()) -> Starting:
        """Begin a machine with these mounts, in these control groups; its pid 1 is a program inside
        it."""
        # -B: what it compiles would be a change of the machine's system
        argv = [os.path.realpath(sys.executable), "-I", "-S", "-B", _INIT]
        env = {"PATH": os.defpath, "LANG": "C.UTF-8"}
        request = {"do": "start", "plan": plan, "hostname": hostname, "argv": argv, "env": env}
        request["groups"] = list(groups)
        return self._begin(request, [])

    def worker(self, pid: int) -> Worker:
        """CRIU, ready to dump the machine whose pid 1 is this."""
        with _network(pid) as net:
            return self._criu_for({"do": "worker"}, [net])

    def spare(self) -> Spare:
        """CRIU, ready to restore something."""
        return self._spares.take() or self._spare()

    def restorer(self, spare: Spare, plan: dict[str, Any], groups: Sequence[str] = ()) -> Worker:
        """The same, ready to restore a machine in these control groups and with these mounts, which
        are made meanwhile."""
        join = [group for group in groups if group != spare.group]
        with spare.space() as space:
            request = {"do": "fit", "pid": spare.pid, "plan": plan, "groups": join}
            fitting = self._begin(request, [space])
        self._reserved.give(spare.group)
        return Worker(spare.sock, fitting.wait, fitting.close, pid=spare.pid)

    def hush(self, pid: int, *, on: bool) -> None:
        """Have nothing be sent in the network of this process, or all again."""
        with suppress(FileNotFoundError), _network(pid) as net:
            self._begin({"do": "hush", "on": on}, [net]).wait()

    @contextmanager
    def silence(self, pid: int) -> Iterator[None]:
        """Nothing is sent in its network during the block."""
        self.hush(pid, on=True)
        try:
            yield
        finally:
            self.hush(pid, on=False)

    def refill(self) -> None:
        """Have CRIUs ready for the next restores: starting one takes as long as a small restore."""
        with suppress(OrtetError):
            self._spares.fill(self._spare)

    def _spare(self) -> Spare:
        mounts, group = mounted(), self._reserved.make()
        request = {"do": "spare", "groups": [group] if group else []}
        try:
            sock, starting = self._hire(request, [])
        except BaseException:
            self._reserved.drop(group)
            raise

        def ended() -> None:
            starting.close()
            self._reserved.drop(group)

        return Spare(sock, starting.pid, mounts, group, starting.wait, ended)

    def pager(self, images: Path, work: Path) -> int:
        """CRIU that hands out the memory of a dump to processes that run already; returns its pid.
        It ends when they have all of it."""
        request = {"do": "pager", "images": str(images), "work": str(work)}
        starting = self._begin(request, [])
        starting.wait()
        return starting.pid

    def porter(self, pid: int, port: int, listener: socket.socket) -> int:
        """Let connections to a socket of the host into a machine; returns the process's pid."""
        try:
            machine = os.pidfd_open(pid)
        except ProcessLookupError as error:
            raise gone() from error
        try:
            with _network(pid) as net:
                request = {"do": "porter", "port": port}
                starting = self._begin(request, [listener.fileno(), net, machine])
            starting.wait()
            return starting.pid
        except FileNotFoundError as error:  # it was killed in between
            raise gone() from error
        finally:
            os.close(machine)

    def outlet(self, pid: int, argv: Sequence[str], log: int) -> Starting:
        """A program that is the way out of the network of this process; see `outlet`."""
        with _network(pid) as net:
            return self._begin({"do": "outlet", "argv": list(argv)}, [net, log])

    def stand(self, pid: int, *, on: bool) -> None:
        """Have loopback stand in for a way out of the network of this process, or not any more."""
        with _network(pid) as net:
            self._begin({"do": "stand", "on": on}, [net]).wait()

    def tie(self, machine: int, other: int) -> None:
        """A process ends with a machine, also when nobody here does anything about it; both are
        given as descriptors."""
        self._ask({"do": "tie"}, [machine, other])

    def branch(self, pid: int, plan: dict[str, Any]) -> tuple[int, int]:
        """A copy of the mounts of the machine whose pid 1 is this, with another workspace: its root
        directory and its namespace, both open."""
        machine = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        ours, theirs = socket.socketpair()
        with ours:
            try:
                with theirs:
                    starting = self._begin(
                        {"do": "branch", "plan": plan}, [theirs.fileno(), machine]
                    )
            finally:
                os.close(machine)
            starting.wait()
            try:
                root, namespace = ipc.receive(ours)[1]
            except ipc.Closed as error:
                raise refused("it ended without a word") from error
            return root, namespace

    def close(self) -> None:
        self._spares.close()
        self._sock = None
        self._end()
        self._reserved.close()

    # inside

    def _criu_for(self, request: dict[str, Any], fds: list[int]) -> Worker:
        sock, starting = self._hire(request, fds)
        return Worker(sock, starting.wait, starting.close)

    def _hire(self, request: dict[str, Any], fds: list[int]) -> tuple[socket.socket, Starting]:
        # CRIU takes descriptors in a request for those of whoever made the socket: that is us
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                return ours, self._begin(request, [theirs.fileno(), *fds])
        except BaseException:
            ours.close()
            raise

    def _begin(self, request: dict[str, Any], fds: Sequence[int]) -> Starting:
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
            raise refused(reply["error"])
        return Starting(reply["pid"], told)

    def _ask(self, request: dict[str, Any], fds: Sequence[int]) -> dict[str, Any]:
        """One that was killed is replaced; its machines are gone, new ones are not concerned."""
        with self._lock:
            for last in (False, True):
                try:
                    sock = self._connect()
                    ipc.send(sock, request, fds)
                    return ipc.receive(sock)[0]
                except ipc.Closed as error:
                    dead = self._dead()
                    if last or request["do"] not in _ANEW:
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
                env=without_key(),
                start_new_session=True,
            )
        self._sock, self._end = ours, weakref.finalize(self, _end, ours, process)
        try:
            ours.settimeout(_START)
            ipc.receive(ours)
            ours.settimeout(None)
        except (ipc.Closed, TimeoutError) as error:
            raise self._dead() from error
        return ours

    def _dead(self) -> OrtetError:
        self.close()
        return Unavailable(
            "no_keeper",
            "the process that keeps this hub's live machines has ended, and they with it: open "
            "them again from their last commits",
        )


class Starting:
    """A process that the keeper has forked, on its way."""

    def __init__(self, pid: int, told: int) -> None:
        self.pid = pid
        self._told = told

    def wait(self) -> None:
        """Until it has begun its own program; Unsupported, with the reason, if it could not."""
        said = self.hear()
        if said not in (b"", READY):
            raise refused(said.decode(errors="replace"))

    def hear(self, word: bytes = READY) -> bytes:
        """What it says until it has begun, and has said `word` or nothing; or why it could not."""
        if self._told < 0:
            return b""
        said = b""
        try:
            while part := os.read(self._told, _LARGEST):
                said += part
                if said == word:
                    break
        finally:
            self.close()
        return said

    def close(self) -> None:
        if self._told >= 0:
            os.close(self._told)
            self._told = -1


@contextmanager
def _network(pid: int) -> Iterator[int]:
    """The network namespace of a process, open."""
    net = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield net
    finally:
        os.close(net)


def refused(reason: str) -> Unsupported:
    return Unsupported(
        "machine_refused",
        f"this host did not let the machine start ({reason}): run `ortet doctor`, or use "
        "engine='overlay'",
    )


def _end(sock: socket.socket, process: subprocess.Popen[bytes]) -> None:
    """Hang up; the keeper exits at once, and is reaped."""
    with suppress(OSError):
        sock.close()
    process.wait()
