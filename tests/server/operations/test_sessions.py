"""Sessions by name, and the command that creates, lists and revokes tokens."""

from __future__ import annotations

import json
import subprocess
import sys
from http.client import HTTPConnection

from tests.fixtures import forked
from tests.fixtures.http_server import Client, Serve, Server
from tests.fixtures.waiting import WAIT


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


def test_a_session_name_resolves_only_to_visible_sessions(serve: Serve) -> None:
    server = serve()
    owner = server.client(server.token("owner", "--allow", "admin"))
    mine = server.client(server.token("mine", "--agent", "mine"))
    owner.post("/sessions", {"name": "talk"})
    owner.post("/sessions", {"name": "secret", "agent": "theirs"})
    seen = owner.post("/sessions", {"name": "talk", "agent": "mine"})
    assert mine.get("/sessions/talk")["id"] == seen["id"]
    assert mine.ask("GET", "/sessions/secret").status == 404


def test_a_session_name_may_contain_slashes(client: Client) -> None:
    """Everywhere a session is named: in the table, in streams, downloads, and pages."""
    begun = client.post("/sessions", {"name": "a/b+c@d/1"})
    named = "a%2Fb+c%40d%2f1"
    assert client.get(f"/sessions/{named}")["id"] == begun["id"]
    client.post(f"/sessions/{named}/messages", {"role": "user", "content": "hello"})
    assert client.get(f"/sessions/{named}/events/1")["seq"] == 1  # of a route with a number
    assert client.ask("GET", f"/sessions/{named}/journal").status == 200
    put = client.ask("PUT", f"/sessions/{named}/artifacts/out%2Freport.txt", b"done")
    assert (put.status, put.data["name"]) == (201, "out/report.txt")
    assert client.ask("GET", f"/sessions/{named}/artifacts/out/report.txt").body == b"done"
    commit = client.post(f"/sessions/{named}/commits", {"message": "one"})["oid"]
    page = f"/s/{named}"
    tabs = ("", "/journal", "/memory", "/artifacts", "/budget", "/terminal", "/replay")
    for path in (*tabs, "/tree.json", f"/c/{commit}", f"/compare/{commit}/{commit}"):
        assert client.ask("GET", page + path).status == 200, path
    assert client.ask("GET", f"{page}/nothing").status == 404
    assert client.ask("GET", "/s/a%2Fnothing").kind == "no_session"
    assert client.ask("GET", "/s/default%2Fa%2Fb+c@d%2F1").status == 200
    where = client.url.removeprefix("http://")
    stream = HTTPConnection(where, timeout=WAIT)
    try:
        stream.request("GET", f"/sessions/{named}/events/stream")
        assert stream.getresponse().status == 200
    finally:
        stream.close()


def test_a_token_finds_the_session_of_its_agent_despite_a_hidden_session_of_that_name(
    serve: Serve,
) -> None:
    """Nor is it told that there is that other."""
    server = serve()
    owner = server.client(server.token("owner", "--allow", "admin"))
    owner.post("/sessions", {"name": "mine/talk"})
    seen = owner.post("/sessions", {"name": "talk", "agent": "mine"})
    mine = server.client(server.token("mine", "--agent", "mine"))
    assert mine.get("/sessions/mine%2Ftalk")["id"] == seen["id"]


def run(server: Server, *words: str) -> subprocess.CompletedProcess[str]:
    return forked.run(
        [sys.executable, "-m", "ortet", "access", *words],
        cwd=server.home,
        env=server.env,
        capture_output=True,
        text=True,
        check=False,
    )


def test_token_command_creates_lists_and_revokes_tokens(serve: Serve) -> None:
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
