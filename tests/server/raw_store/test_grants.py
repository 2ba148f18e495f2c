"""Access to the raw store: a token gets no more than the operations would give it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
import pytest
from tests.fixtures.http_server import Server
from tests.server.raw_connection import raw

import ortet
from ortet._util.codec import encode
from ortet.backends.base import RowChange
from ortet.backends.remote.protocol import READS, WRITES
from ortet.config.environment import open_hub
from ortet.errors import Refused
from ortet.hub.hub import Hub
from ortet.ids import from_hex
from ortet.server.auth.tokens import Tokens
from ortet.server.raw_store.routes import raw_routes
from ortet.sessions.history.fork_session import fork_at


class Scene(NamedTuple):
    server: Server
    host: str
    admin: str
    writer: str
    reader: str
    some: str  # agents, of which it is admin
    plain: str  # an admin's, for HTTP alone
    revoked: str

    def hub(self, token: str, where: str = "elsewhere") -> Hub:
        """As somebody has it elsewhere."""
        environ = {**self.server.env, "ORTET_TOKEN": token, "ORTET_URL": ""}
        environ["XDG_CACHE_HOME"] = str(self.server.home / where)
        return open_hub(self.server.url, environ=environ)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    home = tmp_path_factory.mktemp("raw")
    # strangers ask much here
    server = Server(home, "--limit", "unknown_rate=0", env={"ORTET_VAULT_KEY": "ab" * 32})
    try:
        with open_hub(server.store, environ=server.env) as hub:
            hub.vault.put("prod/database", "not for everybody")
            tokens = Tokens(hub.catalog, hub.clock, hub.random)
            made = [tokens.create(one, one)[0] for one in ("admin", "write", "read")]
            gone, row = tokens.create("gone", "admin")
            tokens.revoke(row.id)
            made += [
                tokens.create("some", "admin", agents=["mine"])[0],
                tokens.create("plain", "admin", raw=False)[0],
                gone,
            ]
            yield Scene(server, hub.store.host, *made)
    finally:
        server.kill()


READING = [
    ("GET", "hello"),
    *(("POST", f"catalog/{name}") for name in sorted(READS)),
    *(("POST", f"signal/{verb}") for verb in ("token", "wait")),
    *(("POST", f"bucket/{verb}") for verb in ("size", "list", "ranges")),
    ("GET", "bucket/packs/x.pack"),
]
WRITING = [
    *(("POST", f"catalog/{name}") for name in sorted(WRITES)),
    ("POST", "signal/notify"),
    ("POST", "bucket/delete"),
    ("PUT", "bucket/packs/x.pack"),
]
UNKNOWN = [("POST", f"{part}/nonsense") for part in ("catalog", "signal", "bucket")]


def test_raw_routes_are_exactly_the_listed_ones() -> None:
    declared = {
        (method, route.path)
        for route in raw_routes(cast("Any", None))
        for method in route.methods or ()
        if method != "HEAD"
    }
    assert declared == {
        ("GET", "/raw/hello"),
        ("POST", "/raw/catalog/{method}"),
        ("POST", "/raw/signal/{verb}"),
        ("POST", "/raw/bucket/{verb}"),
        ("GET", "/raw/bucket/{key:path}"),
        ("PUT", "/raw/bucket/{key:path}"),
    }


@pytest.mark.parametrize(("method", "path"), [*READING, *WRITING, *UNKNOWN])
def test_every_raw_route_requires_a_valid_raw_token(scene: Scene, method: str, path: str) -> None:
    """A token for some agents, or for HTTP alone, gets nothing of the store itself, whatever it
    allows; whoever has none is not even told what there is."""
    body = None if method == "GET" else b"\x80"
    for token, status, kind in (
        ("", 401, "no_token"),
        ("ortet_0000_00", 401, "bad_token"),
        (scene.revoked, 401, "bad_token"),
        (scene.some, 403, "token_agents"),
        (scene.plain, 403, "token_raw"),
        *([(scene.reader, 403, "token_scope")] if (method, path) in WRITING else []),
    ):
        reply = scene.server.client(token).ask(method, f"/raw/{path}", body)
        assert (reply.status, reply.kind) == (status, kind), token


def test_access_create_no_raw_makes_a_token_without_raw_access(scene: Scene) -> None:
    token = scene.server.token("agent", "--no-raw")
    client = scene.server.client(token)
    assert client.ask("GET", "/raw/hello").kind == "token_raw"
    path = client.new("by-http")
    client.post(f"{path}/messages", {"role": "user", "content": "hello"})
    with pytest.raises(Refused) as caught:
        scene.hub(token)
    assert caught.value.kind == "token_raw"


def test_raw_rows_cannot_name_a_directory_of_the_server(scene: Scene, tmp_path: Path) -> None:
    """Else a commit over HTTP would read it, and a restore write to it."""
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    mine.mkdir()
    theirs.mkdir()
    (theirs / "key").write_text("private")
    with scene.hub(scene.writer) as hub:
        with hub.session("planted", workspace=mine) as session:
            commit = session.commit("one").oid
        row = hub.workspaces.table.need(session.internals.row.branch)
        elsewhere = msgspec.structs.replace(row, path=os.fsencode(theirs))
        here = msgspec.structs.replace(elsewhere, host=scene.host)
        for bad in (here, msgspec.structs.replace(row, machine="../../../elsewhere")):
            change = RowChange("workspace", bad.name, encode(bad))
            with pytest.raises(Refused) as caught:
                hub.catalog.put_row(change.kind, change.key, encode(bad))
            assert caught.value.kind == "token_host"
            with pytest.raises(Refused):
                hub.catalog.move([], verb="x", rows=[change])
        with pytest.raises(Refused):
            hub.catalog.put_row("place", here.location_key, row.name.encode())
        hub.catalog.put_row("workspace", row.name, encode(elsewhere))
    client = scene.server.client(scene.writer)
    path = f"/sessions/{session.id}"
    taken = client.ask("POST", f"{path}/commits", {"message": "two"})
    assert (taken.status, taken.kind) == (403, "other_host")
    assert client.ask("POST", f"{path}/restore", {"ref": commit}).kind == "other_host"
    assert [one.name for one in theirs.iterdir()] == ["key"]
    assert client.ask("GET", f"/commits/{row.name}/files/key").kind == "no_file"


def test_session_row_cannot_make_the_server_open_a_host_directory(
    scene: Scene, tmp_path: Path
) -> None:
    """One that was begun elsewhere in a directory, and has not used it: the server would be the
    first to open what lies there on its own host."""
    (tmp_path / "key").write_text("private")
    client = scene.server.client(scene.writer)
    with scene.hub(scene.writer) as hub:
        with hub.session("begun-elsewhere", workspace=tmp_path) as session:
            session.say("user", "hello")
        row = session.internals.row
        assert hub.workspaces.table.get(row.branch) is None
        taken = client.ask("POST", f"/sessions/{row.id}/commits", {"message": "two"})
        assert (taken.status, taken.kind) == (403, "other_host")
        (version,) = [one.version for one in hub.sessions() if one.id == row.id]
        for bad in ({"host": ""}, {"host": scene.host}):
            changed = msgspec.structs.replace(row, version=0, **bad)
            with pytest.raises(Refused) as caught:
                hub.catalog.put_row("session", row.id, encode(changed), expect=version)
            assert caught.value.kind == "token_host"
            with pytest.raises(Refused):
                hub.catalog.put_row("session", "f" * 32, encode(changed))
        with hub.session("begun-elsewhere") as session:  # who is there goes on
            session.commit("there")
    assert hub.workspaces.table.need(row.branch).host != scene.host


def test_raw_client_cannot_change_a_session_with_a_server_directory(
    scene: Scene, tmp_path: Path
) -> None:
    """Else its commits would write files there, and another session would have its directory."""
    with (
        open_hub(scene.server.store, environ=scene.server.env) as hub,
        hub.session("of-the-server", workspace=tmp_path) as session,
    ):
        session.commit("one")
    with scene.hub(scene.writer) as hub:
        row = hub.internals.session_manager.table.get(session.id)
        for change in ({"profile": "worker"}, {"path": "/"}, {"host": "other"}, {"branch": "x"}):
            bad = msgspec.structs.replace(row, version=0, **change)
            with pytest.raises(Refused) as caught:
                hub.catalog.put_row("session", row.id, encode(bad))
            assert caught.value.kind == "token_host", change
        other = msgspec.structs.replace(row, id="e" * 32, name="z", host="other", version=0)
        with pytest.raises(Refused):
            hub.catalog.put_row("session", other.id, encode(other))
        with hub.session("of-the-server") as session:  # what it says is theirs to write
            session.say("user", "from afar")


def test_workspace_of_another_host_is_not_opened_here(scene: Scene, tmp_path: Path) -> None:
    """A store that hubs of several hosts share knows directories of all of them."""
    (tmp_path / "file").write_text("mine")
    with scene.hub(scene.admin) as hub, hub.session("theirs", workspace=tmp_path) as session:
        first = session.commit("one").oid
    with scene.hub(scene.admin, "third") as hub:
        with hub.session("theirs") as session:
            with pytest.raises(Refused) as caught:
                session.run("true")
            assert caught.value.kind == "other_host"
            with pytest.raises(Refused):
                session.restore(first)
            (fork,) = fork_at(session, from_hex(first), n=1, machine=False)
            fork.say("user", "goes on without them")
        with hub.session("theirs", workspace=tmp_path) as session:  # which is asked for
            assert session.run("cat file").stdout == "mine"
        with hub.session("theirs") as session:
            session.commit("two")


def test_raw_client_cannot_take_over_a_workspace_of_the_server(
    scene: Scene, tmp_path: Path
) -> None:
    with ortet.open(scene.server.store) as hub, hub.workspace(tmp_path, name="kept"):
        pass
    with scene.hub(scene.writer) as hub:
        row = hub.workspaces.table.need("kept")
        for value in (None, encode(msgspec.structs.replace(row, host="other"))):
            with pytest.raises(Refused):
                hub.catalog.move([], verb="x", rows=[RowChange("workspace", "kept", value)])
        with pytest.raises(Refused):
            hub.catalog.drop_row("workspace", "kept")
        with pytest.raises(Refused):
            hub.catalog.drop_row("place", row.location_key)
    with scene.hub(scene.admin) as hub:  # who owns the host may
        moved = msgspec.structs.replace(row, network="outbound")
        hub.catalog.put_row("workspace", "kept", encode(moved))
        assert hub.workspaces.table.need("kept") == moved


def test_names_of_secrets_are_for_admins(scene: Scene) -> None:
    for token in (scene.reader, scene.writer):
        with scene.hub(token) as hub:
            assert hub.vault.names() == []
            assert not hub.vault.has("prod/database")
            with pytest.raises(Refused):
                hub.catalog.put_row("vault", "prod/database", b"another")
            with pytest.raises(Refused):
                hub.catalog.drop_row("vault", "prod/database")
    with scene.hub(scene.admin) as hub:
        assert hub.vault.names() == ["prod/database"]


def test_raw_rows_that_need_an_admin_are_refused_for_a_writer(scene: Scene) -> None:
    with scene.hub(scene.writer) as hub:
        with hub.session("held") as session:
            session.say("user", "keep me")
        with pytest.raises(Refused):
            hub.governance.hold(session.id, "a court asks")
        for kind in ("hold", "retention", "erasing"):
            with pytest.raises(Refused):
                hub.catalog.put_row(kind, "x", b"")
        with pytest.raises(Refused):
            hub.catalog.erase_events(session.internals.row.timeline, [1])
        with pytest.raises(Refused):
            hub.catalog.trim_ops(1)
        hub.remove("held")


def test_large_body_without_a_token_is_401_before_it_is_read(scene: Scene) -> None:
    """More than that is not even taken: it would lie in memory."""
    for path in ("/raw/catalog/head", "/raw/signal/token", "/raw/bucket/list"):
        with raw(scene.server) as connection:
            connection.head(f"POST {path}", "Content-Length: 60000000")
            connection.send(b"x" * (128 << 10))
            assert connection.status() == 401


@pytest.mark.parametrize(
    ("path", "call"),
    [
        ("signal/token", {"topics": []}),
        ("signal/token", {"topics": ["a", "b"]}),
        ("bucket/size", {"keys": []}),
        ("bucket/size", {"keys": ["a", "b"]}),
        ("catalog/heads", {"limit": 2**64 - 1}),
        ("catalog/rows", {"kind": "session", "limit": 2**64 - 1}),
        ("catalog/ops", {"after": 2**64 - 1}),
        ("catalog/trim_ops", {"before_time": 2**64 - 1}),
    ],
)
def test_malformed_raw_calls_are_422(scene: Scene, path: str, call: dict[str, object]) -> None:
    client = scene.server.client(scene.admin)
    reply = client.ask("POST", f"/raw/{path}", msgspec.msgpack.encode(call))
    assert (reply.status, reply.kind) == (422, "bad_call")


def test_signal_wait_with_an_invalid_timeout_returns_at_once(scene: Scene) -> None:
    client = scene.server.client(scene.reader)
    asked = client.ask("POST", "/raw/signal/token", msgspec.msgpack.encode({"topics": ["x"]}))
    mark = msgspec.msgpack.decode(asked.body)
    for timeout in (float("nan"), -1.0, float("-inf")):
        call = msgspec.msgpack.encode({"topic": "x", "mark": mark, "timeout": timeout})
        reply = client.ask("POST", "/raw/signal/wait", call)
        assert (reply.status, msgspec.msgpack.decode(reply.body)) == (200, False)
