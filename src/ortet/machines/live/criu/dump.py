"""Dumps a running machine with CRIU, and retries after transient failures."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from threading import Thread

from ortet.errors import OrtetError
from ortet.machines.control.connection import freeze_lock
from ortet.machines.live.criu import preflight
from ortet.machines.live.criu.connections import has_connections, may_have_connections
from ortet.machines.live.criu.errors import dump_attempts, dump_error, is_transient
from ortet.machines.live.criu.rpc import CriuError, CriuWorker
from ortet.machines.live.process import LiveMachineProcess
from ortet.machines.live.supervisor_client import SupervisorClient


class BackgroundTask:
    """Runs tasks one after the other, each in a thread; `start` waits for the task before it."""

    def __init__(self) -> None:
        self._thread: Thread | None = None

    def start(self, task: Callable[[], object]) -> None:
        """Wait for the task before it, then run this one in a thread."""
        self.wait()
        self._thread = Thread(target=task, name="ortet-errand", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until the running task has ended."""
        running, self._thread = self._thread, None
        if running is not None:
            running.join()


class CriuDumper:
    """Dumps one machine, each time with a CRIU worker that was started beforehand.

    `process` returns the machine's processes, which a restore replaces. `lock` is the file that
    keeps other processes from connecting to the machine during a dump.
    """

    def __init__(
        self,
        supervisor: SupervisorClient,
        background: BackgroundTask,
        *,
        process: Callable[[], LiveMachineProcess],
        lock: str,
    ) -> None:
        self._supervisor = supervisor
        self._background = background
        self._get_process = process
        self._lock = lock
        self._worker: CriuWorker | None = None

    @property
    def has_worker(self) -> bool:
        """True if a worker for the next dump was started."""
        return self._worker is not None

    def prestart_worker(self) -> None:
        """Start a worker for the next dump in the background.

        Starting one takes as long as a small dump.
        """
        self._background.start(self._start_worker)

    def close(self) -> None:
        """Stop the worker. The background task must have ended."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def _start_worker(self) -> None:
        self.close()
        with suppress(OrtetError, OSError):  # the machine may have ended since
            self._worker = self._supervisor.start_dump_worker(self._get_process().pid)
        self._supervisor.refill_spares()

    def _take_worker(self) -> CriuWorker:
        self._background.wait()
        if self._worker is None or not self._worker.alive:
            self._start_worker()
        worker, self._worker = self._worker, None
        return worker or self._supervisor.start_dump_worker(self._get_process().pid)

    def dump(
        self,
        images: Path,
        on_frozen: Callable[[], None],
        *,
        watched: Sequence[str],
        clear_images: Callable[[], object],
    ) -> None:
        """Dump the machine to a directory; its processes continue.

        Args:
            on_frozen: called while the processes are stopped; after a retry, the last call counts.
            watched: directories that CRIU searches for files watched by inotify.
            clear_images: empties the directory before a retry.

        Raises:
            Conflict: "cannot_freeze", if CRIU cannot dump the machine.
        """
        pid = self._get_process().pid
        silent = may_have_connections(pid)
        for again in dump_attempts():
            try:
                self._dump_once(images, on_frozen, watched, block_network=silent)
                if silent or not has_connections(images):
                    return
            except CriuError as failed:
                if not (again and is_transient(failed)):
                    raise dump_error(failed) from failed
            preflight.check(pid)
            clear_images()
            silent = True
        raise AssertionError("not reached")

    def _dump_once(
        self,
        images: Path,
        on_frozen: Callable[[], None],
        watched: Sequence[str],
        *,
        block_network: bool,
    ) -> None:
        process, worker = self._get_process(), self._take_worker()
        net = os.stat(f"/proc/{process.pid}/ns/net").st_ino
        external = [f"net[{net}]:extnet", *(f"mnt[{at}]:{at}" for at in process.external_mounts)]
        with freeze_lock(self._lock, fcntl.LOCK_EX), process.outbound.paused():
            process.init_client.disconnect()
            try:
                with (
                    self._supervisor.network_blocked(process.pid)
                    if block_network
                    else nullcontext()
                ):
                    worker.dump(
                        process.pid, images, external=external, on_frozen=on_frozen, watched=watched
                    )
            finally:
                process.init_client.reconnect()
