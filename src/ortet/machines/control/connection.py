"""Connections to pid 1 of a machine: one request, one reply; requests wait during a dump."""

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
    30.0  # a reply takes well under a millisecond, but longer on a host that swaps
)
_EXIT_WAIT_MILLISECONDS = 10_000  # time for a process that lost its socket to end
_SOCKET_POLL_MILLISECONDS = 50  # between two attempts to find the socket
_MAX_TRIES = 5


class InitConnection:
    """Connections to pid 1 of one machine. Each thread uses a connection of its own.

    A process that does not own the machine passes `lock_path`. The owner holds this file lock while
    it dumps the machine, because a connection in progress would become part of the dump.
    """

    def __init__(
        self, pid: int, *, path: str | os.PathLike[str] | None = None, lock_path: str = ""
    ) -> None:
        self.pid = pid
        self.path = os.fspath(path or f"/proc/{pid}/root/{_SOCKET_PATH}")
        self._lock_path = lock_path
        self._idle: list[socket.socket] = []
        self._condition = threading.Condition()
        self._freezing_thread: int | None = None  # the thread that called disconnect()
        self._freeze_count = 0
        self._connecting_count = 0
        self._pidfd = -1
        try:
            self._pidfd = os.pidfd_open(pid)
        except ProcessLookupError as error:
            raise machine_gone() from error

    def ask(self, message: dict[str, Any], wait: float = 0.0) -> dict[str, Any]:
        """Send a request and return its reply.

        Pid 1 answers every request that it carried out before a dump closes the connection. So a
        request without a reply was not carried out, and is sent again.

        Args:
            message: the request; "do" names it.
            wait: seconds that the machine itself may take for the reply.

        Raises:
            Unavailable: "machine_gone" if pid 1 has ended, "machine_silent" if it does not answer.
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
                # A reused connection may have been closed by any dump, a new one only by a dump of
                # this process.
                tries += new and freezes == self._freeze_count
                continue
            except BaseException as error:
                sock.close()  # its reply could arrive when nothing expects it
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
        """Close all connections to the machine, also those of other programs, before a dump.

        Requests of other threads wait until `reconnect`. The calling thread must not send any.
        """
        with self._condition:
            if self._freezing_thread is not None:
                return
        # a reused connection may have been closed by another process's dump
        sock = self._connect_with_retry()
        with self._condition:
            self._freezing_thread = threading.get_ident()
            self._freeze_count += 1
            # a connection made later would be dumped in an incomplete state
            while self._connecting_count:
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
        """Make pid 1 listen again, and let requests continue.

        Called after a dump, and in a restored machine.
        """
        self._close_idle()  # connections returned since then are closed at the other end
        self._signal_listen()
        with self._condition:
            self._freezing_thread = None
            self._condition.notify_all()

    def close(self) -> None:
        """Close all connections. The machine keeps running."""
        self._close_idle()
        with self._condition:
            if self._pidfd >= 0:
                os.close(self._pidfd)
            self._pidfd = -1

    def _acquire_connection(self) -> tuple[socket.socket, bool]:
        """Return an unused connection, and True if it is new. Wait while a dump runs."""
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
                    self._signal_listen()  # pid 1 creates its socket again if it was removed
                self._check_alive(_SOCKET_POLL_MILLISECONDS)
        raise Unavailable(
            "machine_silent",
            f"the machine's {_SOCKET_PATH} was taken away by a program in it: close and open it",
        )

    def _signal_listen(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGUSR1)

    def _connect(self) -> socket.socket:
        # Connect through the open directory: the path itself may be too long for a socket address.
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
            if self._pidfd >= 0:  # during a dump too: pid 1 must be the one to close it
                self._idle.append(sock)
                return
        sock.close()

    def _close_idle(self) -> None:
        with self._condition:
            idle, self._idle = self._idle, []
        for sock in idle:
            sock.close()

    def _check_alive(self, milliseconds: int) -> None:
        """Raise Unavailable("machine_gone") if pid 1 ends within so many milliseconds."""
        poll = select.poll()
        if self._pidfd >= 0:
            poll.register(self._pidfd, select.POLLIN)
            if not poll.poll(milliseconds):
                return
        raise machine_gone()


@contextmanager
def freeze_lock(lock_path: str, mode: int = fcntl.LOCK_SH) -> Iterator[None]:
    """Hold the lock that excludes dumps; with LOCK_EX, the lock for a dump itself.

    `lock_path` is a file. If it is empty, nothing is locked.
    """
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
    """Return the error for a machine whose pid 1 has ended."""
    return Unavailable(
        "machine_gone",
        "the machine's processes ended unexpectedly; its files are safe: open the workspace again",
    )
