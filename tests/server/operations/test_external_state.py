"""External state and the vault over HTTP: names of secrets are returned, values never."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.fixtures.http_server import Client, Serve, Server

VALUE = "swordfish-4711-value"
TOLD = (
    *("browser", "tokens", "events", "messages", "briefing", "context", "checkpoint", "carry"),
    *("handover", "steps", "environment", "memory", "working", "notes"),
)
"""What tells of a session."""


def test_collaborations_are_created_updated_and_listed(client: Client) -> None:
    path = client.new("work")
    made = client.post(
        f"{path}/collaborations", {"name": "pr/7", "kind": "pull_request", "text": "half"}
    )
    assert made["name"] == "pr/7"
    client.post(f"{path}/collaborations", {"name": "pr/7", "status": "done"})
    (one,) = client.get(f"{path}/collaborations")["items"]
    assert (one["status"], one["text"]) == ("done", "half")
    back = client.ask("POST", f"{path}/collaborations", {"name": "pr/7", "status": "draft"})
    assert (back.status, back.kind) == (409, "illegal_move")


def test_rate_windows_are_shared_by_sessions_of_an_agent(client: Client) -> None:
    path, other = client.new("limited", agent="caller"), client.new("too", agent="caller")
    reset = time.time() + 3600
    client.post(f"{path}/windows", {"service": "git", "remaining": 3, "reset": reset, "limit": 9})
    (known,) = client.get(f"{other}/windows")["items"]
    assert (known["service"], known["remaining"], known["limit"]) == ("git", 3, 9)
    wrong = {"service": "git", "remaining": 10, "reset": reset, "limit": 9}
    assert client.ask("POST", f"{path}/windows", wrong).kind == "bad_window"


def test_secret_names_are_listed_but_values_never_returned(client: Client, server: Server) -> None:
    kept = client.put("/secrets/ci/git", {"value": VALUE, "expires": "90d"})
    assert kept["expires"] > time.time_ns()
    assert "ci/git" in [one["name"] for one in client.get("/secrets")["items"]]
    path = client.new("secretive")
    client.post(f"{path}/tokens", {"service": "git", "vault": "ci/git"})
    (token,) = client.get(f"{path}/tokens")["items"]
    assert (token["service"], token["vault"]) == ("git", "ci/git")
    client.post(f"{path}/messages", {"role": "user", "content": f"it is {VALUE}"})
    state = {"cookies": [{"name": "sid", "value": VALUE}], "origins": []}
    browser = client.post(f"{path}/browser", {"urls": ["https://a.example"], "storage": state})
    assert browser["storage"].startswith("browser/")
    assert client.get(f"{path}/browser") == browser
    assert client.post(f"{path}/browser") == browser
    replies = [client.ask("GET", f"{path}/{noun}") for noun in TOLD]
    assert all(reply.status == 200 for reply in replies)
    assert not [reply for reply in replies if VALUE.encode() in reply.body]
    assert VALUE.encode() not in server.log.read_bytes()
    assert client.delete("/secrets/ci/git") == {"removed": "ci/git"}
    missing = client.ask("POST", f"{path}/tokens", {"service": "git", "vault": "ci/git"})
    assert (missing.status, missing.kind) == (404, "no_secret")
    assert client.ask("DELETE", "/secrets/ci/git").status == 404


def test_request_that_would_store_a_secret_is_refused_without_its_name(
    client: Client, tmp_path: Path
) -> None:
    """Which there are is for admins: one who may write finds out by trying."""
    value = "another-sword-8812"
    client.put("/secrets/prod/sword", {"value": value})
    (tmp_path / f"key-{value}").write_text(f"it is {value}")
    path = client.new("keeper", workspace=str(tmp_path))
    refused = client.ask("POST", f"{path}/commits", {"message": "no"})
    assert (refused.status, refused.kind) == (403, "secret_found")
    assert "key-[...]" in refused.data["message"] and ".ortetignore" in refused.data["message"]
    assert "key-[...]" in refused.data["details"]["where"]
    for word in (b"prod/sword", value.encode()):
        assert word not in refused.body
    client.delete("/secrets/prod/sword")


def test_browser_state_may_not_be_a_path_of_the_server(client: Client) -> None:
    path = client.new("paths")
    reply = client.ask("POST", f"{path}/browser", {"storage": "/etc/passwd"})
    assert (reply.status, reply.kind) == (422, "bad_request")


def test_handover_returns_the_generated_files(client: Client) -> None:
    path = client.new("handed", goal="ship it")
    client.put(f"{path}/plan", {"steps": ["build", "test"]})
    files = client.get(f"{path}/handover")["files"]
    assert sorted(files) == ["BRIEFING.md", "feature_list.json", "progress.md"]
    assert "ship it" in files["BRIEFING.md"]


def test_environment_is_recorded_on_request_and_compared(client: Client, tmp_path: Path) -> None:
    path = client.new("around", workspace=str(tmp_path), environment="asked")
    assert client.get(f"{path}/environment") == {"environment": None}
    seen = client.post(f"{path}/environment")["environment"]
    assert client.get(f"{path}/environment")["environment"] == seen
    assert client.post(f"{path}/environment/compare") == {"items": []}


def test_tenant_token_cannot_read_the_host_environment(serve: Serve) -> None:
    server = serve()
    tenant = server.client(server.token("t", "--allow", "admin", "--tenant", "t"))
    path = tenant.new("s")
    for place in ("environment", "environment/compare"):
        assert tenant.ask("POST", f"{path}/{place}", {}).kind == "token_host"


@pytest.mark.parametrize("allow", ["read", "write"])
def test_only_admin_tokens_may_use_the_vault(serve: Serve, allow: str) -> None:
    server = serve()
    client = server.client(server.token("t", "--allow", allow))
    for method, path, body in (
        ("GET", "/secrets", None),
        ("PUT", "/secrets/x", {"value": "y"}),
        ("DELETE", "/secrets/x", None),
    ):
        assert client.ask(method, path, body).kind == "token_scope"
