"""Forwards connections from a host port to a port of a machine, until the machine ends.

Standard library only: the live supervisor loads this file as a plain module. The listening socket
was created in the host's network and stays there. The process itself has joined the machine's
network, so it connects to ports inside.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from typing import NoReturn

_CHUNK_BYTES = 1 << 16
_MAX_BUFFER_BYTES = 1 << 20  # buffered for a slow reader, before reading from the other side pauses


class ForwardedConnection:
    """Two sockets, each of which gets the bytes that the other one receives."""

    def __init__(self, outer: socket.socket, inner: socket.socket) -> None:
        self.sockets = (outer, inner)
        # bytes to send to each
        self.buffers = {outer.fileno(): bytearray(), inner.fileno(): bytearray()}
        self.open = {outer.fileno(): True, inner.fileno(): True}  # False after its end of file

    def other(self, fd: int) -> socket.socket:
        first, second = self.sockets
        return second if first.fileno() == fd else first

    def events(self, fd: int) -> int:
        """Return the events to wait for.

        These are input while the other buffer has room, and output while bytes wait to be sent.
        """
        hears = self.open[fd] and len(self.buffers[self.other(fd).fileno()]) < _MAX_BUFFER_BYTES
        return (select.POLLIN if hears else 0) | (select.POLLOUT if self.buffers[fd] else 0)

    def transfer(self, sock: socket.socket, event: int) -> bool:
        """Transfer bytes after an event. Returns False if both sides are done, or one is broken."""
        fd, other = sock.fileno(), self.other(sock.fileno())
        try:
            if event & select.POLLOUT and self.buffers[fd]:
                del self.buffers[fd][: sock.send(self.buffers[fd])]
            if event & (select.POLLIN | select.POLLHUP | select.POLLERR) and self.open[fd]:
                data = sock.recv(_CHUNK_BYTES)
                self.buffers[other.fileno()] += data
                self.open[fd] = bool(data)
            for source in self.sockets:
                there = self.other(source.fileno()).fileno()
                if not self.open[there] and not self.buffers[source.fileno()]:
                    with contextlib.suppress(OSError):
                        source.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return any(self.open.values()) or any(self.buffers.values())

    def close(self) -> None:
        for sock in self.sockets:
            sock.close()


def serve(listener: socket.socket, machine_pidfd: int, port: int) -> NoReturn:
    """Forward connections until the process of `machine_pidfd` has ended; never returns."""
    listener.setblocking(False)
    pairs: dict[int, ForwardedConnection] = {}
    while True:
        poll = select.poll()
        poll.register(machine_pidfd, select.POLLIN)
        poll.register(listener, select.POLLIN)
        for fd, pair in pairs.items():
            poll.register(fd, pair.events(fd))
        for fd, event in poll.poll():
            if fd == machine_pidfd:
                os._exit(0)
            if fd == listener.fileno():
                _accept(listener, port, pairs)
            elif fd in pairs:
                pair = pairs[fd]
                sock = next(end for end in pair.sockets if end.fileno() == fd)
                if not pair.transfer(sock, event):
                    for end in pair.sockets:
                        pairs.pop(end.fileno(), None)
                    pair.close()


def _accept(
    listener: socket.socket, port: int, connections: dict[int, ForwardedConnection]
) -> None:
    try:
        outer, _ = listener.accept()
    except OSError:
        return
    inner = None
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        inner = socket.socket(family)
        try:
            inner.connect((host, port))  # within one machine it succeeds, or fails, at once
            break
        except OSError:
            inner.close()
            inner = None
    if inner is None:
        outer.close()
        return
    pair = ForwardedConnection(outer, inner)
    for end in pair.sockets:
        end.setblocking(False)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # send without delay
        connections[end.fileno()] = pair
