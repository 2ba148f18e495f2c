"""Pid 1 of a machine: mounts its files, runs its commands, reaps, and ends with the hub.

Standard library only: the zygote loads this file by itself. When the hub's end of the socket
closes, for whatever reason, this process exits, the kernel kills everything in its pid namespace, and the
mounts go with the mount namespace. So nothing is left to clean up.
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
    from ortet.machine import descendants, mounts, wire
else:
    import descendants
    import mounts
    import wire

# What a command in a machine has no use for, and could undo the machine's view with.
_DROPPED = {"SYS_MODULE": 16, "SYS_RAWIO": 17, "SYS_ADMIN": 21, "SYS_BOOT": 22}

_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


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
        self._root = self._place = self._hidden = ""
        self._held: dict[str, str] = {}
        self._here = -1
        self._ended: dict[int, int] = {}  # commands that ended and were not asked about yet
        self._running: set[int] = set()
        wakes, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._wakes = wakes
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def serve(self) -> None:
        plan, _ = wire.receive(self._sock)
        self._kernel.unshare(mounts.CLONE_NEWNS)
        self._kernel.private()
        self._build(plan)
        for number in _DROPPED.values():
            # from what commands may gain; this process keeps what it has
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
                self._reap()
            if self._sock.fileno() in ready:
                self._answer(*wire.receive(self._sock))

    # mounts

    def _build(self, plan: dict[str, Any]) -> None:
        """Make the view below `root`, then make that the root."""
        self._root, self._held = plan["root"], plan["held"]
        umask = os.umask(0o022)
        for step in plan["steps"]:
            self._step(**step)
        self._place = plan["place"]
        self._mount(self._root + self._place, plan["workspace"])
        self._kernel.pivot(self._root)
        os.umask(umask)

    def _step(self, *, do: str, at: str, host: bool = False, **how: Any) -> None:
        kernel = self._kernel
        target = at if host else (self._root + at).rstrip("/")
        if do == "mkdir":
            os.makedirs(target, exist_ok=True)
            return
        if os.path.realpath(target) != target:
            raise OSError(f"{at} leads through a symbolic link inside the machine")
        if do == "overlay":
            self._overlay(target, **how)
        elif do == "bind":
            kernel.bind(how["source"], target, recursive=how.get("recursive", False))
        elif do == "tmpfs":
            kernel.mount(
                "tmpfs", target, "tmpfs", mounts.MS_NOSUID | mounts.MS_NODEV, how["options"]
            )
        elif do == "proc":
            flags = mounts.MS_NOSUID | mounts.MS_NODEV | mounts.MS_NOEXEC
            kernel.mount("proc", target, "proc", flags)
        elif do == "hold":
            self._hold(target)
        elif do == "hide":
            kernel.bind(f"{self._hidden}/void" if how["directory"] else "/dev/null", target)
        if do == "hide" or how.get("sealed"):
            kernel.seal(target, recursive=how.get("recursive", False))

    def _overlay(self, target: str, *, options: str, instead: str = "") -> None:
        try:
            self._kernel.mount("ortet", target, "overlay", 0, options)
        except OSError:
            if not instead:
                raise
            self._kernel.bind(instead, target)
            self._kernel.seal(target)

    def _hold(self, target: str) -> None:
        """Keep the host directories that later mounts need, where no path leads: below /proc.

        The kernel makes overlays only of directories that are mounted in this namespace.
        """
        flags = mounts.MS_NOSUID | mounts.MS_NODEV
        self._kernel.mount("tmpfs", target, "tmpfs", flags, "mode=755")
        self._hidden = target
        for name, source in self._held.items():
            os.mkdir(f"{target}/{name}")
            self._kernel.bind(source, f"{target}/{name}")
        os.mkdir(f"{target}/void", 0o555)
        self._here = os.open(target, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def _mount(self, target: str, options: str) -> None:
        """The workspace; paths in `options` begin with a name that is held."""
        os.fchdir(self._here)
        try:
            self._kernel.mount("ortet", target, "overlay", 0, options)
        finally:
            os.chdir("/")

    def _mount_again(self, options: str) -> dict[str, Any]:
        try:
            self._mount(self._place, options)
        except OSError as error:
            return {"error": str(error), "errno": error.errno}
        return {}

    def _unmount(self) -> bool:
        """False when someone, perhaps on the host, still has a file or directory of it open."""
        try:
            self._kernel.unmount(self._place)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            return False
        return True

    # requests

    def _answer(self, request: dict[str, Any], fds: list[int]) -> None:
        passed: list[int] = []
        try:
            if request["do"] == "run":
                reply, passed = self._run(request, fds)
            elif request["do"] == "wait":
                reply = self._wait(request["pid"])
            elif request["do"] == "kill":
                reply = self._kill(request["mark"], request["pid"])
            elif request["do"] == "unmount":
                reply = {"done": not self._busy() and self._unmount()}
            elif request["do"] == "mount":
                reply = self._mount_again(request["options"])
            else:
                reply = {"busy": self._busy(), "mapped": self._mapped(self._place + "/")}
            wire.send(self._sock, reply, passed)
        finally:
            for fd in fds + passed:
                os.close(fd)

    def _run(self, request: dict[str, Any], fds: list[int]) -> tuple[dict[str, Any], list[int]]:
        try:
            os.chdir(request["cwd"])
            pid = _spawn(request["argv"], request["env"], fds)
        except OSError as error:
            return {"errno": error.errno, "error": error.strerror}, []
        finally:
            os.chdir("/")
        self._running.add(pid)
        return {"pid": pid}, [os.pidfd_open(pid)]

    def _wait(self, pid: int) -> dict[str, Any]:
        """The exit code of a command, which is waited for, and whether anything else is alive."""
        if pid not in self._ended:
            _, status = os.waitpid(pid, 0)
            self._ended[pid] = status
        self._running.discard(pid)
        status = self._ended.pop(pid)
        return {"code": os.waitstatus_to_exitcode(status), "busy": self._busy()}

    def _kill(self, mark: str, pid: int) -> dict[str, Any]:
        if pid not in self._ended:
            descendants.kill_run(mark, pid)
        else:  # the command itself is gone, and its pid may be another's
            descendants.kill_run(mark, -1)
        return {}

    def _busy(self) -> bool:
        """Whether any process but this one is left; zombies do not count."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return True
                self._note(pid, status)
        except ChildProcessError:
            return False

    def _reap(self) -> None:
        self._busy()

    def _note(self, pid: int, status: int) -> None:
        if pid in self._running:
            self._ended[pid] = status

    def _mapped(self, below: str) -> list[str]:
        """Files below a directory that some process may be storing into through memory."""
        found: set[str] = set()
        for name in os.listdir("/proc"):
            if name.isdigit() and name != "1":
                with contextlib.suppress(OSError), open(f"/proc/{name}/maps", "rb") as maps:
                    for line in maps:
                        fields = line.split(None, 5)
                        if len(fields) == 6 and fields[1][1:4:2] == b"ws":
                            found.add(os.fsdecode(fields[5].rstrip(b"\n")))
        return [path[len(below) :] for path in found if path.startswith(below)]


def _spawn(argv: list[str], env: dict[str, str], fds: list[int]) -> int:
    """Start a program in a session of its own, found by the PATH that it will have."""
    program = argv[0]
    actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(fds)]
    places = [""] if "/" in program else [place + "/" for place in os.get_exec_path(env)]
    failure: OSError | None = None
    for place in places:
        try:
            return os.posix_spawn(
                place + program,
                argv,
                env,
                file_actions=actions,
                setsid=True,
                setsigmask=[],
                setsigdef=_IGNORED_BY_PYTHON,
            )
        except (FileNotFoundError, NotADirectoryError) as error:
            failure = failure or error
        except OSError as error:
            if not isinstance(failure, PermissionError):
                failure = error
    raise failure or FileNotFoundError(2, "No such file or directory", program)
