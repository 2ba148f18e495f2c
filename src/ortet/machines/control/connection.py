"""Connections to the pid 1 of a live machine: one request, one reply, across freezes."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ortet.errors import Invalid, Refused, Unavailable
from ortet.machines.standalone import ipc

_SOCKET_PATH = "run/ortet/init.sock"
_REPLY_TIMEOUT_SECONDS = (
    30.0  # seconds; an answer takes well under a millisecond, on a host that swaps longer
)
_EXIT_WAIT_MILLISECONDS = (
    10_000  # milliseconds in which a process that lost its socket is seen to have ended
)
_SOCKET_POLL_MILLISECONDS = 50  # milliseconds between two looks for its socket
_MAX_TRIES = 5


class InitConnection:
    """Any number of threads may ask at once, each on a connection of its own.

    Who is no part of the hub that has the machine gives its `lock`, which that hub holds while it
    freezes it: a connection on its way would be frozen too.
    """

    def __init__(
        self, pid: int, *, path: str | os.PathLike[str] | None = None, lock_path: str = ""
    ) -> None:
        self.pid = pid
        self.path = os.fspath(path or f"/proc/{pid}/root/{_SOCKET_PATH}")
        self._lock_path = lock_path
        self._idle: list[socket.socket] = []
        self._condition = threading.Condition()
        self._freezing_thread: int | None = None  # the thread that sent us away
        self._freeze_count = 0
        self._connecting_count = 0
        self._pidfd = -1
        try:
            self._pidfd = os.pidfd_open(pid)
        except ProcessLookupError as error:
            raise machine_gone() from error

    def ask(self, message: dict[str, Any], wait: float = 0.0) -> dict[str, Any]:
        """One request, one reply. `wait`: seconds that the answer may take by itself.

        Every request that was carried out is answered before a freeze closes the connection; so
        one without an answer is made again.
        """
        data = ipc.pack(message)
        if len(data) > ipc.MAX_REQUEST_BYTES:
            raise Invalid(
                "too_large",
                f"the command and its environment have more than {ipc.MAX_REQUEST_BYTES >> 20} "
                "MiB, and no "
                "system takes that: put it into a file, or give it as stdin",
            )
        tries = 0
        while tries < _MAX_TRIES:
            freezes = self._freeze_count
            sock, new = self._acquire_connection()
            try:
                sock.settimeout(wait + _REPLY_TIMEOUT_SECONDS)
                sock.sendall(data)
                reply, _ = ipc.receive(sock)
            except (ipc.ConnectionClosed, BrokenPipeError, ConnectionResetError):
                sock.close()
                # an old one was closed by somebody's freeze, a new one perhaps by ours
                tries += new and freezes == self._freeze_count
                continue
            except BaseException as error:
                sock.close()  # its answer may come when nobody expects it any more
                if isinstance(error, TimeoutError):
                    break
                raise
            self._return_connection(sock)
            return reply
        self._check_alive(0)
        raise Unavailable(
            "machine_silent", "the machine does not answer: try again, or close and open it"
        )

    def disconnect(self) -> None:
        """Have every connection to the machine closed, other programs' too; for a freeze.

        Requests of other threads wait until `welcome`; this thread must not make any.
        """
        with self._condition:
            if self._freezing_thread is not None:
                return
        sock = self._connect_with_retry()  # an old one may have been closed by another's freeze
        with self._condition:
            self._freezing_thread = threading.get_ident()
            self._freeze_count += 1
            while self._connecting_count:  # one that came later would be dumped half made
                self._condition.wait()
        try:
            sock.settimeout(_REPLY_TIMEOUT_SECONDS)
            ipc.send(sock, {"do": "leave"})
            ipc.receive(sock)
            while sock.recv(1):
                pass
        except (ipc.ConnectionClosed, OSError) as error:
            self.reconnect()
            self._check_alive(_EXIT_WAIT_MILLISECONDS)
            raise Unavailable("machine_silent", "the machine does not let go: try again") from error
        finally:
            sock.close()
            self._close_idle()

    def reconnect(self) -> None:
        """After a freeze, or in a restored machine: it lets us in again."""
        self._close_idle()  # what was put back since is closed at the other end
        self._signal_listen()
        with self._condition:
            self._freezing_thread = None
            self._condition.notify_all()

    def close(self) -> None:
        """Hang up; the machine goes on."""
        self._close_idle()
        with self._condition:
            if self._pidfd >= 0:
                os.close(self._pidfd)
            self._pidfd = -1

    def _acquire_connection(self) -> tuple[socket.socket, bool]:
        """One that nobody uses, and whether it is new; waits while the machine is being frozen."""
        with self._condition:
            if self._freezing_thread == threading.get_ident():
                raise Unavailable("machine_frozen", "the machine is being frozen: ask it later")
            while self._freezing_thread is not None:
                self._condition.wait()
            if self._idle:
                return self._idle.pop(), False
            self._connecting_count += 1
        try:
            return self._connect_with_retry(), True
        finally:
            with self._condition:
                self._connecting_count -= 1
                self._condition.notify_all()

    def _connect_with_retry(self) -> socket.socket:
        until = time.monotonic() + _REPLY_TIMEOUT_SECONDS
        while True:
            try:
                with freeze_lock(self._lock_path):
                    return self._connect()
            except (ConnectionRefusedError, FileNotFoundError):
                if time.monotonic() > until:
                    break
                if not self._lock_path:
                    self._signal_listen()  # it makes its socket anew where somebody removed it
                self._check_alive(_SOCKET_POLL_MILLISECONDS)
        raise Unavailable(
            "machine_silent",
            f"the machine's {_SOCKET_PATH} was taken away by a program in it: close and open it",
        )

    def _signal_listen(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGUSR1)

    def _connect(self) -> socket.socket:
        # through the directory: the path itself may be too long for a socket address
        directory, name = os.path.split(self.path)
        place = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.connect(f"/proc/self/fd/{place}/{name}")
            size = struct.calcsize("3i")
            seen = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
            if struct.unpack("3i", seen)[0] != self.pid:
                raise Refused(
                    "not_the_machine",
                    "a program in the machine put a socket of its own in the place of the "
                    "supervisor's: close the machine and restore its last commit",
                )
        except BaseException:
            sock.close()
            raise
        finally:
            os.close(place)
        return sock

    def _return_connection(self, sock: socket.socket) -> None:
        with self._condition:
            if self._pidfd >= 0:  # while it is frozen too: the machine is to hang up, not we
                self._idle.append(sock)
                return
        sock.close()

    def _close_idle(self) -> None:
        with self._condition:
            idle, self._idle = self._idle, []
        for sock in idle:
            sock.close()

    def _check_alive(self, milliseconds: int) -> None:
        """Unavailable when pid 1 ends within so many milliseconds."""
        poll = select.poll()
        if self._pidfd >= 0:
            poll.register(self._pidfd, select.POLLIN)
            if not poll.poll(milliseconds):
                return
        raise machine_gone()


@contextmanager
def freeze_lock(lock_path: str, mode: int = fcntl.LOCK_SH) -> Iterator[None]:
    """Not during a freeze, or with LOCK_EX for one; `lock` is a file, or nothing."""
    if not lock_path:
        yield
        return
    fd = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, mode)
        yield
    finally:
        os.close(fd)


def machine_gone() -> Unavailable:
    return Unavailable(
        "machine_gone",
        "the machine's processes ended unexpectedly; its files are safe: open the workspace again",
    )
