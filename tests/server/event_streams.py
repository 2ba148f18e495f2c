"""A minimal client of server-sent events: the received events, and the cursor to continue."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from tests.fixtures.waiting import WAIT


class Heard(NamedTuple):
    name: str
    data: Any
    id: str


class Stream:
    """One connection. It reads only when it is told to."""

    def __init__(
        self, url: str, path: str, *, token: str = "", last: str = "", buffer: int = 0, **query: Any
    ) -> None:
        at = urlsplit(url)
        self.sock = socket.socket()
        if buffer:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self.sock.settimeout(WAIT)
        self.sock.connect((at.hostname, at.port))
        lines = [f"GET {path}{'?' if query else ''}{urlencode(query, True)} HTTP/1.1"]
        lines += [f"Host: {at.netloc}"]
        lines += [f"Authorization: Bearer {token}"] if token else []
        lines += [f"Last-Event-ID: {last}"] if last else []
        self.sock.sendall("\r\n".join([*lines, "", ""]).encode())
        self.file = self.sock.makefile("rb")
        self.last = last
        self.comments = 0

    def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers, which come first."""
        status = int(self.file.readline().split()[1])
        headers: dict[str, str] = {}
        while line := self.file.readline().strip().decode():
            name, _, value = line.partition(": ")
            headers[name.lower()] = value
        return status, headers

    def begin(self) -> Stream:
        status, headers = self.head()
        assert status == 200, self.file.read(int(headers["content-length"]))
        assert headers["content-type"].startswith("text/event-stream")
        return self

    def lines(self) -> Iterator[str]:
        """Of the body, which comes in chunks; until it ends."""
        rest = b""
        while size := int(self.file.readline() or b"0", 16):
            rest += self.file.read(size)
            self.file.readline()
            *whole, rest = rest.split(b"\n")
            yield from (line.decode() for line in whole)

    def __iter__(self) -> Iterator[Heard]:
        fields: dict[str, str] = {}
        for line in self.lines():
            if line.startswith(":"):
                self.comments += 1
            elif line:
                name, _, value = line.partition(": ")
                fields[name] = value
            elif "data" in fields:
                self.last = fields.get("id", self.last)
                yield Heard(fields.get("event", ""), json.loads(fields["data"]), self.last)
                fields = {}
            else:
                fields = {}

    def upto(self, name: str) -> list[Heard]:
        """All until an event of this name, which must come."""
        found = []
        for one in self:
            found.append(one)
            if one.name == name:
                return found
        raise AssertionError(f"it ended without {name!r}: {found}")

    def take(self, count: int) -> list[Heard]:
        """The next so many that are what the stream is about."""
        found = []
        for one in self:
            if not one.name:
                found.append(one)
                if len(found) == count:
                    return found
        raise AssertionError(f"it ended after {len(found)}")

    def close(self) -> None:
        self.file.close()
        self.sock.close()


@contextmanager
def streaming(url: str, path: str, **options: Any) -> Iterator[Stream]:
    stream = Stream(url, path, **options)
    try:
        yield stream.begin()
    finally:
        stream.close()
