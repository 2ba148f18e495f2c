"""Sessions by name, and tokens from the shell: what a person types and gets."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.http.conftest import Client, Serve, Server


def test_a_session_of_any_agent_is_found_by_its_name(client: Client) -> None:
    begun = client.post("/sessions", {"name": "alone", "agent": "dev"})
    assert client.get("/sessions/alone")["id"] == begun["id"]
    client.post("/sessions/alone/messages", {"role": "user", "content": "hi"})
    for agent in ("one", "two"):
        client.post("/sessions", {"name": "both", "agent": agent})
    reply = client.ask("GET", "/sessions/both")
    assert (reply.status, reply.data["kind"]) == (409, "ambiguous")
    first = client.post("/sessions", {"name": "both"})
    assert client.get("/sessions/both")["id"] == first["id"]  # the default agent's goes before
    assert client.ask("GET", "/sessions/neither").data["kind"] == "no_session"


def test_a_token_finds_by_name_only_what_it_sees(serve: Serve) -> None:
    server = serve()
    owner = server.client(server.token("owner", "--allow", "admin"))
    mine = server.client(server.token("mine", "--agent", "mine"))
    owner.post("/sessions", {"name": "talk"})
    owner.post("/sessions", {"name": "secret", "agent": "theirs"})
    seen = owner.post("/sessions", {"name": "talk", "agent": "mine"})
    assert mine.get("/sessions/talk")["id"] == seen["id"]
    assert mine.ask("GET", "/sessions/secret").status == 404


def run(server: Server, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ortet", "access", *words],
        cwd=server.home,
        env=server.env,
        capture_output=True,
        text=True,
        check=False,
    )


def test_tokens_from_the_shell(serve: Serve) -> None:
    server = serve()
    made = run(server, "create", "ci", "--allow", "read", "--days", "30", "-q").stdout.strip()
    assert made.startswith("ortet_")
    assert "\n" not in made
    assert server.client(made).ask("GET", "/sessions").status == 200
    assert " until 2" in run(server, "ls").stdout
    run(server, "create", "ci")
    twice = run(server, "revoke", "ci", "--json")
    assert json.loads(twice.stderr)["kind"] == "ambiguous"
    assert run(server, "revoke", made.split("_")[1]).returncode == 0
    assert server.client(made).ask("GET", "/sessions").status == 401
    assert run(server, "revoke", "ci").returncode == 0
    assert "no token 'ci'" in run(server, "revoke", "ci").stderr
