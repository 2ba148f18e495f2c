"""Servers of several hosts on one store in PostgreSQL, and a plain TCP proxy in front of them."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
from tests.fixtures.http_server import Client, Reply, Server
from tests.fixtures.postgres import drop_schema, new_schema, shared
from tests.fixtures.waiting import WAIT, eventually

from ortet.config.environment import open_hub

HOUR = 3600 * 10**9
TENANT = "acme"
_AGAIN = {"lease_held", "in_progress", "session_busy", "stopping", "lease_lost"}


class Proxy:
    """Gives each connection to the next server that takes it."""

    def __init__(self) -> None:
        self.ports: dict[str, int] = {}
        self._turn = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(WAIT)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, ExitStack() as last:
            server = self._connected()
            if server is None:
                return
            last.enter_context(server)
            back = threading.Thread(target=_pass, args=(server, client), daemon=True)
            back.start()
            _pass(client, server)
            back.join()

    def _connected(self) -> socket.socket | None:
        self._turn += 1
        ports = list(self.ports.values())
        for step in range(len(ports)):
            with suppress(OSError):
                port = ports[(self._turn + step) % len(ports)]
                return socket.create_connection(("127.0.0.1", port), timeout=WAIT)
        return None


def _pass(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


class Farm:
    """Servers by the name of their host, the store they share, and the proxy before them. `more`
    are options of the store's address."""

    def __init__(
        self, place: Path, *options: str, database: str = "", env: dict[str, str], **more: str
    ) -> None:
        self.place = place
        self.schema = new_schema()
        self.database = database or shared().url()
        given = {"bucket": f"file://{place}/bucket", "schema": self.schema, **more}
        parts = [f"&{name}={quote(value, safe='')}" for name, value in given.items()]
        self.url = self.database + "".join(parts)
        self.proxy = Proxy()
        self.servers: dict[str, Server] = {}
        self._options = options
        self._env = env

    def environ(self, host: str) -> dict[str, str]:
        cache = str(self.place / host / "cache")
        return {**self._env, "ORTET_URL": self.url, "XDG_CACHE_HOME": cache}

    def start(self, host: str, **env: str) -> Server:
        started = Server(self.place / host, *self._options, env={**self.environ(host), **env})
        self.servers[host] = started
        self.proxy.ports[host] = int(started.url.rpartition(":")[2])
        return started

    def kill(self, host: str) -> None:
        self.servers.pop(host).kill()

    def client(self, token: str = "") -> Client:
        return Client(self.proxy.url, token)

    def hurry(self, server: Server) -> None:
        """The time of a dead server's leases is over."""
        self._shift(server, -2 * HOUR)

    def prolong(self, server: Server) -> list[str]:
        """They last, however slow this host is; the names of them."""
        return self._shift(server, HOUR)

    def _shift(self, server: Server, nanoseconds: int) -> list[str]:
        with psycopg.connect(self.database, autocommit=True) as connection:
            rows = connection.execute(
                f'UPDATE "{self.schema}".leases SET expires = expires + %s'
                " WHERE split_part(owner, ':', 2) = %s RETURNING name",
                (nanoseconds, str(server.process.pid)),
            )
            return [str(name) for (name,) in rows]

    def verify(self) -> None:
        with open_hub(self.url, environ={**os.environ, **self.environ("checker")}) as hub:
            hub.verify()
            assert hub.catalog.check() == []

    def close(self) -> None:
        for host in list(self.servers):
            self.kill(host)
        self.proxy.close()


@contextmanager
def servers(
    place: Path,
    *options: str,
    database: str = "",
    env: dict[str, str] | None = None,
    **more: str,
) -> Iterator[Farm]:
    farm = Farm(place, *options, database=database, env=env or {}, **more)
    try:
        yield farm
    finally:
        farm.close()
        for name in (farm.schema, f"{farm.schema}.{TENANT}"):
            drop_schema(farm.database, name)


def settled(client: Client, path: str, body: Any, key: str) -> Reply:
    """Repeat a request with one idempotency key until a server answers it for good."""

    def answer() -> Reply | None:
        with suppress(OSError, HTTPException):
            reply = client.ask("POST", path, body, headers={"Idempotency-Key": key})
            if reply.status == 201 or reply.kind not in _AGAIN:
                return reply
        return None

    return eventually(answer, say=f"{path} {key}")


def said(client: Client, path: str) -> list[str]:
    items: list[Any] = []
    query: dict[str, Any] = {}
    while True:
        page = client.get(f"{path}/messages", limit=1000, **query)
        items += page["items"]
        if page["next"] is None:
            return [one["content"] for one in items]
        query["after"] = page["next"]
