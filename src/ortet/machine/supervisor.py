"""Pid 1 of a machine: mounts its files, runs its commands, reaps, and ends with the hub.

Standard library only: the zygote loads this file by itself. When the hub's end of the socket
closes, for whatever reason, this process exits, the kernel kills everything in its pid namespace,
and the mounts go with the mount namespace. So nothing is left to clean up.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ortet.machine import descendants, mounter, mounts, wire
else:
    import descendants
    import mounter
    import mounts
    import wire

# What a command has no use for, and could undo the machine's view with: SYS_MODULE, SYS_RAWIO,
# SYS_ADMIN, SYS_BOOT.
_DROPPED = (16, 17, mounts.CAP_SYS_ADMIN, 22)
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
_NOBODY = "-"  # no run's mark

Birth = tuple[int, bytes]
"""pid and start time: a pid alone may be given again."""


def main(kernel: mounts.Kernel, sock: socket.socket) -> None:
    """Never returns."""
    code = 0
    try:
        Supervisor(kernel, sock).serve()
    except wire.Closed:
        pass
    except BaseException as error:
        code = 1
        with contextlib.suppress(Exception):
            number = error.errno if isinstance(error, OSError) else None
            wire.send(sock, {"error": f"{type(error).__name__}: {error}", "errno": number})
    finally:
        os._exit(code)


class Supervisor:
    """Answers one request at a time, in the order they come."""

    def __init__(self, kernel: mounts.Kernel, sock: socket.socket) -> None:
        self._kernel = kernel
        self._sock = sock
        self._ended: dict[int, int] = {}  # commands that ended and were not asked about yet
        self._running: dict[int, set[Birth]] = {}  # commands, with what was alive before them
        self._wakes, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def serve(self) -> None:
        plan, _ = wire.receive(self._sock)
        self._mounter = mounter.Mounter(self._kernel, plan)
        self._mounter.build()
        for number in _DROPPED:  # from what commands may gain; this process keeps what it has
            self._kernel.prctl(mounts.PR_CAPBSET_DROP, number)
        wire.send(self._sock, {"ready": True})
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        poll.register(self._wakes, select.POLLIN)
        while True:
            ready = [fd for fd, _ in poll.poll()]
            if self._wakes in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wakes, 4096)
                self._busy()
            if self._sock.fileno() in ready:
                self._answer(*wire.receive(self._sock))

    def _answer(self, request: dict[str, Any], fds: list[int]) -> None:
        passed: list[int] = []
        try:
            reply = self._do(request, fds, passed)
            wire.send(self._sock, reply, passed)
        finally:
            for fd in fds + passed:
                os.close(fd)

    def _do(self, request: dict[str, Any], fds: list[int], passed: list[int]) -> dict[str, Any]:
        what = request["do"]
        if what == "run":
            return self._run(request, fds, passed)
        if what == "wait":
            return self._wait(request["pid"])
        if what == "kill":
            return self._kill(request["mark"], request["pid"])
        if what == "unmount":
            return {"done": not self._busy() and self._mounter.unmount()}
        if what == "mount":
            return self._mount(request["options"])
        return {"busy": self._busy(), "mapped": _mapped(self._mounter.place + "/")}

    def _mount(self, options: str) -> dict[str, Any]:
        try:
            self._mounter.mount(options)
        except OSError as error:
            return {"error": str(error)}
        return {}

    # commands

    def _run(self, request: dict[str, Any], fds: list[int], passed: list[int]) -> dict[str, Any]:
        before = {born for born, _ in _processes()} if self._busy() else set()
        try:
            os.chdir(request["cwd"])
            pid = _spawn(request["argv"], request["env"], fds)
        except OSError as error:
            return {"errno": error.errno, "error": error.strerror}
        except ValueError as error:  # a NUL byte, a name with "="
            return {"bad": str(error)}
        finally:
            os.chdir("/")
        self._running[pid] = before
        passed.append(os.pidfd_open(pid))
        return {"pid": pid}

    def _wait(self, pid: int) -> dict[str, Any]:
        """The exit code of a command, which is waited for, and whether anything else is alive."""
        if pid not in self._ended:
            self._ended[pid] = os.waitpid(pid, 0)[1]
        self._running.pop(pid, None)
        status = self._ended.pop(pid)
        return {"code": os.waitstatus_to_exitcode(status), "busy": self._busy()}

    def _kill(self, mark: str, pid: int) -> dict[str, Any]:
        """End a command with all it started, also what shook off its parents and environment."""
        before = self._running.get(pid, set())
        # once it has ended, its pid may be another's
        descendants.kill_run(mark, pid if pid in self._running and pid not in self._ended else -1)
        while strays := self._strays(before):
            for stray in strays:
                descendants.kill_run(_NOBODY, stray[0])
            before |= strays  # one that outlives even this is left alone
        return {}

    def _strays(self, before: set[Birth]) -> set[Birth]:
        """Orphans that were not there before, and that no run will claim."""
        new = {born for born, parent in _processes() if parent == 1} - before
        return {born for born in new if born[0] not in self._running and _unmarked(born[0])}

    def _busy(self) -> bool:
        """Reap; is any process but this one left?"""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return True
                if pid in self._running:
                    self._ended[pid] = status
        except ChildProcessError:
            return False


def _spawn(argv: list[str], env: dict[str, str], fds: list[int]) -> int:
    """Start a program in a session of its own, found by the PATH that it will have."""
    actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(fds)]
    failure: OSError = FileNotFoundError(errno.ENOENT, "No such file or directory", argv[0])
    for path in _candidates(argv[0], env):
        try:
            return os.posix_spawn(
                path,
                argv,
                env,
                file_actions=actions,
                setsid=True,
                setsigmask=[],
                setsigdef=_IGNORED_BY_PYTHON,
            )
        except OSError as error:
            if isinstance(failure, FileNotFoundError):
                failure = error
    raise failure


def _candidates(program: str, env: dict[str, str]) -> list[str]:
    """Where it may be. Asked first: a start that fails costs as much as one that does not."""
    if "/" in program:
        return [program]
    places = [f"{place}/{program}" for place in os.get_exec_path(env)]
    return [path for path in places if os.path.exists(path)]


def _processes() -> list[tuple[Birth, int]]:
    """Every living process but this one, with its parent."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1":
            text = _read(f"/proc/{name}/stat")
            # the command's name stands in parentheses and may itself hold spaces and parentheses
            fields = text[text.rfind(b")") + 1 :].split()
            if len(fields) > 19 and fields[0] not in (b"Z", b"X"):
                found.append(((int(name), fields[19]), int(fields[1])))
    return found


def _unmarked(pid: int) -> bool:
    """Does it carry no run's mark? One that does was found by its own, or belongs to another."""
    key = descendants.MARK.encode() + b"="
    return not any(item.startswith(key) for item in _read(f"/proc/{pid}/environ").split(b"\0"))


def _mapped(below: str) -> list[str]:
    """Files below a directory that some process may be storing into through memory."""
    found: set[str] = set()
    for (pid, _), _ in _processes():
        for line in _read(f"/proc/{pid}/maps").splitlines():
            fields = line.split(None, 5)
            if len(fields) == 6 and fields[1][1:4:2] == b"ws":
                found.add(os.fsdecode(fields[5].replace(rb"\012", b"\n")))
    return [path[len(below) :] for path in found if path.startswith(below)]


def _read(path: str) -> bytes:
    """A file of /proc; nothing where the process is gone."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
