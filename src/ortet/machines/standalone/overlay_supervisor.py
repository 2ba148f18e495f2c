"""Pid 1 of an overlay machine: mounts its files, runs its commands, reaps, ends with the hub.

Standard library only: the zygote loads this file as a plain module. When the hub's end of the
socket closes, this process exits. The kernel then kills everything in its pid namespace, and the
mounts disappear with the mount namespace. So nothing is left to clean up.
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

_NO_MARK = "-"  # matches no run


def main(kernel: syscalls.LinuxSyscalls, sock: socket.socket) -> None:
    """Run the supervisor; never returns."""
    code = 0
    try:
        OverlaySupervisor(kernel, sock).serve()
    except ipc.ConnectionClosed:
        pass
    except BaseException as error:
        code = 1
        with contextlib.suppress(Exception):
            number = error.errno if isinstance(error, OSError) else None
            ipc.send(sock, {"error": f"{type(error).__name__}: {error}", "errno": number})
    finally:
        os._exit(code)


class OverlaySupervisor:
    """Answers one request at a time, in order of arrival."""

    def __init__(self, kernel: syscalls.LinuxSyscalls, sock: socket.socket) -> None:
        self._kernel = kernel
        self._sock = sock
        self._exit_statuses: dict[int, int] = {}  # ended commands that were not waited for yet
        self._commands: dict[
            int, set[procfs.ProcessIdentity]
        ] = {}  # running commands, each with the processes that were alive before it
        self._wakeup_fd, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Receive the mount plan, build it, then answer requests until the hub disconnects."""
        plan, _ = ipc.receive(self._sock)
        self._mounter = mounter.Mounter(self._kernel, plan)
        self._mounter.build()
        spawn.drop_capabilities(self._kernel)
        ipc.send(self._sock, {"ready": True})
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        poll.register(self._wakeup_fd, select.POLLIN)
        while True:
            ready = [fd for fd, _ in poll.poll()]
            if self._wakeup_fd in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wakeup_fd, 4096)
                self._has_processes()
            if self._sock.fileno() in ready:
                self._answer(*ipc.receive(self._sock))

    def _answer(self, request: dict[str, Any], fds: list[int]) -> None:
        passed: list[int] = []
        try:
            reply = self._dispatch(request, fds, passed)
            ipc.send(self._sock, reply, passed)
        finally:
            for fd in fds + passed:
                os.close(fd)

    def _dispatch(
        self, request: dict[str, Any], fds: list[int], passed: list[int]
    ) -> dict[str, Any]:
        what = request["do"]
        if what == "run":
            return self._run(request, fds, passed)
        if what == "wait":
            return self._wait(request["pid"])
        if what == "kill":
            return self._kill(request["mark"], request["pid"])
        if what == "unmount":
            return {"done": not self._has_processes() and self._mounter.unmount_workspace()}
        if what == "mount":
            return self._mount(request["options"])
        if what in ("swap", "branch", "root"):
            return self._change_layers(what, request.get("options", ""), passed)
        if what == "holders":
            if fds:
                return {"held": procfs.processes_rooted_at(fds[0], request["but"])}
            return {"held": procfs.processes_using(self._mounter.workspace_path, request["but"])}
        if what == "end":
            process_tree.kill_run(request["mark"], request["pid"], request["spare"])
            return {}
        return {
            "busy": self._has_processes(),
            "mapped": procfs.mapped_files(self._mounter.workspace_path + "/"),
        }

    def _mount(self, options: str) -> dict[str, Any]:
        try:
            self._mounter.mount_workspace(options)
        except OSError as error:
            return {"error": str(error)}
        return {}

    def _change_layers(self, verb: str, options: str, passed: list[int]) -> dict[str, Any]:
        """Change the file layers of kernels and their forks; see Mounter."""
        try:
            if verb == "swap":
                self._mounter.swap_layers(options)
            elif verb == "branch":
                passed += self._mounter.clone_namespace(options)
            else:
                passed.append(os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
        except OSError as error:
            return {"error": str(error)}
        return {}

    # commands

    def _run(self, request: dict[str, Any], fds: list[int], passed: list[int]) -> dict[str, Any]:
        before = {one.identity for one in procfs.list_living()} if self._has_processes() else set()
        try:
            os.chdir(request["cwd"])
            with self._kernel.capability_granted(request.get("right")):
                pid = spawn.spawn(request["argv"], request["env"], spawn.dup_actions(fds))
        except OSError as error:
            return {"errno": error.errno, "error": error.strerror}
        except ValueError as error:  # a NUL byte, or a name that contains "="
            return {"bad": str(error)}
        finally:
            os.chdir("/")
        self._commands[pid] = before
        passed.append(os.pidfd_open(pid))
        return {"pid": pid}

    def _wait(self, pid: int) -> dict[str, Any]:
        """Wait for a command, and return its exit code and whether any other process is alive."""
        if pid not in self._exit_statuses:
            self._exit_statuses[pid] = os.waitpid(pid, 0)[1]
        self._commands.pop(pid, None)
        status = self._exit_statuses.pop(pid)
        return {"code": os.waitstatus_to_exitcode(status), "busy": self._has_processes()}

    def _kill(self, mark: str, pid: int) -> dict[str, Any]:
        """Kill a command and all processes it started.

        This includes processes that left its session and cleared their environment.
        """
        before = self._commands.get(pid, set())
        # after its end the pid may belong to another process
        process_tree.kill_run(
            mark, pid if pid in self._commands and pid not in self._exit_statuses else -1
        )
        while strays := self._orphans(before):
            for stray in strays:
                process_tree.kill_run(_NO_MARK, stray[0])
            before |= strays  # a process that survives even this is left alone
        return {}

    def _orphans(self, alive_before: set[procfs.ProcessIdentity]) -> set[procfs.ProcessIdentity]:
        """Return new orphans that belong to no run."""
        new = {one.identity for one in procfs.list_living() if one.parent == 1} - alive_before
        strays = {born for born in new if born[0] not in self._commands}
        return {born for born in strays if procfs.is_unmarked(born[0])}

    def _has_processes(self) -> bool:
        """Reap ended processes, and return True if any process other than this one is left."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return True
                if pid in self._commands:
                    self._exit_statuses[pid] = status
        except ChildProcessError:
            return False
