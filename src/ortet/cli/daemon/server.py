"""The host agent: one resident process for each store and user, which passes requests to workers.

Each workspace has its own worker process, forked from this one. This process has everything
imported and nothing open. Requests about one workspace run one after another, about several in
parallel. A command starts the agent with `python -m ortet.cli.daemon.server STORE`.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ortet.cli.daemon import client
from ortet.cli.daemon.client import (
    DAEMON_DIRECTORY,
    LOCK_NAME,
    REPLY_DECLINED,
    REPLY_ENDED,
    SOCKET_NAME,
    NoDaemon,
)

IDLE_VARIABLE = "ORTET_AGENT_IDLE"
_POLL_SECONDS = 5.0  # how often to check that the store still exists
_REQUEST_TIMEOUT_SECONDS = 5.0
_SHUTDOWN_TIMEOUT_SECONDS = 30.0

WorkerMain = Callable[[socket.socket, Path, float], None]
"""The main function of a worker: the socket that passes connections, the store, the idle time."""


class DaemonWorker:
    """The server's view of a worker process."""

    def __init__(self, name: str, pid: int, sock: socket.socket) -> None:
        self.name = name
        self.pid = pid
        self.sock = sock
        self.busy = ""  # the command that it runs
        self.live: dict[str, Any] = {}  # machines by name

    def receive_status(self) -> bool:
        """Read the worker's status. Return False if the worker has ended."""
        try:
            received = self.sock.recv(1 << 18)
        except OSError:
            received = b""
        if received:
            request = json.loads(received)
            self.busy, self.live = request["busy"], request["live"]
        return bool(received)


class DaemonServer:
    """Accepts requests and manages the workers."""

    def __init__(
        self, store: Path, listener: socket.socket, serve: WorkerMain, idle: float
    ) -> None:
        self._store = store
        self._listener = listener
        self._serve = serve
        self._idle = idle
        self._workers: dict[str, DaemonWorker] = {}
        self._started_at = time.time()
        self._last_request = time.monotonic()
        self._request_count = 0
        self._is_ending = False
        self._inode = os.stat(store / DAEMON_DIRECTORY / SOCKET_NAME).st_ino

    def run(self) -> None:
        """Serve until asked to stop, idle for too long, or the store is gone."""
        while not self._is_ending and self._is_reachable():
            quiet = time.monotonic() - self._last_request
            if not self._workers and quiet >= self._idle:
                return
            timeout = _POLL_SECONDS if self._workers else min(_POLL_SECONDS, self._idle - quiet)
            by_fd = {worker.sock.fileno(): worker for worker in self._workers.values()}
            poll = select.poll()
            for fd in (self._listener.fileno(), *by_fd):
                poll.register(fd, select.POLLIN)
            for fd, _ in poll.poll(timeout * 1000):
                if fd in by_fd:
                    self._receive_status(by_fd[fd])
                else:
                    self._accept()

    def _is_reachable(self) -> bool:
        """Return True if clients that look for an agent find this one."""
        try:
            return os.stat(self._store / DAEMON_DIRECTORY / SOCKET_NAME).st_ino == self._inode
        except OSError:
            return False

    def _receive_status(self, worker: DaemonWorker) -> None:
        if worker.receive_status():
            return
        self._reap_worker(worker)

    def _reap_worker(self, worker: DaemonWorker) -> None:
        worker.sock.close()
        del self._workers[worker.name]
        with suppress(ChildProcessError):
            os.waitpid(worker.pid, 0)

    def _accept(self) -> None:
        try:
            conn, _ = self._listener.accept()
        except OSError:
            return
        with conn:
            conn.settimeout(_REQUEST_TIMEOUT_SECONDS)
            with suppress(OSError, NoDaemon):
                if not client.is_same_user(conn):
                    return
                self._last_request = time.monotonic()
                self._handle_request(conn, *client.read_frame(conn))

    def _handle_request(
        self, conn: socket.socket, kind: str, installation: str, namespace: str, key: str
    ) -> None:
        if kind == "status":
            conn.sendall(REPLY_ENDED + json.dumps(self._status()).encode())
        elif kind == "stop":
            self._is_ending = True
            self.stop_workers()
            conn.sendall(REPLY_ENDED)
        elif installation != client.installation_id():
            conn.sendall(REPLY_DECLINED + b"another version")
            # The client starts a new agent. This one stays if it has live machines.
            self._is_ending = not any(worker.live for worker in self._workers.values())
        elif namespace != client.mount_namespace():
            conn.sendall(REPLY_DECLINED + b"another mount namespace")
        else:
            self._request_count += 1
            self._pass_to_worker(conn, key)

    def _pass_to_worker(self, conn: socket.socket, key: str) -> None:
        for _ in range(2):  # retry once with a new worker if this one has just ended
            worker = self._worker_of(key)
            try:
                socket.send_fds(worker.sock, [b"c"], [conn.fileno()])
                return
            except OSError:
                self._reap_worker(worker)

    def _worker_of(self, key: str) -> DaemonWorker:
        for worker in self._workers.values():
            if key in worker.live:
                return worker
        if key not in self._workers:
            self._workers[key] = self._fork(key)
        return self._workers[key]

    def _fork(self, key: str) -> DaemonWorker:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid:
            theirs.close()
            return DaemonWorker(key, pid, ours)
        code = 1
        try:
            ours.close()
            for worker in self._workers.values():
                worker.sock.close()
            self._listener.close()
            self._serve(theirs, self._store, self._idle)
            code = 0
        finally:
            os._exit(code)

    def _status(self) -> dict[str, Any]:
        workers = [
            {"name": one.name, "pid": one.pid, "busy": one.busy, "live": one.live}
            for one in self._workers.values()
        ]
        return {
            "pid": os.getpid(),
            "store": str(self._store),
            "began": self._started_at,
            "asked": self._request_count,
            "idle": self._idle,
            "version": client.installation_id(),
            "workers": workers,
        }

    def stop_workers(self) -> None:
        """Make every worker close what it holds, and wait for it."""
        for worker in self._workers.values():
            with suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGTERM)
        until = time.monotonic() + _SHUTDOWN_TIMEOUT_SECONDS
        for worker in self._workers.values():
            worker.sock.settimeout(max(until - time.monotonic(), 0.01))
            while worker.receive_status():
                pass
            with suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)  # if it did not end
            with suppress(ChildProcessError):
                os.waitpid(worker.pid, 0)
        self._workers = {}


def open_listener(store: Path) -> socket.socket | None:
    """Open the socket of this store's agent, for its owner only. None if another agent has it."""
    place = store / DAEMON_DIRECTORY
    place.mkdir(mode=0o700, exist_ok=True)
    directory = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    stat = os.fstat(directory)
    if stat.st_uid != os.geteuid():
        return None
    os.fchmod(directory, 0o700)
    lock = os.open(LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=directory)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the lock is held until this process ends
    except BlockingIOError:
        return None
    temporary_name = f"{SOCKET_NAME}.new"
    with suppress(FileNotFoundError):
        os.unlink(temporary_name, dir_fd=directory)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"/proc/self/fd/{directory}/{temporary_name}")
    listener.listen(64)
    os.rename(temporary_name, SOCKET_NAME, src_dir_fd=directory, dst_dir_fd=directory)
    os.close(directory)
    return listener


def main(store: Path, idle: float = 0.0) -> None:
    """Run the agent of a store until it is no longer needed.

    `idle` overrides the idle time in the store's settings.
    """
    os.closerange(3, 1 << 16)  # close descriptors inherited from the starter
    os.chdir("/")
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    listener = open_listener(store)
    if listener is None:
        return
    from ortet.cli.daemon.worker import preload_commands, serve
    from ortet.config.environment import read_settings

    preload_commands()
    agent = DaemonServer(store, listener, serve, idle or read_settings(store).agent_idle)

    def leave(*_: object) -> None:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, leave)
    try:
        agent.run()
    finally:
        agent.stop_workers()
        with suppress(OSError):
            (store / DAEMON_DIRECTORY / SOCKET_NAME).unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(os.environ.get(IDLE_VARIABLE, "0")))
