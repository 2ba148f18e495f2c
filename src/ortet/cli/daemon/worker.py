"""A worker of the host agent: keeps a workspace open and runs commands for clients.

A command runs with its caller's directory, variables and streams, which this process takes over for
that time. The hub's state (watcher, index, live machines) stays between commands. Sessions and
locks that other programs may need are released after each command.
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
from ortet.cli.daemon.cache import DaemonCache
from ortet.cli.daemon.client import REPLY_BEGUN, REPLY_ENDED, NoDaemon

_REQUEST_TIMEOUT_SECONDS = 10.0
_STREAMS = ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w"))
_EXIT_TERMINATED = 143
_CLOEXEC_FLAG = socket.MSG_CMSG_CLOEXEC


def preload_commands() -> None:
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


def serve(control: socket.socket, store: Path, idle: float) -> None:
    """Run commands until the agent ends, or until the worker is idle and has no live machine."""
    WorkerLoop(control, DaemonCache(store), idle).run()


class WorkerLoop:
    """Handles one connection at a time."""

    def __init__(self, control: socket.socket, cache: DaemonCache, idle: float) -> None:
        self._control = control
        self._cache = cache
        self._idle = idle
        self._running = False
        self._stopped = False

    def run(self) -> None:
        """Handle connections until the worker is stopped or idle, then close everything."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        try:
            while not self._stopped:
                poll = select.poll()
                poll.register(self._control, select.POLLIN)
                if not poll.poll(self._idle * 1000):
                    if not self._cache.live_machines():
                        break
                    continue
                data, fds, _, _ = socket.recv_fds(self._control, 1, 1, _CLOEXEC_FLAG)
                if not data:
                    break
                with socket.socket(fileno=fds[0]) as conn:
                    self._handle_connection(conn)
        except _StopWorker:
            pass
        finally:
            self._stopped = True  # ignore further SIGTERM
            with suppress(OSError):
                self._control.shutdown(socket.SHUT_RD)  # accept no more requests
            self._cache.close()
            self._control.close()

    def _handle_connection(self, conn: socket.socket) -> None:
        try:
            conn.settimeout(_REQUEST_TIMEOUT_SECONDS)
            request = _receive_request(conn)
            conn.settimeout(None)
        except (OSError, NoDaemon):
            return
        self._send_status(" ".join(request.words[:1]))
        code = self._run_request(conn, request)
        self._send_status("")
        with suppress(OSError):
            conn.sendall(REPLY_ENDED + b"%d\n" % code)

    def _send_status(self, busy: str) -> None:
        with suppress(OSError):
            status = {"busy": busy, "live": self._cache.live_machines()}
            self._control.send(json.dumps(status).encode())

    def _run_request(self, conn: socket.socket, request: DaemonRequest) -> int:
        code = _EXIT_TERMINATED
        request.apply()
        stop_reader, stop_writer = os.pipe2(os.O_CLOEXEC)
        listener = threading.Thread(
            target=self._watch_client, args=(conn, stop_reader), daemon=True
        )
        try:
            conn.sendall(REPLY_BEGUN)
            self._running = True
            listener.start()
            self._cache.begin_command(request.variables)
            code = _run_words(request.words, self._cache)
        except (OSError, KeyboardInterrupt, SystemExit):
            pass  # the client is gone, or interrupted after the end
        finally:
            self._running = False
            os.close(stop_writer)
            if listener.ident:
                listener.join()
            os.close(stop_reader)
            _reset_process()
            self._cache.end_command()
        return code

    def _watch_client(self, conn: socket.socket, stop: int) -> None:
        """Send this process SIGINT if the client interrupts, and SIGHUP if it is gone."""
        poll = select.poll()
        poll.register(conn, select.POLLIN | select.POLLRDHUP)
        poll.register(stop, select.POLLIN | select.POLLHUP)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if stop in ready:
                return
            try:
                received = conn.recv(1)
            except OSError:
                received = b""
            number = signal.SIGINT if received else signal.SIGHUP
            os.kill(os.getpid(), number)
            if not received:
                return

    def _on_signal(self, number: int, _: Any) -> None:
        if number == signal.SIGTERM:  # from the agent: the current command ends first
            ending, self._stopped = self._stopped, True
            if not ending and not self._running:
                raise _StopWorker
            if self._running:
                self._running = False
                raise SystemExit(_EXIT_TERMINATED)
        elif self._running:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            self._running = False
            raise SystemExit(128 + number)


class _StopWorker(Exception):
    """Raised if the agent ends while this worker waits for a request."""


class DaemonRequest:
    """A client's command line, with its directory, variables and streams."""

    def __init__(self, fields: list[str], fds: list[int]) -> None:
        self.directory, self.coding = fields[:2]
        count = 3 + int(fields[2])
        self.words = fields[3:count]
        self.variables = dict(field.split("=", 1) for field in fields[count:] if "=" in field)
        self._fds = fds

    def apply(self) -> None:
        """Take over the caller's streams, variables and directory."""
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


def _reset_process() -> None:
    """Release the caller's streams and directory. A pipe that we kept open would never end."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number, name, _ in _STREAMS:
        with suppress(OSError, ValueError):
            getattr(sys, name).flush()
        os.dup2(nowhere, number, inheritable=True)
    os.close(nowhere)
    os.chdir("/")


def _receive_request(conn: socket.socket) -> DaemonRequest:
    begin, fds, _, _ = socket.recv_fds(conn, 4, len(_STREAMS), _CLOEXEC_FLAG)
    try:
        begin += client.read_exactly(conn, 4 - len(begin))
        body = client.read_exactly(conn, int.from_bytes(begin, "big"))
        if len(fds) != len(_STREAMS):
            raise NoDaemon("its streams did not come")
        return DaemonRequest(client.decode_frame(body), fds)
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise


def _run_words(words: list[str], cache: DaemonCache) -> int:
    from ortet.cli.call import CliCall
    from ortet.cli.main import run

    return run(words, CliCall(daemon_cache=cache))
