"""The host agent: one resident process a store and user, which hands each request to a worker.

A worker is a process of its own for each workspace, forked from this one, which has everything
imported and nothing opened: requests about one workspace are done in turn, about several side by
side. `python -m ortet.cli.daemon.server STORE` is how a command starts it.
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
from ortet.cli.daemon.client import DECLINED, ENDED, LOCK, PLACE, SOCKET, NoAgent

IDLE = "ORTET_AGENT_IDLE"
_TICK = 5.0  # seconds after which it is seen that the store is gone
_PATIENCE = 5.0
_ENDING = 30.0

Serve = Callable[[socket.socket, Path, float], None]
"""What a worker does: the socket by which it is given connections, the store, how long to idle."""


class Worker:
    """A process for one workspace, as the agent sees it."""

    def __init__(self, name: str, pid: int, sock: socket.socket) -> None:
        self.name = name
        self.pid = pid
        self.sock = sock
        self.busy = ""  # the verb that it is doing
        self.live: dict[str, Any] = {}  # machines by name

    def hear(self) -> bool:
        """What it tells of itself; False once it has ended."""
        try:
            said = self.sock.recv(1 << 18)
        except OSError:
            said = b""
        if said:
            told = json.loads(said)
            self.busy, self.live = told["busy"], told["live"]
        return bool(said)


class Agent:
    """Listens, and knows its workers."""

    def __init__(self, store: Path, listener: socket.socket, serve: Serve, idle: float) -> None:
        self._store = store
        self._listener = listener
        self._serve = serve
        self._idle = idle
        self._workers: dict[str, Worker] = {}
        self._began = time.time()
        self._last = time.monotonic()
        self._asked = 0
        self._ending = False
        self._inode = os.stat(store / PLACE / SOCKET).st_ino

    def run(self) -> None:
        """Until it is asked to end, has nothing to do, or its store is gone."""
        while not self._ending and self._present():
            quiet = time.monotonic() - self._last
            if not self._workers and quiet >= self._idle:
                return
            left = _TICK if self._workers else min(_TICK, self._idle - quiet)
            by_fd = {worker.sock.fileno(): worker for worker in self._workers.values()}
            poll = select.poll()
            for fd in (self._listener.fileno(), *by_fd):
                poll.register(fd, select.POLLIN)
            for fd, _ in poll.poll(left * 1000):
                if fd in by_fd:
                    self._hear(by_fd[fd])
                else:
                    self._accept()

    def _present(self) -> bool:
        """Whether who looks for an agent finds this one."""
        try:
            return os.stat(self._store / PLACE / SOCKET).st_ino == self._inode
        except OSError:
            return False

    def _hear(self, worker: Worker) -> None:
        if worker.hear():
            return
        self._bury(worker)

    def _bury(self, worker: Worker) -> None:
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
            conn.settimeout(_PATIENCE)
            with suppress(OSError, NoAgent):
                if not client.peer_is_me(conn):
                    return
                self._last = time.monotonic()
                self._answer(conn, *client.read_frame(conn))

    def _answer(self, conn: socket.socket, kind: str, who: str, where: str, key: str) -> None:
        if kind == "status":
            conn.sendall(ENDED + json.dumps(self._told()).encode())
        elif kind == "stop":
            self._ending = True
            self.end()
            conn.sendall(ENDED)
        elif who != client.identity():
            conn.sendall(DECLINED + b"another version")
            # its successor is started by whoever asked; live machines are not given up for it
            self._ending = not any(worker.live for worker in self._workers.values())
        elif where != client.here_in():
            conn.sendall(DECLINED + b"another mount namespace")
        else:
            self._asked += 1
            self._hand_over(conn, key)

    def _hand_over(self, conn: socket.socket, key: str) -> None:
        for _ in range(2):  # one that has just ended is replaced
            worker = self._worker_of(key)
            try:
                socket.send_fds(worker.sock, [b"c"], [conn.fileno()])
                return
            except OSError:
                self._bury(worker)

    def _worker_of(self, key: str) -> Worker:
        for worker in self._workers.values():
            if key in worker.live:
                return worker
        if key not in self._workers:
            self._workers[key] = self._fork(key)
        return self._workers[key]

    def _fork(self, key: str) -> Worker:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid:
            theirs.close()
            return Worker(key, pid, ours)
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

    def _told(self) -> dict[str, Any]:
        workers = [
            {"name": one.name, "pid": one.pid, "busy": one.busy, "live": one.live}
            for one in self._workers.values()
        ]
        return {
            "pid": os.getpid(),
            "store": str(self._store),
            "began": self._began,
            "asked": self._asked,
            "idle": self._idle,
            "version": client.identity(),
            "workers": workers,
        }

    def end(self) -> None:
        """Have every worker close what it holds, and wait for that."""
        for worker in self._workers.values():
            with suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGTERM)
        until = time.monotonic() + _ENDING
        for worker in self._workers.values():
            worker.sock.settimeout(max(until - time.monotonic(), 0.01))
            while worker.hear():
                pass
            with suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)  # if it did not obey
            with suppress(ChildProcessError):
                os.waitpid(worker.pid, 0)
        self._workers = {}


def listen(store: Path) -> socket.socket | None:
    """The socket of this store's agent, which only its owner reaches; None when another has it."""
    place = store / PLACE
    place.mkdir(mode=0o700, exist_ok=True)
    at = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    seen = os.fstat(at)
    if seen.st_uid != os.geteuid():
        return None
    os.fchmod(at, 0o700)
    lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=at)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held until this process ends
    except BlockingIOError:
        return None
    unborn = f"{SOCKET}.new"
    with suppress(FileNotFoundError):
        os.unlink(unborn, dir_fd=at)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"/proc/self/fd/{at}/{unborn}")
    listener.listen(64)
    os.rename(unborn, SOCKET, src_dir_fd=at, dst_dir_fd=at)
    os.close(at)
    return listener


def main(store: Path, idle: float = 0.0) -> None:
    """Be the agent of a store, until it is not needed any more; `idle` is for this one, not as the
    store's settings say."""
    os.closerange(3, 1 << 16)  # what whoever started us had open is not ours
    os.chdir("/")
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    listener = listen(store)
    if listener is None:
        return
    from ortet.cli.daemon.worker import prepare, serve
    from ortet.config.environment import read_settings

    prepare()
    agent = Agent(store, listener, serve, idle or read_settings(store).agent_idle)

    def leave(*_: object) -> None:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, leave)
    try:
        agent.run()
    finally:
        agent.end()
        with suppress(OSError):
            (store / PLACE / SOCKET).unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(os.environ.get(IDLE, "0")))
