"""Uploads into the bucket: slow clients are ended, and the reserve of the disk stays free."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.fixtures.http_server import Server
from tests.fixtures.waiting import eventually
from tests.server.raw_connection import Raw, raw

from ortet.config.environment import open_hub
from ortet.server.auth.tokens import Tokens

_MORE = 3 << 20
"""Bytes that are not kept in memory."""


class Scene(NamedTuple):
    server: Server
    token: str

    @property
    def received(self) -> list[Path]:
        """What lies there of uploads."""
        return list((self.server.store / "local" / "uploads").glob("*"))


@contextmanager
def served(home: Path, *options: str) -> Iterator[Scene]:
    """On a disk that has nothing left to give."""
    with open_hub(home / "store", create=True) as hub:
        token = Tokens(hub.catalog, hub.clock, hub.random).create("writer", "write")[0]
    (home / "store" / "config.toml").write_text("reserve = 1000000000\n")
    server = Server(home, *options)
    try:
        yield Scene(server, token)
    finally:
        server.kill()


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A server that waits for two seconds."""
    with served(tmp_path_factory.mktemp("uploads"), "--limit", "body_seconds=2") as made:
        yield made


def test_upload_that_stops_sending_is_408(scene: Scene) -> None:
    who = f"Authorization: Bearer {scene.token}"
    for line in ("PUT /raw/bucket/things/slow", "POST /raw/catalog/head"):
        with raw(scene.server) as connection:
            connection.begin(line, _MORE, who)
            connection.send(b"a little")
            assert connection.status() == 408
    assert not scene.received


@pytest.mark.slow
def test_slow_upload_without_a_token_is_401(scene: Scene) -> None:
    """A byte now and then would keep a place for ever."""
    for path in ("catalog/head", "signal/token", "bucket/list"):
        with raw(scene.server) as connection:
            connection.begin(f"POST /raw/{path}", 60_000)

            def answered(connection: Raw = connection) -> bool:
                connection.send(b"x")
                return bool(select.select([connection.sock], [], [], 0.1)[0])

            eventually(answered)
            assert connection.status() == 401


def test_uploads_without_a_valid_token_store_nothing(scene: Scene) -> None:
    for who in ((), ("Authorization: Bearer ortet_00_00",)):
        with raw(scene.server) as connection:
            connection.head("PUT /raw/bucket/things/theirs", f"Content-Length: {1 << 40}", *who)
            assert connection.status() == 401  # and the connection ends
    assert not scene.received


def test_upload_that_would_use_the_disk_reserve_is_refused(tmp_path: Path) -> None:
    with served(tmp_path) as scene:  # which waits for us, however slow this host is
        _leaves_what_is_reserved(scene)


def _leaves_what_is_reserved(scene: Scene) -> None:
    client = scene.server.client(scene.token)
    for size in (100, _MORE):
        reply = client.ask("PUT", "/raw/bucket/things/large", bytes(size))
        assert (reply.status, reply.kind) == (403, "disk_reserve")
    with raw(scene.server) as connection:  # it is refused before all of it is there
        who = f"Authorization: Bearer {scene.token}"
        connection.begin("PUT /raw/bucket/things/large", 100 << 20, who)
        connection.send(bytes(_MORE))
        assert connection.sock.recv(12, socket.MSG_WAITALL) == b"HTTP/1.1 403"
    assert client.ask("GET", "/raw/bucket/things/large").status == 404
    assert not scene.received
