"""The socket of a machine's pid 1, and who is connected to it.

Standard library only: the pid 1 of a machine loads this file by itself. Nobody is ever waited for:
an answer that a peer does not take stays with that peer, and its next request stays unread.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ortet.machines.standalone import event_loop, ipc
else:
    import event_loop
    import ipc

_CHUNK = 1 << 18
_PAUSE = 0.1  # seconds, when there is no descriptor left for another peer
_PARTING = 2.0  # seconds that peers have to take their last answers before a freeze

Answer = Callable[["Peer", dict[str, Any]], "dict[str, Any] | event_loop.Held"]


class Door:
    """Listens; while it is shut, no connection exists."""

    def __init__(
        self, loop: event_loop.Loop, path: str, answer: Answer, gone: Callable[[Peer], None]
    ) -> None:
        self.answer = answer
        self.gone = gone
        self.peers: set[Peer] = set()
        self._loop = loop
        self._path = path
        self._paused = math.inf
        self._shut = False
        self._bind()

    def _bind(self) -> None:
        os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._sock.bind(self._path)
        self._sock.listen(64)
        self._loop.watch(self._sock.fileno(), event_loop.IN, self._knock)

    def open(self) -> None:
        """Let peers in again; somebody may have removed the socket from the file system."""
        self._shut = False
        self._paused = math.inf
        if os.path.exists(self._path):
            self._loop.watch(self._sock.fileno(), event_loop.IN, self._knock)
        else:
            self._loop.drop(self._sock.fileno())
            self._sock.close()
            self._bind()

    def shut(self, last: Peer) -> event_loop.Held:
        """Send everybody away, `last` with its answer, and let nobody in."""
        self._shut = True
        self._knock(0)
        self._loop.drop(self._sock.fileno())
        until = event_loop.now() + _PARTING
        for peer in self.peers:
            peer.leaving = True
        again = event_loop.now()
        while len(self.peers) > 1 and event_loop.now() < until:
            yield again
            again = event_loop.now() + 0.01
        for peer in self.peers - {last}:
            peer.close()
        return {}

    def turn(self) -> float:
        """Go on with every peer; returns when to do so again at the latest."""
        for peer in list(self.peers):
            peer.go_on()
        if self._paused <= event_loop.now():
            self.open()
        return min([peer.until for peer in self.peers] + [self._paused])

    def _knock(self, _: int) -> None:
        while True:
            try:
                sock, _ = self._sock.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue
            except OSError:  # no descriptor left
                self._loop.drop(self._sock.fileno())
                self._paused = math.inf if self._shut else event_loop.now() + _PAUSE
                return
            if self._shut or not _from_outside(sock):
                sock.close()
                continue
            self.peers.add(Peer(self._loop, sock, self))


class Peer:
    """One connection: a request at a time, answered in order."""

    def __init__(self, loop: event_loop.Loop, sock: socket.socket, door: Door) -> None:
        self.until = math.inf
        """When to go on with its request at the latest."""
        self.leaving = False
        """It gets the answer to its present request now, and is then sent away."""
        self._loop = loop
        self._sock = sock
        self._fd = sock.fileno()
        self._door = door
        self._in = bytearray()
        self._out = bytearray()
        self._held: event_loop.Held | None = None
        sock.setblocking(False)
        self._await()

    def late(self, until: float) -> bool:
        """Is it to be answered with what there is?"""
        return self.leaving or event_loop.now() >= until

    def go_on(self) -> None:
        while self._fd >= 0:
            if self._out and not self._send():
                break
            if self._held is not None:
                self._resume(self._held)
                if self._held is not None:
                    break
            elif self.leaving:
                self.close()
            elif not self._next():
                break
        if self._fd >= 0:
            self._await()

    def close(self) -> None:
        if self._fd < 0:
            return
        self._loop.drop(self._fd)
        self._fd = -1
        self._sock.close()
        self._door.peers.discard(self)
        if self._held is not None:
            self._held.close()
        self._door.gone(self)

    def _next(self) -> bool:
        try:
            message = ipc.cut(self._in, ipc.REQUEST)
        except ipc.Closed:
            self.close()
            return False
        if message is None:
            return False
        answer = self._door.answer(self, message)
        if isinstance(answer, dict):
            self._out += ipc.pack(answer)
        else:
            self._held = answer
        return True

    def _resume(self, held: event_loop.Held) -> None:
        try:
            self.until = next(held)
        except StopIteration as end:
            self._held, self.until = None, math.inf
            self._out += ipc.pack(end.value)

    def _await(self) -> None:
        """While it has a request open, only a hang-up is of interest."""
        events = event_loop.OUT if self._out else 0 if self._held is not None else event_loop.IN
        self._loop.watch(self._fd, events, self._event)

    def _event(self, event: int) -> None:
        if event & event_loop.IN:
            self._receive()
        elif event & event_loop.HANGUP:
            self.close()

    def _receive(self) -> None:
        try:
            data = self._sock.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._in += data
        else:
            self.close()

    def _send(self) -> bool:
        """Has it taken everything?"""
        try:
            while self._out:
                del self._out[: self._sock.send(self._out)]
        except BlockingIOError:
            pass
        except OSError:
            self.close()
        return not self._out and self._fd >= 0


def _from_outside(sock: socket.socket) -> bool:
    """A pid 1 listens to the hub alone; who is not in our pid namespace has no pid there."""
    size = struct.calcsize("3i")
    pid, _, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return os.getpid() != 1 or pid == 0
