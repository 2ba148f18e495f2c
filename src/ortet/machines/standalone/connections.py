"""The control socket of a machine's pid 1, and its connections.

Standard library only: pid 1 loads this file as a plain module. No peer can block it: a reply that a
peer does not read stays buffered, and the next request of this peer stays unread.
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

_READ_BYTES = 1 << 18
_ACCEPT_PAUSE_SECONDS = 0.1  # pause if there is no descriptor left for another connection
_DISCONNECT_TIMEOUT_SECONDS = 2.0  # time for peers to read their last replies before a dump

RequestHandler = Callable[
    ["ControlConnection", dict[str, Any]], "dict[str, Any] | event_loop.PendingReply"
]


class ControlListener:
    """Accepts connections. While it is shut, no connection exists."""

    def __init__(
        self,
        loop: event_loop.EventLoop,
        path: str,
        handle: RequestHandler,
        on_disconnect: Callable[[ControlConnection], None],
    ) -> None:
        self.handle = handle
        self.on_disconnect = on_disconnect
        self.peers: set[ControlConnection] = set()
        self._loop = loop
        self._path = path
        self._resume_at = math.inf
        self._is_shut = False
        self._bind()

    def _bind(self) -> None:
        os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._sock.bind(self._path)
        self._sock.listen(64)
        self._loop.watch(self._sock.fileno(), event_loop.IN, self._accept)

    def open(self) -> None:
        """Accept connections again. The socket is created again if a program removed it."""
        self._is_shut = False
        self._resume_at = math.inf
        if os.path.exists(self._path):
            self._loop.watch(self._sock.fileno(), event_loop.IN, self._accept)
        else:
            self._loop.unwatch(self._sock.fileno())
            self._sock.close()
            self._bind()

    def disconnect_all(self, last: ControlConnection) -> event_loop.PendingReply:
        """Close all connections for a dump and accept no new ones; `last` still gets its reply."""
        self._is_shut = True
        self._accept(0)
        self._loop.unwatch(self._sock.fileno())
        until = event_loop.now() + _DISCONNECT_TIMEOUT_SECONDS
        for peer in self.peers:
            peer.is_closing = True
        again = event_loop.now()
        while len(self.peers) > 1 and event_loop.now() < until:
            yield again
            again = event_loop.now() + 0.01
        for peer in self.peers - {last}:
            peer.close()
        return {}

    def run_once(self) -> float:
        """Advance every connection, and return the time at which to do so again."""
        for peer in list(self.peers):
            peer.advance()
        if self._resume_at <= event_loop.now():
            self.open()
        return min([peer.deadline for peer in self.peers] + [self._resume_at])

    def _accept(self, _: int) -> None:
        while True:
            try:
                sock, _ = self._sock.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue
            except OSError:  # no descriptor left
                self._loop.unwatch(self._sock.fileno())
                self._resume_at = (
                    math.inf if self._is_shut else event_loop.now() + _ACCEPT_PAUSE_SECONDS
                )
                return
            if self._is_shut or not _is_from_host(sock):
                sock.close()
                continue
            self.peers.add(ControlConnection(self._loop, sock, self))


class ControlConnection:
    """One connection: one request at a time, answered in order."""

    def __init__(
        self, loop: event_loop.EventLoop, sock: socket.socket, listener: ControlListener
    ) -> None:
        self.deadline = math.inf
        """Time at which its pending reply must be resumed."""
        self.is_closing = False
        """The present request is answered now, and then the connection is closed."""
        self._loop = loop
        self._sock = sock
        self._fd = sock.fileno()
        self._listener = listener
        self._received = bytearray()
        self._unsent = bytearray()
        self._pending_reply: event_loop.PendingReply | None = None
        sock.setblocking(False)
        self._watch()

    def must_reply(self, deadline: float) -> bool:
        """Return True if the request must be answered now, with what is available."""
        return self.is_closing or event_loop.now() >= deadline

    def advance(self) -> None:
        """Send, resume the pending reply, and handle the next request, until something blocks."""
        while self._fd >= 0:
            if self._unsent and not self._send():
                break
            if self._pending_reply is not None:
                self._resume_reply(self._pending_reply)
                if self._pending_reply is not None:
                    break
            elif self.is_closing:
                self.close()
            elif not self._handle_next():
                break
        if self._fd >= 0:
            self._watch()

    def close(self) -> None:
        if self._fd < 0:
            return
        self._loop.unwatch(self._fd)
        self._fd = -1
        self._sock.close()
        self._listener.peers.discard(self)
        if self._pending_reply is not None:
            self._pending_reply.close()
        self._listener.on_disconnect(self)

    def _handle_next(self) -> bool:
        try:
            message = ipc.pop_message(self._received, ipc.MAX_REQUEST_BYTES)
        except ipc.ConnectionClosed:
            self.close()
            return False
        if message is None:
            return False
        answer = self._listener.handle(self, message)
        if isinstance(answer, dict):
            self._unsent += ipc.pack(answer)
        else:
            self._pending_reply = answer
        return True

    def _resume_reply(self, pending: event_loop.PendingReply) -> None:
        try:
            self.deadline = next(pending)
        except StopIteration as end:
            self._pending_reply, self.deadline = None, math.inf
            self._unsent += ipc.pack(end.value)

    def _watch(self) -> None:
        """Update the watched events. While a request is pending, only a hang-up matters."""
        events = (
            event_loop.OUT
            if self._unsent
            else 0
            if self._pending_reply is not None
            else event_loop.IN
        )
        self._loop.watch(self._fd, events, self._on_event)

    def _on_event(self, event: int) -> None:
        if event & event_loop.IN:
            self._receive()
        elif event & event_loop.HANGUP:
            self.close()

    def _receive(self) -> None:
        try:
            data = self._sock.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._received += data
        else:
            self.close()

    def _send(self) -> bool:
        """Send buffered bytes, and return True if none are left."""
        try:
            while self._unsent:
                del self._unsent[: self._sock.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self.close()
        return not self._unsent and self._fd >= 0


def _is_from_host(sock: socket.socket) -> bool:
    """Return True if a connection may be accepted: pid 1 serves only peers outside its namespace.

    The kernel reports pid 0 for such a peer. A process that is not pid 1 accepts every peer.
    """
    size = struct.calcsize("3i")
    pid, _, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return os.getpid() != 1 or pid == 0
