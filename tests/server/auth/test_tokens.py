"""A revoked token stops working at once, also within a request that began before."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from tests.fixtures.http_server import Client, Server
from tests.fixtures.http_terminal import shown, terminal, type_
from tests.fixtures.waiting import WAIT
from tests.server.event_streams import streaming
from tests.server.raw_connection import raw
from websockets.exceptions import ConnectionClosed

from ortet.config.environment import open_hub
from ortet.hub.hub import Hub
from ortet.server.auth.tokens import Tokens

LARGE = 1 << 17
"""Bytes of a body that is not taken before it is known who sends it."""


class Scene(NamedTuple):
    server: Server
    hub: Hub
    owner: Client

    @property
    def tokens(self) -> Tokens:
        return Tokens(self.hub.catalog, self.hub.clock, self.hub.random)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    server = Server(tmp_path_factory.mktemp("revoked"), "--limit", "unknown_rate=0")
    try:
        with open_hub(server.store, environ=server.env) as hub:
            tokens = Tokens(hub.catalog, hub.clock, hub.random)
            yield Scene(server, hub, server.client(tokens.create("owner", "admin")[0]))
    finally:
        server.kill()


@pytest.mark.parametrize(
    ("line", "begins"),
    [
        ("POST {path}/messages", b'{"role": "user", "content": "'),
        ("PUT {path}/artifacts/thing.txt", b""),
        ("PUT {path}/files/thing.txt", b""),
        ("PUT /raw/bucket/things/thing", b""),
        ("POST /raw/catalog/put_row", b""),
    ],
)
def test_request_body_completed_after_revocation_is_401_and_not_applied(
    scene: Scene, line: str, begins: bytes
) -> None:
    path = scene.owner.new("sent")
    token, row = scene.tokens.create("one", "admin")
    told = scene.owner.get(f"{path}/events")["items"]
    with raw(scene.server) as connection:
        who = f"Authorization: Bearer {token}"
        connection.begin(line.format(path=path), LARGE, who, "Connection: close")
        connection.send(begins)
        scene.tokens.revoke(row.id)
        end = b'"}' if begins else b""
        connection.send(b"x" * (LARGE - len(begins) - len(end)) + end)
        assert connection.status() == 401
    assert scene.owner.get(f"{path}/events")["items"] == told
    assert scene.owner.ask("GET", "/raw/bucket/things/thing").status == 404


def test_event_stream_ends_when_its_token_is_revoked(scene: Scene) -> None:
    path = scene.owner.new("followed")
    token, row = scene.tokens.create("one", "read")
    where = f"{path}/events/stream"
    with streaming(scene.server.url, where, token=token, heartbeat=60) as stream:
        stream.upto("live")
        scene.owner.post(f"{path}/messages", {"role": "user", "content": "before"})
        events = iter(stream)
        assert next(events).data["data"]["content"] == "before"
        scene.tokens.revoke(row.id)
        scene.owner.post(f"{path}/messages", {"role": "user", "content": "after"})
        assert [(one.name, one.data) for one in events] == [("end", {"reason": "token"})]


@pytest.mark.criu
def test_terminal_input_after_revocation_is_not_executed(scene: Scene) -> None:
    path = scene.owner.new("typed")
    token, row = scene.tokens.create("one", "admin")
    with terminal(scene.server.url, path, token) as socket:
        type_(socket, "echo $((6*7))-before")
        shown(socket, "42-before")
        scene.tokens.revoke(row.id)
        type_(socket, "touch typed-after")
        with pytest.raises(ConnectionClosed) as caught:
            while True:
                socket.recv(timeout=WAIT)
        assert caught.value.rcvd is not None and caught.value.rcvd.code == 1008
    listed = scene.owner.ask("GET", f"{path}/files")
    assert "typed-after" not in json.loads(listed.body)["names"]


def test_request_with_two_tokens_is_401(scene: Scene) -> None:
    """What stands before a server may have looked at the other."""
    token, other = (scene.tokens.create(name, "read")[0] for name in ("one", "other"))
    for shown_ in ((token, other), (token, "x"), ("x", token)):
        with raw(scene.server) as connection:
            lines = [f"Authorization: Bearer {one}" for one in shown_]
            connection.head("GET /sessions", *lines, "Connection: close")
            assert connection.status() == 401
    for names in ((), ("Host: other.example",)):
        with raw(scene.server) as connection:
            who = f"Authorization: Bearer {token}"
            connection.head("GET /sessions", *names, who, "Connection: close")
            assert connection.status() == (403 if names else 200)


@pytest.mark.parametrize("origin", ["http://[", "http://[x]", "//", "\xff"])
def test_malformed_origin_is_treated_as_foreign(scene: Scene, origin: str) -> None:
    body = {"token": scene.owner.token}
    reply = scene.server.client().ask("POST", "/login", body, headers={"Origin": origin})
    assert (reply.status, reply.kind) == (403, "foreign_page")
