"""The client of zygote and supervisors: starts machines, sends requests, and notices their end.

It also starts the init process that keeps the background programs of an overlay machine.
"""

from __future__ import annotations

import os
import select
import shlex
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import IO, Any, Protocol

from ortet.errors import Invalid, OrtetError, Unavailable, Unsupported
from ortet.machines.command import environ_without_vault_key
from ortet.machines.control.client import InitClient
from ortet.machines.standalone import ipc

_START_TIMEOUT_SECONDS = (
    30.0  # a start takes milliseconds, but it may take much longer on a host that swaps
)

_INIT = str(Path(__file__).parents[1] / "standalone" / "init.py")


class MachineProcess(Protocol):
    """Pid 1 of a machine, seen from outside. Closing it ends all of its processes and mounts."""

    pid: int

    def ready(self) -> None: ...

    def ask(
        self, message: dict[str, Any], fds: Sequence[int] = ()
    ) -> tuple[dict[str, Any], list[int]]: ...

    def close(self) -> None: ...


class Zygote:
    """One helper process that starts machines. It ends with this object or this process."""

    def __init__(self, *, rootless: bool) -> None:
        self._rootless = rootless
        self.pid = 0
        self._sock: socket.socket | None = None
        self._stop: Callable[[], object] = lambda: None

    def start(self, plan: dict[str, Any]) -> OverlayMachineProcess:
        """Start a machine with these mounts. `OverlayMachineProcess.ready` reports the result."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                ipc.send(self._connect(), {}, [theirs.fileno()])
            ipc.send(ours, plan)
        except BaseException as error:
            ours.close()
            if isinstance(error, ipc.ConnectionClosed):
                raise self._start_error() from error
            raise
        return OverlayMachineProcess(ours)

    def share_with_child(self) -> Zygote:
        """Start the helper and return a handle for a child process.

        The helper outlives the child.
        """
        self._connect()
        lent = Zygote(rootless=self._rootless)
        lent._sock = self._sock
        return lent

    def detach(self) -> None:
        """Close the connection in a child process that does not need it. The helper continues."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def close(self) -> None:
        self._sock = None
        self._stop()

    def _connect(self) -> socket.socket:
        if self._sock is not None:
            return self._sock
        ours, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            program = str(Path(__file__).parents[1] / "standalone" / "zygote.py")
            kind = "user" if self._rootless else "root"
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", program, str(number), kind],
                pass_fds=[number],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                # programs of a machine can read the environment of its pid 1
                env=environ_without_vault_key(),
                start_new_session=True,
            )
        self._sock, self._stop = ours, weakref.finalize(self, _stop_zygote, ours, process)
        self.pid = process.pid
        try:
            ours.settimeout(_START_TIMEOUT_SECONDS)
            ipc.receive(ours)
            ours.settimeout(None)
        except (ipc.ConnectionClosed, TimeoutError) as error:
            raise self._start_error() from error
        return ours

    def _start_error(self) -> OrtetError:
        self.close()
        if self._rootless:
            return Unsupported(
                "no_user_namespace",
                "this host lets no ordinary user make a user namespace: `ortet doctor` says which "
                "setting to change, or use engine='folder'",
            )
        return Unavailable("no_zygote", "the helper process ended at its start: try again")


def _stop_zygote(sock: socket.socket, process: subprocess.Popen[bytes]) -> None:
    """Close the connection, so that the zygote exits, and reap it."""
    sock.close()
    process.wait()


class OverlayMachineProcess:
    """The MachineProcess of an overlay machine: the connection to its supervisor."""

    def __init__(self, sock: socket.socket) -> None:
        self.pid = 0
        self._sock = sock
        self._pidfd = -1
        self._ready = False
        self._was_awaited = False
        self._request_lock = threading.Lock()  # kernels are used by several threads

    def ready(self) -> None:
        """Wait until the machine is mounted.

        Raises Unsupported with the kernel's reason if it fails.
        """
        self._was_awaited = True
        self._sock.settimeout(_START_TIMEOUT_SECONDS)
        try:
            while not (self._ready and self.pid):
                message, _ = ipc.receive(self._sock)
                if "error" in message:
                    raise _refused_error(message)
                self.pid = message.get("pid", self.pid)
                self._ready |= "ready" in message
            self._pidfd = os.pidfd_open(self.pid)
        except (ipc.ConnectionClosed, TimeoutError, ProcessLookupError) as error:
            raise _gone_error() from error
        finally:
            self._sock.settimeout(None)

    def ask(
        self, message: dict[str, Any], fds: Sequence[int] = ()
    ) -> tuple[dict[str, Any], list[int]]:
        """Send one request and return its reply."""
        try:
            with self._request_lock:
                ipc.send(self._sock, message, fds)
                return ipc.receive(self._sock)
        except (ipc.ConnectionClosed, OSError) as error:
            raise _gone_error() from error

    def close(self) -> None:
        """Close the connection and wait until the mounts are released."""
        if not self._was_awaited:  # it is still mounting, and creates directories in its home
            with suppress(OrtetError):
                self.ready()
        self._sock.close()
        if self._pidfd >= 0:
            wait_readable(self._pidfd, None)
            os.close(self._pidfd)
            self._pidfd = -1


class RemoteProcess:
    """A command inside a machine, with the interface of a Popen."""

    def __init__(
        self, machine: MachineProcess, *, pid: int, stdin: int, stdout: int, stderr: int
    ) -> None:
        self.pid = pid
        self.stdin: IO[bytes] | None = FileIO(stdin, "w") if stdin >= 0 else None
        self.stdout: IO[bytes] | None = FileIO(stdout)
        self.stderr: IO[bytes] | None = FileIO(stderr)
        self.busy = True
        self._machine = machine
        self._code: int | None = None

    def poll(self) -> int | None:
        return self._code

    def wait(self) -> int:
        if self._code is None:
            reply, _ = self._machine.ask({"do": "wait", "pid": self.pid})
            self._code, self.busy = reply["code"], reply["busy"]
        return self._code

    def kill(self, mark: str) -> None:
        """Kill the command and everything it started. Do nothing if the machine is gone."""
        with suppress(Unavailable):
            self._machine.ask({"do": "kill", "pid": self.pid, "mark": mark})


def spawn_in_machine(
    machine: MachineProcess, argv: Sequence[str], *, env: dict[str, str], cwd: str, stdin: bool
) -> tuple[RemoteProcess, int]:
    """Start a command and return it with its pidfd. Raises OSError if it cannot be executed."""
    ours: list[int] = []
    theirs: list[int] = []
    try:
        ours, theirs = _pipes(stdin)
        request = {"do": "run", "argv": list(argv), "env": env, "cwd": cwd}
        reply, fds = machine.ask(request, theirs)
        if "bad" in reply:
            message = f"it cannot be run ({reply['bad']}): correct the command or its environment"
            raise Invalid("bad_command", message)
        if "errno" in reply:
            raise OSError(reply["errno"], reply["error"])
        streams = ours if stdin else [-1, *ours]
        process = RemoteProcess(
            machine, pid=reply["pid"], stdin=streams[0], stdout=streams[1], stderr=streams[2]
        )
    except BaseException:
        _close(ours)
        raise
    finally:
        _close(theirs)
    return process, fds[0]


def _pipes(stdin: bool) -> tuple[list[int], list[int]]:
    """Return our ends of the pipes and those of the command.

    Ours begin with stdin only if `stdin` is True.
    """
    ours: list[int] = []
    theirs: list[int] = []
    try:
        if stdin:
            reader, writer = os.pipe()
            theirs.append(reader)
            ours.append(writer)
        else:
            theirs.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        for _ in range(2):
            reader, writer = os.pipe()
            ours.append(reader)
            theirs.append(writer)
    except BaseException:
        _close(ours + theirs)
        raise
    return ours, theirs


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


def wait_readable(fd: int, timeout: int | None) -> bool:
    """Wait for at most `timeout` milliseconds. A pidfd is readable when its process has ended."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(timeout))


def _refused_error(message: dict[str, Any]) -> Unsupported:
    return Unsupported(
        "machine_refused",
        f"the kernel did not let the machine start: {message['error']}; `ortet doctor` says what "
        "this host can do, engine='folder' needs none of it",
    )


def _gone_error() -> Unavailable:
    return Unavailable(
        "machine_gone",
        "the machine's processes ended unexpectedly; its files are safe: open the workspace again",
    )


def start_init(machine_process: MachineProcess) -> InitClient:
    """Start an init process inside a machine, and return a client for it.

    It has the same protocol as pid 1 of a live machine.
    """
    place = f"/tmp/.ortet-{os.urandom(8).hex()}"
    program = [os.path.realpath(sys.executable), "-I", "-S", "-B", _INIT, "3", f"{place}/init.sock"]
    argv = ["/bin/sh", "-c", f"mkdir -m 700 {place} && exec 3>&1 && exec {shlex.join(program)}"]
    process, pidfd = spawn_in_machine(
        machine_process, argv, env=environ_without_vault_key(), cwd="/", stdin=False
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        with process.stdout as output, process.stderr as errors:
            if output.read(1) != b"\n":
                reason = errors.read(1000).decode(errors="replace").strip()
                raise Unavailable(
                    "no_programs",
                    f"nothing can be kept running in this machine ({reason}): try again",
                )
        return InitClient(_pid(pidfd), path=f"/proc/{machine_process.pid}/root{place}/init.sock")
    finally:
        os.close(pidfd)


def _pid(pidfd: int) -> int:
    """Return the pid of a process in this process's namespace: the machine has its own numbers."""
    with open(f"/proc/self/fdinfo/{pidfd}", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Pid:"))
