"""Maintenance and governance of a store over HTTP: verify, sweep, audit, hold, erase, journal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.fixtures.http_server import Client, Serve, Server

import ortet
from ortet.server.auth.tokens import Tokens

WHOLE: tuple[tuple[str, str, Any], ...] = (
    ("POST", "/store/verify", {}),
    ("POST", "/store/sweep", {"dry_run": True}),
    ("POST", "/retain", {"dry_run": True}),
    ("POST", "/erase", {"user": "ann"}),
    ("GET", "/erasures", None),
    ("GET", "/host", None),
    ("DELETE", "/workspaces/x", None),
)


def said(client: Client, path: str, *texts: str) -> str:
    """The commit that holds them."""
    for text in texts:
        client.post(f"{path}/messages", {"role": "user", "content": text})
    oid: str = client.post(f"{path}/commits", {})["oid"]
    return oid


def test_store_counts_sessions_and_verify_finds_no_problems(client: Client) -> None:
    path = client.new("counted", agent="counter")
    said(client, path, "hello")
    found = client.get("/store")
    assert found["agents"]["counter"] == 1
    assert sum(found["sessions"].values()) >= 1
    assert found["branches"] >= 1
    assert found["bytes"] == found["pack_bytes"] + found["tail_bytes"] > 0
    report = client.post("/store/verify")
    assert report["problems"] == []
    assert report["commits"] >= 1


def test_verify_of_a_damaged_store_is_500_corrupt(serve: Serve) -> None:
    server = serve("--no-auth")
    client = server.client()
    said(client, client.new("damaged"), "hello", "x" * 3000)
    assert server.stop() == 0
    held = [*server.store.rglob("*.tail"), *server.store.rglob("*.pack")]
    victim = max(held, key=lambda one: one.stat().st_size)
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 0xFF
    victim.write_bytes(bytes(data))
    client = serve("--no-auth").client()
    reply = client.ask("POST", "/store/verify", {})
    assert reply.status == 500
    assert reply.data["error"] == "corrupt"


def test_sweep_frees_unreferenced_objects(client: Client) -> None:
    path = client.new("swept")
    said(client, path, "one")
    told = client.post("/store/sweep", {"dry_run": True, "expire_days": 0})
    assert told["dry_run"]
    assert told["bytes_freed"] == told["bytes_before"] - told["bytes_after"]
    done = client.post("/store/sweep", {"expire_days": 0, "min_garbage": 0})
    assert not done["dry_run"]
    assert client.post("/store/verify")["problems"] == []
    assert [one["content"] for one in client.get(f"{path}/messages")["items"]] == ["one"]
    for body in ({"expire_days": -1}, {"min_garbage": 2}, {"dry_run": 1}, {"all": True}):
        assert client.ask("POST", "/store/sweep", body).status == 422, body


def test_audit_lists_actors_and_actions(client: Client) -> None:
    path = client.new("audited")
    said(client, path, "one", "two")
    client.post(f"{path}/decisions", {"text": "go", "why": "it is time"})
    found = client.get(f"{path}/audit")
    assert found["events"] == len(found["lines"])
    assert found["sealed"] < found["events"]
    assert (found["lines"][-1]["what"], found["lines"][-1]["why"]) == ("go", "it is time")
    assert found["head"] == found["lines"][-1]["hash"]
    assert found["next"] is None
    part = client.get(f"{path}/audit", limit=2)
    rest = client.get(f"{path}/audit", since=part["next"])
    assert part["lines"] + rest["lines"] == found["lines"]
    assert client.ask("GET", f"{path}/audit", since="x").status == 422


def test_session_on_hold_cannot_be_erased_or_archived(client: Client) -> None:
    path = client.new("held")
    said(client, path, "evidence")
    made = client.put(f"{path}/hold", {"why": "incident 17"})
    assert made["why"] == "incident 17"
    assert [one["name"] for one in client.get("/holds")["items"]] == ["held"]
    assert client.get(path)["hold"] == "incident 17"
    reply = client.ask("POST", f"{path}/erase", {})
    assert (reply.status, reply.kind) == (403, "on_hold")
    assert client.ask("POST", f"{path}/archive", {}).kind == "on_hold"
    assert client.delete(f"{path}/hold") == made
    assert client.ask("DELETE", f"{path}/hold").kind == "no_hold"
    assert client.get("/holds")["items"] == []


def test_retention_policy_is_set_per_agent_and_applied_by_retain(client: Client) -> None:
    assert client.get("/retention/old")["keep_messages"] is None
    made = client.put("/retention/old", {"keep_messages": 0, "archive_after": 90})
    assert made == {"agent": "old", "keep_messages": 0, "archive_after": 90}
    assert client.get("/retention")["items"] == [made]
    path = client.new("forgetful", agent="old")
    said(client, path, "soon forgotten")
    client.post(f"{path}/close", {})
    told = client.post("/retain", {"dry_run": True})
    assert told["dry_run"]
    deeds = {one["what"]: one for one in told["deeds"] if one["name"] == "forgetful"}
    assert deeds["erase"]["events"] == 1
    done = client.post("/retain", {})
    assert ("erase", "forgetful") in [(one["what"], one["name"]) for one in done["deeds"]]
    assert client.get(f"{path}/messages")["items"] == []
    assert client.get(f"{path}/audit")["erased"] >= 1
    for body in ({"keep_messages": -1}, {"keep_messages": "long"}, {"days": 1}):
        assert client.ask("PUT", "/retention/old", body).status == 422, body
    assert client.ask("PUT", "/retention/a%20b", {}).status == 422


def test_erase_removes_content_and_returns_a_receipt(server: Server, client: Client) -> None:
    path = client.new("erased")
    oid = said(client, path, "a secret word: xyzzy", "kept")
    (fork,) = client.post(f"{path}/forks", {})["forks"]
    seq = client.get(f"{path}/messages")["items"][0]["seq"]
    receipt = client.post(f"{path}/erase", {"seqs": [seq]})
    assert [one["seq"] for one in receipt["events"]] == [seq]
    assert receipt["signature"]
    assert client.get(f"{path}/events/{seq}")["erased"]
    assert [one["content"] for one in client.get(f"{path}/messages")["items"]] == ["kept"]
    theirs = client.get(f"/sessions/{fork['id']}/messages")["items"]
    assert [one["content"] for one in theirs] == ["kept"]
    assert client.get(f"/commits/{oid}")["commit"]["oid"] == oid
    assert client.get("/diff", old=oid, new=oid)["come"]["count"] == 0
    assert [one["id"] for one in client.get(f"{path}/audit")["erasures"]] == [receipt["id"]]
    assert receipt["id"] in [one["id"] for one in client.get("/erasures")["items"]]
    assert client.post("/store/verify")["problems"] == []
    if receipt["complete"]:
        stored = [one for one in (server.store / "bucket").rglob("*") if one.is_file()]
        assert all(b"xyzzy" not in one.read_bytes() for one in stored)


def test_erase_of_a_user_covers_every_session(server: Server, client: Client) -> None:
    with ortet.open(server.store) as hub:
        for name in ("with-ann", "with-ann-too"):
            with hub.session(name) as session:
                session.say("user", "I am Ann", user="ann")
                session.say("user", "I am not")
                session.commit("said")
    receipt = client.post("/erase", {"user": "ann"})
    assert len(receipt["events"]) == 2
    for name in ("with-ann", "with-ann-too"):
        found = client.get(f"/sessions/{name}/messages")["items"]
        assert [one["content"] for one in found] == ["I am not"]
    assert client.ask("POST", "/erase", {}).status == 422
    assert client.ask("POST", "/erase", {"user": ""}).status == 422


def test_journal_is_downloaded_as_ndjson_with_an_etag(client: Client) -> None:
    path = client.new("lines")
    said(client, path, "one", "two")
    client.post(f"{path}/comments", {"text": "beside"})
    reply = client.ask("GET", f"{path}/journal")
    assert reply.headers["content-type"] == "application/x-ndjson"
    assert "attachment" in reply.headers["content-disposition"]
    events = [json.loads(line) for line in reply.body.splitlines()]
    assert events == client.get(f"{path}/events", limit=1000)["items"]
    known = {"If-None-Match": reply.headers["etag"]}
    assert client.ask("GET", f"{path}/journal", headers=known).status == 304
    some = client.ask("GET", f"{path}/journal", since=2, upto=3).body.splitlines()
    assert [json.loads(line)["seq"] for line in some] == [2, 3]
    assert client.ask("GET", "/sessions/nobody/journal").kind == "no_session"
    assert client.ask("GET", f"{path}/journal", since=-1).status == 422


def test_host_lists_its_capabilities(client: Client) -> None:
    found = client.get("/host")
    assert found["capabilities"]
    assert {"name", "ok", "detail", "fix"} <= set(found["capabilities"][0])


def test_commit_files_are_written_to_a_directory_and_workspaces_deleted(
    client: Client, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "a.txt").write_text("a\n")
    path = client.new("placed", workspace=str(project))
    oid = said(client, path, "one")
    report = client.post(f"/commits/{oid}/write", {"to": str(tmp_path / "copy")})
    assert report["written"] >= 1
    assert (tmp_path / "copy" / "a.txt").read_text() == "a\n"
    again = client.ask("POST", f"/commits/{oid}/write", {"to": str(tmp_path / "copy")})
    assert 400 <= again.status < 500
    assert client.ask("POST", f"/commits/{oid}/write", {"to": "relative"}).status == 422
    (fork,) = client.post(f"{path}/forks", {})["forks"]
    assert client.delete("/workspaces/placed%2F1") == {"name": "placed/1"}
    assert client.ask("DELETE", "/workspaces/placed%2F1").kind == "no_workspace"
    assert client.get(f"/commits/{fork['branch'].replace('/', '%2F')}")["commit"]["oid"] == oid


class Scene(NamedTuple):
    writer: Client
    limited: Client
    tenant: Client
    own: str
    other: str


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    server = Server(tmp_path_factory.mktemp("kept"))
    try:
        with ortet.open(server.store) as hub:
            ids = {}
            for agent in ("mine", "theirs"):
                with hub.session(f"of-{agent}", agent=agent) as session:
                    session.say("user", f"only {agent} know this")
                    ids[agent] = session.id
                hub.governance.hold(session.id, f"held for {agent}")
                hub.governance.retention(agent, keep_messages=1)
            tokens = Tokens(hub.catalog, hub.clock, hub.random)
            writer = server.client(tokens.create("writer", "write")[0])
            limited = server.client(tokens.create("limited", "admin", agents=["mine"])[0])
            tenant = server.client(tokens.create("tenant", "admin", tenant="acme")[0])
        yield Scene(writer, limited, tenant, ids["mine"], ids["theirs"])
    finally:
        server.kill()


@pytest.mark.parametrize(("method", "path", "body"), WHOLE, ids=str)
def test_store_wide_operations_need_an_admin_token_for_all_agents(
    scene: Scene, method: str, path: str, body: Any
) -> None:
    assert scene.writer.ask(method, path, body).kind == "token_scope"
    assert scene.limited.ask(method, path, body).kind == "token_agents"


def test_token_for_one_agent_sees_only_its_own_holds_and_retention(scene: Scene) -> None:
    client = scene.limited
    assert [one["session"] for one in client.get("/holds")["items"]] == [scene.own]
    assert [one["agent"] for one in client.get("/retention")["items"]] == ["mine"]
    assert client.ask("GET", "/retention/theirs").kind == "token_agent"
    assert client.ask("PUT", "/retention/theirs", {}).kind == "token_agent"
    assert client.ask("GET", "/store").kind == "token_agents"
    for method, path, body in (
        ("GET", "audit", None),
        ("GET", "journal", None),
        ("PUT", "hold", {}),
        ("DELETE", "hold", None),
        ("POST", "erase", {}),
    ):
        reply = client.ask(method, f"/sessions/{scene.other}/{path}", body)
        assert (reply.status, reply.kind) == (404, "no_session")


def test_tenant_token_cannot_use_the_host(scene: Scene) -> None:
    assert scene.tenant.ask("GET", "/host").kind == "token_host"
    path = scene.tenant.new("apart")
    oid = said(scene.tenant, path, "hello")
    reply = scene.tenant.ask("POST", f"/commits/{oid}/write", {"to": "/tmp/never-made"})
    assert reply.kind == "token_host"
    assert scene.tenant.get("/store")["agents"] == {"default": 1}
    assert scene.tenant.get("/holds")["items"] == []
