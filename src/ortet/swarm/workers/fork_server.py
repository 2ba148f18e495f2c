"""The process that attempts are forked from: it has loaded all they need, and opened nothing.

A database handle must not cross fork(2), and threads do not; so no process that has a hub open may
be forked. A new interpreter for each attempt would take a third of a second. Run as
`python -m ortet.swarm.workers.fork_server FD`. When the other end of FD is closed, its driver is
gone, and it ends with all it has started.
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

from ortet._util.structs import known
from ortet.machines.overlay.supervisor_client import Zygote
from ortet.machines.standalone import ipc
from ortet.machines.standalone.process_tree import MARK, kill_run
from ortet.machines.standalone.syscalls import Kernel, privileged
from ortet.swarm.attempt import Job, attempt
from ortet.swarm.task_transport import Work, settle_in, unpack
from ortet.swarm.workers.rehearsal import borrow, rehearse

_PDEATHSIG, _SUBREAPER = 1, 36
_LINUX = sys.platform == "linux"


class Server:
    """Forks attempts, ends them when it is told to, and tells how each ended."""

    def __init__(self, sock: socket.socket, told: dict[str, Any]) -> None:
        self._sock = sock
        self._task = unpack(msgspec.convert(told["task"], known(Work)))
        self._score = unpack(msgspec.convert(told["score"], known(Work)) if told["score"] else None)
        module, _, name = told["opener"].partition(":")
        self._opener: Callable[..., Any] = getattr(importlib.import_module(module), name)
        self._user = not privileged()
        self._zygotes: dict[int, Zygote] = {}
        self._lends = bool(told.get("lends"))
        self._running: dict[int, Job] = {}  # by pid
        self._wake, self._woken = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wake, False)
        if _LINUX:  # what an attempt leaves behind becomes ours
            Kernel().prctl(_SUBREAPER, 1)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(self._woken)
        if not told.get("once"):
            rehearse(self._opener, self._zygote(0).lend() if self._lends else None)
        gc.collect()
        gc.freeze()  # the collector would otherwise touch, and so copy, every page in every child

    def serve(self) -> NoReturn:
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._sock, selectors.EVENT_READ)
            waiting.register(self._wake, selectors.EVENT_READ)
            try:
                while True:
                    for key, _ in waiting.select():
                        if key.fileobj is self._sock:
                            self._hear()
                    with suppress(BlockingIOError):
                        os.read(self._wake, 4096)
                    self._reap()
            except ipc.Closed:
                pass
        for pid, job in self._running.items():
            kill_run(job.mark, pid)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
        os._exit(0)

    def _hear(self) -> None:
        message, _ = ipc.receive(self._sock)
        if "stop" in message:
            for pid, job in self._running.items():
                if job.i == message["stop"]:
                    kill_run(job.mark, pid)
        else:
            self._start(msgspec.convert(message["job"], known(Job)))

    def _start(self, job: Job) -> None:
        zygote = self._zygote(job.slot).lend() if self._lends else None
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                self._become(job, server)
                with self._opener(job.root) as hub:
                    borrow(hub, zygote)
                    attempt(hub, job, self._task, self._score)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                for stream in (sys.stdout, sys.stderr):
                    with suppress(OSError, ValueError):
                        stream.flush()
                os._exit(code)
        self._running[pid] = job

    def _become(self, job: Job, server: int) -> None:
        """In the child: a process of its own, that dies with this one."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.setsid()
        if _LINUX:
            Kernel().prctl(_PDEATHSIG, signal.SIGKILL)
            Kernel().prctl(_SUBREAPER, 0)
            if os.getppid() != server:
                os._exit(1)
        self._sock.close()
        os.close(self._wake)
        os.close(self._woken)
        for slot, other in self._zygotes.items():
            if slot != job.slot:
                other.forget()
        outer = os.environ.get(MARK)
        os.environ[MARK] = f"{outer}:{job.mark}" if outer else job.mark
        os.environ["ORTET_ATTEMPT"] = str(job.i)
        if "numpy.random" in sys.modules:  # which, unlike random, goes on as its parent would
            sys.modules["numpy.random"].seed()

    def _zygote(self, slot: int) -> Zygote:
        if slot not in self._zygotes:
            self._zygotes[slot] = Zygote(user=self._user)
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
                continue  # left behind by an attempt, and ended
            code = os.waitstatus_to_exitcode(status)
            if self._strangers():
                kill_run(job.mark, -1)
            if code and job.slot in self._zygotes:  # it may have been killed in mid-sentence
                self._zygotes.pop(job.slot).close()
            ipc.send(self._sock, {"i": job.i, "code": code})

    def _strangers(self) -> bool:
        """Whether there may be processes that an attempt has left behind."""
        me = os.getpid()
        try:
            with open(f"/proc/{me}/task/{me}/children", encoding="ascii") as file:
                children = set(map(int, file.read().split()))
        except OSError:
            return True
        known = {one.pid for one in self._zygotes.values()}
        return bool(children - set(self._running) - known)


def main() -> NoReturn:
    """Load what is asked for, say so, and serve."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    try:
        told, _ = ipc.receive(sock)
        try:
            settle_in(told["around"])
            server = Server(sock, told)
        except Exception as error:
            ipc.send(sock, {"error": f"{type(error).__name__}: {error}"})
            os._exit(1)
        ipc.send(sock, {"ready": os.getpid()})
    except ipc.Closed:
        os._exit(0)
    server.serve()


if __name__ == "__main__":
    main()
