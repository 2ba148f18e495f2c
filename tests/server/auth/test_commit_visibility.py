"""Commits of hidden sessions stay hidden if a new session takes a name of theirs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from tests.fixtures.http_server import Client, Server

import ortet
from ortet.server.auth.tokens import Tokens


class Scene(NamedTuple):
    owner: Client
    limited: Client  # for agent "default"


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    server = Server(tmp_path_factory.mktemp("sight"))
    try:
        with ortet.open(server.store) as hub:
            tokens = Tokens(hub.catalog, hub.clock, hub.random)
            owner = tokens.create("owner", "admin")[0]
            limited = tokens.create("limited", "write", agents=["default"])[0]
        yield Scene(server.client(owner), server.client(limited))
    finally:
        server.kill()


def secret(owner: Client, name: str) -> tuple[str, str]:
    """A session of another agent; its path, and a commit of it."""
    path = owner.new(name, agent="other")
    owner.post(f"{path}/messages", {"role": "user", "content": "nobody may know"})
    found: str = owner.post(f"{path}/commits", {"message": "hushed"})["oid"]
    return path, found


def unseen(limited: Client, path: str, oid: str) -> None:
    """By no way."""
    for ref in (oid, "HEAD@{1}", "HEAD@{2}", "HEAD~1"):
        assert limited.ask("POST", f"{path}/restore", {"ref": ref}).status == 404, ref
    assert limited.ask("GET", f"/commits/{oid}").status == 404
    assert limited.ask("GET", f"/commits/{oid}/files").status == 404
    assert limited.ask("GET", "/bundles", ref=oid).status == 404
    assert limited.ask("POST", f"{path}/undo", {"n": 2}).status >= 400
    for where in (f"{path}/reflog", f"{path}/commits", "/commits", "/branches", f"{path}/messages"):
        told = limited.ask("GET", where).body
        assert oid.encode() not in told and b"nobody may" not in told and b"hushed" not in told


def test_new_session_with_a_reused_name_shows_no_commit_of_the_removed_one(scene: Scene) -> None:
    owner, limited = scene
    path, oid = secret(owner, "again")
    owner.post(f"{path}/close")
    owner.delete(path)
    mine = limited.new("again")
    assert limited.get(mine)["branch"] == "again"
    limited.post(f"{mine}/messages", {"role": "user", "content": "mine"})
    limited.post(f"{mine}/commits")
    unseen(limited, mine, oid)
    assert oid in str(owner.get(f"{mine}/reflog"))  # who sees all sees that, too


def test_new_session_does_not_take_over_a_hidden_branch_of_its_name(scene: Scene) -> None:
    owner, limited = scene
    _, oid = secret(owner, "work")
    owner.post("/branches", {"name": "loose", "ref": oid})
    mine = limited.new("loose")
    limited.post(f"{mine}/messages", {"role": "user", "content": "mine"})
    limited.post(f"{mine}/commits")
    unseen(limited, mine, oid)
