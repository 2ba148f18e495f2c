"""Access rights: every route is called with every kind of token."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from tests.fixtures.http_server import Reply, Server

import ortet
from ortet.config.environment import open_hub
from ortet.hub.hub import Hub
from ortet.server.app import declared_paths, make_app
from ortet.server.auth.authenticate import AccessPolicy
from ortet.server.auth.tokens import Tokens
from ortet.server.operations.registry import Operation, operations
from ortet.server.session_pool.pool import SessionPool

OPERATIONS = operations()
NOBODY = "ortet_000000000000_" + "0" * 64
_PROBES = ("/healthz", "/readyz", "/metrics")
FREE = (*_PROBES, "/openapi.json", "/docs", "/login", "/logout", "/favicon.ico")


class Scene(NamedTuple):
    """A server with a session of one agent, and tokens of all kinds."""

    server: Server
    theirs: str  # a session of agent "secret"
    owner: str
    reader: str
    other: str  # of another tenant
    limited: str  # for agent "mine" alone
    expired: str
    revoked: str


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    server = Server(tmp_path_factory.mktemp("access"), "--limit", "unknown_rate=0")
    try:
        with ortet.open(server.store) as hub:
            with hub.session("theirs", agent="secret") as session:
                session.say("user", "nobody may know")
            tokens = Tokens(hub.catalog, hub.clock, hub.random)
            made = {
                "owner": tokens.create("owner", "admin")[0],
                "reader": tokens.create("reader", "read")[0],
                "other": tokens.create("other", "admin", tenant="other")[0],
                "limited": tokens.create("limited", "admin", agents=["mine"])[0],
                "expired": tokens.create("expired", "admin", seconds=1e-9)[0],
            }
            revoked, row = tokens.create("revoked", "admin")
            assert server.client(revoked).ask("GET", "/sessions").status == 200
            tokens.revoke(row.id)
        yield Scene(server, session.id, revoked=revoked, **made)
    finally:
        server.kill()


def path_of(operation: Operation, session: str) -> str:
    """With something in place of each parameter."""
    return filled(operation.path.replace("{session}", session))


def filled(path: str) -> str:
    return re.sub(r"\{[^}]*:int\}", "1", re.sub(r"\{[^}:]*(:path)?\}|\*", "x1", path))


def asked(scene: Scene, token: str, operation: Operation, session: str = "") -> Reply:
    body: dict[str, str] | None = {} if operation.writes else None
    client = scene.server.client(token)
    return client.ask(operation.method, path_of(operation, session or scene.theirs), body)


def ids(operation: Operation) -> str:
    return f"{operation.method} {operation.path}"


every = pytest.mark.parametrize("operation", OPERATIONS, ids=ids)
on_session = pytest.mark.parametrize(
    "operation", [one for one in OPERATIONS if "{session}" in one.path], ids=ids
)


@every
def test_every_operation_without_a_valid_token_is_401(scene: Scene, operation: Operation) -> None:
    for token in ("", "garbage", NOBODY, scene.expired, scene.revoked, scene.owner[:-1] + "x"):
        reply = asked(scene, token, operation)
        assert reply.status == 401, (token, reply)
        assert reply.headers["www-authenticate"].startswith("Bearer")
        assert reply.data["kind"] == ("bad_token" if token else "no_token")


@every
def test_token_with_read_scope_cannot_write(scene: Scene, operation: Operation) -> None:
    if operation.needs != "read":
        reply = asked(scene, scene.reader, operation)
        assert (reply.status, reply.kind) == (403, "token_scope")


@on_session
def test_hidden_session_gets_the_same_error_as_a_missing_one(
    scene: Scene, operation: Operation
) -> None:
    missing = "0" * 32
    for token in (scene.other, scene.limited):
        there = asked(scene, token, operation)
        not_there = asked(scene, token, operation, missing)
        assert there.status == not_there.status, there
        assert there.status in (404, 422)
        assert there.body.replace(scene.theirs.encode(), b"") == not_there.body.replace(
            missing.encode(), b""
        )
        by_name = asked(scene, token, operation, "secret%2Ftheirs")
        assert by_name.status == there.status


@pytest.mark.parametrize(
    "operation",
    [one for one in OPERATIONS if one.target in (Hub, SessionPool) and "{session}" not in one.path],
    ids=ids,
)
def test_token_for_some_agents_learns_nothing_of_other_agents(
    scene: Scene, operation: Operation
) -> None:
    reply = asked(scene, scene.limited, operation)
    if not operation.filtered:
        assert (reply.status, reply.kind) == (403, "token_agents")
    for word in (scene.theirs, "theirs", "secret", "nobody may know"):
        assert word.encode() not in reply.body


def test_every_other_route_needs_a_token(scene: Scene) -> None:
    """Those that are in no table, too: found in the application itself."""
    place = scene.server.home / "routes"
    app = make_app(str(place), lambda at, create: open_hub(at, create=create), AccessPolicy())
    try:
        paths = sorted(set(declared_paths(app.routes).values()))
    finally:
        app.state.desk.tenants.close(0.0)
    assert len(paths) > len(OPERATIONS) / 4
    for path in paths:
        if path in FREE or path.startswith(("/static", "/page")) or path == "/":
            continue
        for method in ("GET", "POST", "PUT", "DELETE", "PATCH"):
            reply = scene.server.client("garbage").ask(method, filled(path), {})
            assert reply.status in (401, 404, 405), (method, path, reply)
            assert reply.status != 404 or reply.kind in ("no_route", "no_method"), (path, reply)
