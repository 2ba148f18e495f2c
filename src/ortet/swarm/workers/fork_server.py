"""The process from which attempts are forked: it has loaded all modules, and opened nothing.

A database handle must not cross fork(2), and threads do not survive it. So a process with an open
hub must not be forked. A new interpreter for each attempt would take a third of a second.

Run as `python -m ortet.swarm.workers.fork_server FD`. When the other end of FD is closed, the
driver is gone. This process then ends with everything that it has started.
"""

from __future__ import annotations

import gc
import importlib
import os
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

import msgspec

from ortet._util.structs import thread_safe_struct
from ortet.machines.overlay.supervisor_client import Zygote
from ortet.machines.standalone import ipc
from ortet.machines.standalone.process_tree import RUN_MARK_VARIABLE, kill_run
from ortet.machines.standalone.syscalls import LinuxSyscalls, is_privileged
from ortet.swarm.attempt import AttemptJob, run_attempt
from ortet.swarm.task_transport import TaskPayload, apply_import_environment, unpack_task
from ortet.swarm.workers.rehearsal import share_zygote, warm_up

_PDEATHSIG, _SUBREAPER = 1, 36
_LINUX = sys.platform == "linux"


class ForkServer:
    """Forks attempts, stops them on request, and reports how each ended."""

    def __init__(self, sock: socket.socket, config: dict[str, Any]) -> None:
        self._sock = sock
        self._task = unpack_task(msgspec.convert(config["task"], thread_safe_struct(TaskPayload)))
        self._score = unpack_task(
            msgspec.convert(config["score"], thread_safe_struct(TaskPayload))
            if config["score"]
            else None
        )
        module, _, name = config["opener"].partition(":")
        self._opener: Callable[..., Any] = getattr(importlib.import_module(module), name)
        self._is_unprivileged = not is_privileged()
        self._zygotes: dict[int, Zygote] = {}
        self._shares_zygotes = bool(config.get("lends"))
        self._running: dict[int, AttemptJob] = {}  # by pid
        self._wakeup_read_fd, self._wakeup_write_fd = os.pipe()
        os.set_blocking(self._wakeup_write_fd, False)
        os.set_blocking(self._wakeup_read_fd, False)
        if _LINUX:  # orphans of an attempt become children of this process
            LinuxSyscalls().prctl(_SUBREAPER, 1)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(self._wakeup_write_fd)
        if not config.get("once"):
            warm_up(
                self._opener, self._zygote(0).share_with_child() if self._shares_zygotes else None
            )
        gc.collect()
        # otherwise the garbage collector would touch, and so copy, every page in every child
        gc.freeze()

    def serve(self) -> NoReturn:
        """Handle requests until the driver is gone; then end all attempts and exit."""
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._sock, selectors.EVENT_READ)
            waiting.register(self._wakeup_read_fd, selectors.EVENT_READ)
            try:
                while True:
                    for key, _ in waiting.select():
                        if key.fileobj is self._sock:
                            self._handle_message()
                    with suppress(BlockingIOError):
                        os.read(self._wakeup_read_fd, 4096)
                    self._reap()
            except ipc.ConnectionClosed:
                pass
        for pid, job in self._running.items():
            kill_run(job.mark, pid)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
        os._exit(0)

    def _handle_message(self) -> None:
        message, _ = ipc.receive(self._sock)
        if "stop" in message:
            for pid, job in self._running.items():
                if job.i == message["stop"]:
                    kill_run(job.mark, pid)
        else:
            self._start(msgspec.convert(message["job"], thread_safe_struct(AttemptJob)))

    def _start(self, job: AttemptJob) -> None:
        zygote = self._zygote(job.slot).share_with_child() if self._shares_zygotes else None
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                self._set_up_child(job, server)
                with self._opener(job.root) as hub:
                    share_zygote(hub, zygote)
                    run_attempt(hub, job, self._task, self._score)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                for stream in (sys.stdout, sys.stderr):
                    with suppress(OSError, ValueError):
                        stream.flush()
                os._exit(code)
        self._running[pid] = job

    def _set_up_child(self, job: AttemptJob, server: int) -> None:
        """Set up the forked child: a session of its own that dies with this process."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.setsid()
        if _LINUX:
            LinuxSyscalls().prctl(_PDEATHSIG, signal.SIGKILL)
            LinuxSyscalls().prctl(_SUBREAPER, 0)
            if os.getppid() != server:
                os._exit(1)
        self._sock.close()
        os.close(self._wakeup_read_fd)
        os.close(self._wakeup_write_fd)
        for slot, other in self._zygotes.items():
            if slot != job.slot:
                other.detach()
        outer = os.environ.get(RUN_MARK_VARIABLE)
        os.environ[RUN_MARK_VARIABLE] = f"{outer}:{job.mark}" if outer else job.mark
        os.environ["ORTET_ATTEMPT"] = str(job.i)
        if "numpy.random" in sys.modules:  # unlike random, it would repeat the parent's sequence
            sys.modules["numpy.random"].seed()

    def _zygote(self, slot: int) -> Zygote:
        if slot not in self._zygotes:
            self._zygotes[slot] = Zygote(rootless=self._is_unprivileged)
        return self._zygotes[slot]

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            job = self._running.pop(pid, None)
            if job is None:
                continue  # an orphan of an attempt has ended
            code = os.waitstatus_to_exitcode(status)
            if self._has_orphans():
                kill_run(job.mark, -1)
            # the attempt may have been killed while it used the zygote
            if code and job.slot in self._zygotes:
                self._zygotes.pop(job.slot).close()
            ipc.send(self._sock, {"i": job.i, "code": code})

    def _has_orphans(self) -> bool:
        """Return True if an attempt may have left processes behind."""
        me = os.getpid()
        try:
            with open(f"/proc/{me}/task/{me}/children", encoding="ascii") as file:
                children = set(map(int, file.read().split()))
        except OSError:
            return True
        known = {one.pid for one in self._zygotes.values()}
        return bool(children - set(self._running) - known)


def main() -> NoReturn:
    """Load the task, report that it is ready, and serve."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    try:
        told, _ = ipc.receive(sock)
        try:
            apply_import_environment(told["around"])
            server = ForkServer(sock, told)
        except Exception as error:
            ipc.send(sock, {"error": f"{type(error).__name__}: {error}"})
            os._exit(1)
        ipc.send(sock, {"ready": os.getpid()})
    except ipc.ConnectionClosed:
        os._exit(0)
    server.serve()


if __name__ == "__main__":
    main()
