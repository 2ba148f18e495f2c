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

_SOCKET = "run/ortet/init.sock"
_PATIENCE = 30.0  # seconds; an answer takes well under a millisecond, on a host that swaps longer
_DYING = 10_000  # milliseconds in which a process that lost its socket is seen to have ended
_MOMENT = 50  # milliseconds between two looks for its socket
_TRIES = 5


class Caller:
    """Any number of threads may ask at once, each on a connection of its own.

    Who is no part of the hub that has the machine gives its `lock`, which that hub holds while it
    freezes it: a connection on its way would be frozen too.
    """

    def __init__(
        self, pid: int, *, path: str | os.PathLike[str] | None = None, lock: str = ""
    ) -> None:
        self.pid = pid
        self.path = os.fspath(path or f"/proc/{pid}/root/{_SOCKET}")
        self._lock_file = lock
        self._idle: list[socket.socket] = []
        self._lock = threading.Condition()
        self._away: int | None = None  # the thread that sent us away
        self._freezes = 0
        self._connecting = 0
        self._pidfd = -1
        try:
            self._pidfd = os.pidfd_open(pid)
        except ProcessLookupError as error:
            raise gone() from error

    def ask(self, message: dict[str, Any], wait: float = 0.0) -> dict[str, Any]:
        """One request, one reply. `wait`: seconds that the answer may take by itself.

        Every request that was carried out is answered before a freeze closes the connection; so
        one without an answer is made again.
        """
        data = ipc.pack(message)
        if len(data) > ipc.REQUEST:
            raise Invalid(
                "too_large",
                f"the command and its environment have more than {ipc.REQUEST >> 20} MiB, and no "
                "system takes that: put it into a file, or give it as stdin",
            )
        tries = 0
        while tries < _TRIES:
            freezes = self._freezes
            sock, new = self._connection()
            try:
                sock.settimeout(wait + _PATIENCE)
                sock.sendall(data)
                reply, _ = ipc.receive(sock)
            except (ipc.Closed, BrokenPipeError, ConnectionResetError):
                sock.close()
                # an old one was closed by somebody's freeze, a new one perhaps by ours
                tries += new and freezes == self._freezes
                continue
            except BaseException as error:
                sock.close()  # its answer may come when nobody expects it any more
                if isinstance(error, TimeoutError):
                    break
                raise
            self._put_back(sock)
            return reply
        self._check(0)
        raise Unavailable(
            "machine_silent", "the machine does not answer: try again, or close and open it"
        )

    def leave(self) -> None:
        """Have every connection to the machine closed, other programs' too; for a freeze.

        Requests of other threads wait until `welcome`; this thread must not make any.
        """
        with self._lock:
            if self._away is not None:
                return
        sock = self._reach()  # an old one may have been closed by another's freeze
        with self._lock:
            self._away = threading.get_ident()
            self._freezes += 1
            while self._connecting:  # one that came later would be dumped half made
                self._lock.wait()
        try:
            sock.settimeout(_PATIENCE)
            ipc.send(sock, {"do": "leave"})
            ipc.receive(sock)
            while sock.recv(1):
                pass
        except (ipc.Closed, OSError) as error:
            self.welcome()
            self._check(_DYING)
            raise Unavailable("machine_silent", "the machine does not let go: try again") from error
        finally:
            sock.close()
            self._hang_up()

    def welcome(self) -> None:
        """After a freeze, or in a restored machine: it lets us in again."""
        self._hang_up()  # what was put back since is closed at the other end
        self._signal()
        with self._lock:
            self._away = None
            self._lock.notify_all()

    def close(self) -> None:
        """Hang up; the machine goes on."""
        self._hang_up()
        with self._lock:
            if self._pidfd >= 0:
                os.close(self._pidfd)
            self._pidfd = -1

    def _connection(self) -> tuple[socket.socket, bool]:
        """One that nobody uses, and whether it is new; waits while the machine is being frozen."""
        with self._lock:
            if self._away == threading.get_ident():
                raise Unavailable("machine_frozen", "the machine is being frozen: ask it later")
            while self._away is not None:
                self._lock.wait()
            if self._idle:
                return self._idle.pop(), False
            self._connecting += 1
        try:
            return self._reach(), True
        finally:
            with self._lock:
                self._connecting -= 1
                self._lock.notify_all()

    def _reach(self) -> socket.socket:
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                with unfrozen(self._lock_file):
                    return self._connect()
            except (ConnectionRefusedError, FileNotFoundError):
                if time.monotonic() > until:
                    break
                if not self._lock_file:
                    self._signal()  # it makes its socket anew where somebody removed it
                self._check(_MOMENT)
        raise Unavailable(
            "machine_silent",
            f"the machine's {_SOCKET} was taken away by a program in it: close and open it",
        )

    def _signal(self) -> None:
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

    def _put_back(self, sock: socket.socket) -> None:
        with self._lock:
            if self._pidfd >= 0:  # while it is frozen too: the machine is to hang up, not we
                self._idle.append(sock)
                return
        sock.close()

    def _hang_up(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for sock in idle:
            sock.close()

    def _check(self, wait: int) -> None:
        """Unavailable when pid 1 ends within so many milliseconds."""
        poll = select.poll()
        if self._pidfd >= 0:
            poll.register(self._pidfd, select.POLLIN)
            if not poll.poll(wait):
                return
        raise gone()


@contextmanager
def unfrozen(lock: str, how: int = fcntl.LOCK_SH) -> Iterator[None]:
    """Not during a freeze, or with LOCK_EX for one; `lock` is a file, or nothing."""
    if not lock:
        yield
        return
    fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, how)
        yield
    finally:
        os.close(fd)


def gone() -> Unavailable:
    return Unavailable(
        "machine_gone",
        "the machine's processes ended unexpectedly; its files are safe: open the workspace again",
    )
