"""Dumps a running machine with CRIU, and retries after transient failures."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

from ortet.machines.control.connection import freeze_lock
from ortet.machines.live.criu import preflight
from ortet.machines.live.criu.connections import has_connections, may_have_connections
from ortet.machines.live.criu.errors import dump_attempts, dump_error, is_transient
from ortet.machines.live.criu.rpc import CriuError, CriuWorker
from ortet.machines.live.process import LiveMachineProcess
from ortet.machines.live.supervisor_client import SupervisorClient


class CriuDumper:
    """Dumps one machine. `take_worker` returns a CRIU worker that is ready for it."""

    def __init__(
        self,
        process: LiveMachineProcess,
        supervisor: SupervisorClient,
        *,
        lock: str,
        take_worker: Callable[[], CriuWorker],
    ) -> None:
        self._process = process
        self._supervisor = supervisor
        self._lock = lock
        self._take_worker = take_worker

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
        pid = self._process.pid
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
        guard, worker = self._process, self._take_worker()
        net = os.stat(f"/proc/{guard.pid}/ns/net").st_ino
        external = [f"net[{net}]:extnet", *(f"mnt[{at}]:{at}" for at in guard.external_mounts)]
        with freeze_lock(self._lock, fcntl.LOCK_EX), guard.outbound.paused():
            guard.init_client.disconnect()
            try:
                with (
                    self._supervisor.network_blocked(guard.pid) if block_network else nullcontext()
                ):
                    worker.dump(
                        guard.pid, images, external=external, on_frozen=on_frozen, watched=watched
                    )
            finally:
                guard.init_client.reconnect()
