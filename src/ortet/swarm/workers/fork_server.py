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
import tempfile
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from ortet._util.codec import decode
from ortet._util.structs import thread_safe_struct
from ortet.errors import OrtetError
from ortet.history.records import Commit
from ortet.hub.hub import Hub
from ortet.ids import from_hex
from ortet.machines.overlay.engine import OverlayEngine
from ortet.machines.overlay.supervisor_client import Zygote
from ortet.machines.standalone import ipc
from ortet.machines.standalone.process_tree import RUN_MARK_VARIABLE, kill_run
from ortet.machines.standalone.syscalls import LinuxSyscalls, is_privileged
from ortet.swarm import records
from ortet.swarm.attempt import AttemptJob, run_attempt
from ortet.swarm.plan import KeepRule, SwarmTerms
from ortet.swarm.task_transport import TaskPayload, apply_import_environment, unpack_task

# Runs a dummy attempt in a temporary store before attempts are forked.
#
# This pays the cost of first use (imports, decoders) once instead of in every attempt.

_MEMORY_DIRECTORY = "/dev/shm"


def warm_up(opener: Callable[..., Any], zygote: Zygote | None) -> None:
    """Run the dummy attempt. On failure, attempts only start slower.

    Nothing stays open and no thread keeps running.
    """
    memory = (
        _MEMORY_DIRECTORY if os.access(_MEMORY_DIRECTORY, os.W_OK) else None
    )  # memory file system, so that fsync costs nothing
    with suppress(OrtetError, OSError), tempfile.TemporaryDirectory(dir=memory) as place:
        work = Path(place) / "work"
        work.mkdir()
        with opener(Path(place) / "store") as hub:
            share_zygote(hub, zygote)
            _run_dummy_attempt(hub, work, zygote)
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join()


def share_zygote(hub: Hub, zygote: Zygote | None) -> None:
    """Let the overlay machines of a hub use an existing zygote process."""
    engine = hub.workspaces.engines.find("overlay") if zygote is not None else None
    if zygote is not None and isinstance(engine, OverlayEngine):
        engine.use_zygote(zygote)


def _run_dummy_attempt(hub: Hub, work: Path, zygote: Zygote | None) -> None:
    files: dict[str, Any] = {"workspace": work, "engine": "auto"} if zygote else {}
    session = hub.session("rehearsal", environment="asked", budget={"usd": 1.0}, **files)
    point = session.commit("point")
    # the hub has it cached; this prepares the decoder
    decode(Commit, hub.objects.get(from_hex(point.oid)))
    lease = hub.catalog.acquire("swarm:rehearsal", str(os.getpid()), 10**12)
    terms = SwarmTerms(n=1, keep=KeepRule(), task="", score="", budget={"usd": 0.5})
    row = records.SwarmRow(
        hub.store.new_id(), "r", bytes.fromhex(point.oid), hub.clock.now_ns(), terms
    )
    row = records.create_swarm(hub.catalog, session.id, row, lease)
    first = records.SwarmRecords(hub.catalog, session.id, row.id).attempt(0)
    job = AttemptJob(
        root=hub.url,
        session=session.id,
        swarm=row.id,
        name="r",
        point=point.oid,
        i=0,
        version=first.version,
        tail="r-0",
        mark="",
        slot=0,
        scored=True,
        budget=terms.budget,
    )
    run_attempt(hub, job, "true" if zygote else lambda s, i: s.learn("nothing") and i, None)


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
        config, _ = ipc.receive(sock)
        try:
            apply_import_environment(config["around"])
            server = ForkServer(sock, config)
        except Exception as error:
            ipc.send(sock, {"error": f"{type(error).__name__}: {error}"})
            os._exit(1)
        ipc.send(sock, {"ready": os.getpid()})
    except ipc.ConnectionClosed:
        os._exit(0)
    server.serve()


if __name__ == "__main__":
    main()
