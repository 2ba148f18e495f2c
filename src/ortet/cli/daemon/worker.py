"""A worker of the host agent: keeps a workspace open and does commands in it, as its caller would.

Each command has its caller's directory, variables and streams; they are this process's for as long.
What the hub holds (watcher, index, live machines) stays between commands; sessions, and locks that
other programs may want, are given back after each.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from ortet.cli.daemon import client
from ortet.cli.daemon.cache import Resident, ResidentCall
from ortet.cli.daemon.client import BEGUN, ENDED, NoAgent

_PATIENCE = 10.0
_STREAMS = ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w"))
_STOPPED = 143
_CLOSED = socket.MSG_CMSG_CLOEXEC


def prepare() -> None:
    """Import what commands need, once for all workers."""
    from importlib import import_module

    for name in ("workspace", "fork", "restore", "machine_internal"):
        import_module(f"ortet.cli.commands.{name}")
    for name in (
        "cli.main",
        "hub.hub",
        "backends.sqlite.catalog",
        "machines.folder",
        "machines.capture.inotify",
        "history.diff.tree_diff",
    ):
        import_module(f"ortet.{name}")
    gc.freeze()


def serve(orders: socket.socket, store: Path, idle: float) -> None:
    """Until the agent ends, or nothing was asked for a while and no machine lives."""
    Work(orders, Resident(store), idle).run()


class Work:
    """One connection at a time."""

    def __init__(self, orders: socket.socket, resident: Resident, idle: float) -> None:
        self._orders = orders
        self._resident = resident
        self._idle = idle
        self._running = False
        self._stopped = False

    def run(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._signalled)
        try:
            while not self._stopped:
                poll = select.poll()
                poll.register(self._orders, select.POLLIN)
                if not poll.poll(self._idle * 1000):
                    if not self._resident.live():
                        break
                    continue
                data, fds, _, _ = socket.recv_fds(self._orders, 1, 1, _CLOSED)
                if not data:
                    break
                with socket.socket(fileno=fds[0]) as conn:
                    self._attend(conn)
        except _Stop:
            pass
        finally:
            self._stopped = True  # who is told to end twice is told once
            with suppress(OSError):
                self._orders.shutdown(socket.SHUT_RD)  # no more of it
            self._resident.close()
            self._orders.close()

    def _attend(self, conn: socket.socket) -> None:
        try:
            conn.settimeout(_PATIENCE)
            request = _receive(conn)
            conn.settimeout(None)
        except (OSError, NoAgent):
            return
        self._tell(" ".join(request.words[:1]))
        code = self._perform(conn, request)
        self._tell("")
        with suppress(OSError):
            conn.sendall(ENDED + b"%d\n" % code)

    def _tell(self, busy: str) -> None:
        with suppress(OSError):
            told = {"busy": busy, "live": self._resident.live()}
            self._orders.send(json.dumps(told).encode())

    def _perform(self, conn: socket.socket, request: Request) -> int:
        code = _STOPPED
        request.wear()
        stop, heard = os.pipe2(os.O_CLOEXEC)
        listener = threading.Thread(target=self._listen, args=(conn, stop), daemon=True)
        try:
            conn.sendall(BEGUN)
            self._running = True
            listener.start()
            self._resident.begin(request.variables)
            code = _run(request.words, self._resident)
        except (OSError, KeyboardInterrupt, SystemExit):
            pass  # the client has gone, or interrupted what was over already
        finally:
            self._running = False
            os.close(heard)
            if listener.ident:
                listener.join()
            os.close(stop)
            _undress()
            self._resident.rest()
        return code

    def _listen(self, conn: socket.socket, stop: int) -> None:
        """What the client says meanwhile: an interrupt; nothing any more, when it has gone."""
        poll = select.poll()
        poll.register(conn, select.POLLIN | select.POLLRDHUP)
        poll.register(stop, select.POLLIN | select.POLLHUP)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if stop in ready:
                return
            try:
                said = conn.recv(1)
            except OSError:
                said = b""
            number = signal.SIGINT if said else signal.SIGHUP
            os.kill(os.getpid(), number)
            if not said:
                return

    def _signalled(self, number: int, _: Any) -> None:
        if number == signal.SIGTERM:  # of the agent: what is under way ends first
            ending, self._stopped = self._stopped, True
            if not ending and not self._running:
                raise _Stop
            if self._running:
                self._running = False
                raise SystemExit(_STOPPED)
        elif self._running:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            self._running = False
            raise SystemExit(128 + number)


class _Stop(Exception):
    """The agent ends, and this worker was waiting."""


class Request:
    """What a client wants, and from where."""

    def __init__(self, fields: list[str], fds: list[int]) -> None:
        self.directory, self.coding = fields[:2]
        count = 3 + int(fields[2])
        self.words = fields[3:count]
        self.variables = dict(field.split("=", 1) for field in fields[count:] if "=" in field)
        self._fds = fds

    def wear(self) -> None:
        """Take on the caller's streams, variables and directory."""
        for (number, name, mode), fd in zip(_STREAMS, self._fds, strict=True):
            os.dup2(fd, number, inheritable=True)
            os.close(fd)
            errors = "strict" if mode == "r" else "backslashreplace"
            stream = open(number, mode, closefd=False, encoding=self.coding, errors=errors)  # noqa: SIM115
            setattr(sys, name, stream)
        os.environ.clear()
        os.environ.update(self.variables)
        with suppress(OSError):
            os.chdir(self.directory)


def _undress() -> None:
    """Hold nothing of the caller's: a pipe that we kept open would never end for its reader."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number, name, _ in _STREAMS:
        with suppress(OSError, ValueError):
            getattr(sys, name).flush()
        os.dup2(nowhere, number, inheritable=True)
    os.close(nowhere)
    os.chdir("/")


def _receive(conn: socket.socket) -> Request:
    begin, fds, _, _ = socket.recv_fds(conn, 4, len(_STREAMS), _CLOSED)
    try:
        begin += client.read_exactly(conn, 4 - len(begin))
        body = client.read_exactly(conn, int.from_bytes(begin, "big"))
        if len(fds) != len(_STREAMS):
            raise NoAgent("its streams did not come")
        return Request(client.parse(body), fds)
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise


def _run(words: list[str], resident: Resident) -> int:
    from ortet.cli.main import run

    return run(words, ResidentCall(resident))
