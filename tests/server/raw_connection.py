"""A TCP connection that sends arbitrary bytes to a server, and waits for its answer."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

from tests.fixtures.http_server import Server
from tests.fixtures.waiting import WAIT


class Raw:
    """One connection."""

    def __init__(self, server: Server) -> None:
        at = urlsplit(server.url)
        self.host = at.netloc
        self.sock = socket.create_connection((at.hostname, at.port), timeout=WAIT)

    def send(self, data: str | bytes) -> None:
        """As far as the server takes it: one that has answered already may have ended."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self.sock.sendall(data.encode() if isinstance(data, str) else data)

    def head(self, line: str, *headers: str) -> None:
        self.send("\r\n".join([f"{line} HTTP/1.1", f"Host: {self.host}", *headers, "", ""]))

    def begin(self, line: str, size: int, *headers: str) -> None:
        """A request whose body the server is waiting for, when this returns."""
        self.head(line, f"Content-Length: {size}", "Expect: 100-continue", *headers)
        told = b""
        while not told.endswith(b"\r\n\r\n"):
            data = self.sock.recv(1)
            assert data, told
            told += data
        assert told.startswith(b"HTTP/1.1 100 "), told

    def rest(self) -> bytes:
        """All until the server ends the connection, which it must."""
        found = b""
        try:
            while data := self.sock.recv(65536):
                found += data
        except ConnectionResetError:  # the server did not read all that was sent
            pass
        return found

    def status(self) -> int:
        """Of the one answer, behind which the server ends the connection."""
        found = self.rest()
        assert found, "no answer"
        return int(found.split()[1])


@contextmanager
def raw(server: Server) -> Iterator[Raw]:
    made = Raw(server)
    try:
        yield made
    finally:
        made.sock.close()
