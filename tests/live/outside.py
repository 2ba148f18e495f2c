"""A world outside of a test's machines: a network namespace of the test's own, with servers in it.

No packet leaves it: its only device is loopback, which has the addresses of the others too.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
import struct
import threading
from pathlib import Path

from tests.fixtures.waiting import WAIT

from ortet.machines.standalone import loopback
from ortet.machines.standalone.syscalls import CLONE_NEWNET, LinuxSyscalls

HOST = "192.0.2.1"
"""Somebody else's address."""

_SIOCSIFADDR = 0x8916
_ANSWER = "192.0.2.53"


class Outside:
    """From here on this thread, and all it starts, is in a network of its own."""

    def __init__(self) -> None:
        self._home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        LinuxSyscalls().unshare(CLONE_NEWNET)
        loopback.bring_up()
        self.heard: list[tuple[int, bytes]] = []
        """(number of the connection, line)."""
        self.met: list[socket.socket] = []
        self._socks: list[socket.socket] = []
        self._more = threading.Condition()
        self._names = 0
        self._has(HOST)

    def close(self) -> None:
        for sock in (*self._socks, *self.met):
            sock.close()
        LinuxSyscalls().join_namespace(self._home, CLONE_NEWNET)
        os.close(self._home)

    def echo(self, at: str = HOST) -> int:
        """A server that answers each line with itself; its port."""
        listener = self._kept(socket.create_server((at, 0)))
        port: int = listener.getsockname()[1]
        self._begin(self._accept, listener)
        return port

    def answers(self) -> int:
        """The same over UDP, for one packet at a time."""
        sock = self._kept(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        sock.bind((HOST, 0))
        port: int = sock.getsockname()[1]

        def serve() -> None:
            while True:
                data, who = sock.recvfrom(1 << 16)
                sock.sendto(b"echo " + data, who)

        self._begin(serve)
        return port

    def names(self) -> str:
        """A name server where this host has its own; every name is at the address returned."""
        text = Path("/etc/resolv.conf").read_text()
        (server, *_) = re.findall(r"^nameserver\s+([\d.]+)\s*$", text, re.MULTILINE)
        if not server.startswith("127."):
            self._has(server)
        sock = self._kept(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        sock.bind((server, 53))

        def serve() -> None:
            while True:
                asked, who = sock.recvfrom(512)
                end = asked.index(b"\0", 12) + 5
                kind = struct.unpack_from("!H", asked, end - 4)[0]
                record = struct.pack("!HHHIH", 0xC00C, 1, 1, 60, 4) + socket.inet_aton(_ANSWER)
                count, more = (1, record) if kind == 1 else (0, b"")
                head = asked[:2] + struct.pack("!HHHHH", 0x8180, 1, count, 0, 0)
                sock.sendto(head + asked[12:end] + more, who)

        self._begin(serve)
        return _ANSWER

    def lines(self, count: int) -> list[tuple[int, bytes]]:
        """All it heard, once there are so many."""
        with self._more:
            assert self._more.wait_for(lambda: len(self.heard) >= count, WAIT)
        return list(self.heard)

    def first(self) -> socket.socket:
        """Who came first, once somebody has: a connection is there before it is accepted."""
        with self._more:
            assert self._more.wait_for(lambda: self.met, WAIT)
        return self.met[0]

    def _accept(self, listener: socket.socket) -> None:
        while True:
            sock, _ = listener.accept()
            with self._more:
                self.met.append(sock)
                self._more.notify_all()
            self._begin(self._listen, sock, len(self.met) - 1)

    def _listen(self, sock: socket.socket, number: int) -> None:
        with sock.makefile("rb") as file:
            for line in file:
                with self._more:
                    self.heard.append((number, line))
                    self._more.notify_all()
                sock.sendall(b"echo " + line)

    def _has(self, address: str) -> None:
        """Let loopback have an address."""
        self._names += 1
        name = b"lo:%d" % self._names
        told = struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton(address))
        with socket.socket() as sock:
            fcntl.ioctl(sock, _SIOCSIFADDR, struct.pack("16s16s", name, told))

    def _kept(self, sock: socket.socket) -> socket.socket:
        self._socks.append(sock)
        return sock

    def _begin(self, serve: object, *args: object) -> None:
        assert callable(serve)

        def quiet() -> None:
            try:
                serve(*args)
            except (OSError, ValueError):  # it was closed
                return

        threading.Thread(target=quiet, daemon=True).start()
