"""Pid 1 of a machine: mounts its files, runs its commands, reaps, and ends with the hub.

Standard library only: the zygote loads this file by itself. When the hub's end of the socket
closes, for whatever reason, this process exits, the kernel kills everything in its pid namespace,
and the mounts go with the mount namespace. So nothing is left to clean up.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ortet.machines.standalone import ipc, mounter, process_tree, procfs, spawn, syscalls
else:
    import ipc
    import mounter
    import process_tree
    import procfs
    import spawn
    import syscalls

_NOBODY = "-"  # no run's mark


def main(kernel: syscalls.Kernel, sock: socket.socket) -> None:
    """Never returns."""
    code = 0
    try:
        Supervisor(kernel, sock).serve()
    except ipc.Closed:
        pass
    except BaseException as error:
        code = 1
        with contextlib.suppress(Exception):
            number = error.errno if isinstance(error, OSError) else None
            ipc.send(sock, {"error": f"{type(error).__name__}: {error}", "errno": number})
    finally:
        os._exit(code)


class Supervisor:
    """Answers one request at a time, in the order they come."""

    def __init__(self, kernel: syscalls.Kernel, sock: socket.socket) -> None:
        self._kernel = kernel
        self._sock = sock
        self._ended: dict[int, int] = {}  # commands that ended and were not asked about yet
        self._running: dict[
            int, set[procfs.Birth]
        ] = {}  # commands, with what was alive before them
        self._wakes, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def serve(self) -> None:
        plan, _ = ipc.receive(self._sock)
        self._mounter = mounter.Mounter(self._kernel, plan)
        self._mounter.build()
        spawn.drop_capabilities(self._kernel)
        ipc.send(self._sock, {"ready": True})
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
                self._answer(*ipc.receive(self._sock))

    def _answer(self, request: dict[str, Any], fds: list[int]) -> None:
        passed: list[int] = []
        try:
            reply = self._do(request, fds, passed)
            ipc.send(self._sock, reply, passed)
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
        if what in ("swap", "branch", "root"):
            return self._copy(what, request.get("options", ""), passed)
        if what == "holders":
            if fds:
                return {"held": procfs.dwellers(fds[0], request["but"])}
            return {"held": procfs.holders(self._mounter.place, request["but"])}
        if what == "end":
            process_tree.kill_run(request["mark"], request["pid"], request["spare"])
            return {}
        return {"busy": self._busy(), "mapped": procfs.mapped(self._mounter.place + "/")}

    def _mount(self, options: str) -> dict[str, Any]:
        try:
            self._mounter.mount(options)
        except OSError as error:
            return {"error": str(error)}
        return {}

    def _copy(self, what: str, options: str, passed: list[int]) -> dict[str, Any]:
        """For interpreters that fork: layers of their own, see Mounter."""
        try:
            if what == "swap":
                self._mounter.swap(options)
            elif what == "branch":
                passed += self._mounter.branch(options)
            else:
                passed.append(os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
        except OSError as error:
            return {"error": str(error)}
        return {}

    # commands

    def _run(self, request: dict[str, Any], fds: list[int], passed: list[int]) -> dict[str, Any]:
        before = {one.born for one in procfs.living()} if self._busy() else set()
        try:
            os.chdir(request["cwd"])
            with self._kernel.granting(request.get("right")):
                pid = spawn.spawn(request["argv"], request["env"], spawn.onto(fds))
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
        process_tree.kill_run(mark, pid if pid in self._running and pid not in self._ended else -1)
        while strays := self._strays(before):
            for stray in strays:
                process_tree.kill_run(_NOBODY, stray[0])
            before |= strays  # one that outlives even this is left alone
        return {}

    def _strays(self, before: set[procfs.Birth]) -> set[procfs.Birth]:
        """Orphans that were not there before, and that no run will claim."""
        new = {one.born for one in procfs.living() if one.parent == 1} - before
        strays = {born for born in new if born[0] not in self._running}
        return {born for born in strays if procfs.unmarked(born[0])}

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
