"""Streamable HTTP: access, several clients, and the end of the server."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from tests.fixtures.mcp_project import Agent, Project, drive, is_free, running
from tests.fixtures.waiting import WAIT

from ortet.mcp_server.transports import _listen

HEADERS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}


def knock(url: str, **headers: str) -> httpx.Response:
    given = HEADERS | headers
    return httpx.post(url, json=INITIALIZE, headers=given, trust_env=False, timeout=WAIT)


def test_foreign_host_names_that_resolve_to_loopback_are_refused(project: Project) -> None:
    with project.listening() as served:
        assert knock(served.url).status_code == 200
        assert knock(served.url, Host="evil.example:80").status_code == 421
        assert knock(served.url, Origin="http://evil.example").status_code == 403
        assert knock(served.url, Origin="http://localhost:5000").status_code == 200
        text = {"Content-Type": "text/plain"}
        plain = httpx.post(served.url, content=b"{}", headers=text, timeout=WAIT)
        assert plain.status_code in (400, 406, 415)
        big = httpx.post(served.url, content=b"x" * (5 << 20), headers=HEADERS, timeout=WAIT)
        assert big.status_code == 413


def test_http_request_without_the_right_token_is_401(project: Project) -> None:
    env = {"ORTET_MCP_TOKEN": "s3cret"}
    with project.listening(env=env) as served:
        for shown in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic s3cret"}):
            refused = knock(served.url, **shown)
            assert refused.status_code == 401 and refused.json()["kind"] == "bad_token"
            assert refused.headers["WWW-Authenticate"] == "Bearer"
        assert knock(served.url, Authorization="Bearer s3cret").status_code == 200

        async def work() -> None:
            headers = {"Authorization": "Bearer s3cret"}
            async with httpx_client(headers) as http:
                transport = streamable_http_client(served.url, http_client=http)
                async with Client(transport, mode="legacy") as client:
                    assert not (await Agent(client)("status")).failed

        drive(work)
    assert not any(b"s3cret" in line for line in served.log)


def test_http_server_without_a_token_generates_and_prints_one(project: Project) -> None:
    """Loopback is open to every user of a host, and tools run commands as whoever began it."""
    process = project.start("--http", "0", stdin=subprocess.DEVNULL, stdout=None)
    assert process.stderr is not None
    try:
        url = process.stderr.readline().decode().split()[-1]
        told = [process.stderr.readline().decode() for _ in range(4)]
        config = json.loads(told[-1])["mcpServers"]["ortet"]
        token = told[0].split()[-1]
        assert (config["type"], config["url"]) == ("http", url)
        assert config["headers"]["Authorization"] == f"Bearer {token}"
        assert f"{url} --header" in told[2] and token in told[2]
        assert len(token) == 64
        assert knock(url).status_code == 401
        assert knock(url, Authorization=f"Bearer {token[:-1]}").status_code == 401
        assert knock(url, **config["headers"]).status_code == 200
        assert knock(url, Host="evil.example:80", **config["headers"]).status_code == 421
    finally:
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()
        process.wait()
        process.stderr.close()
    assert token.encode() not in rest


def test_token_together_with_no_auth_is_refused(project: Project) -> None:
    project.env["ORTET_MCP_TOKEN"] = "s3cret"
    told = project.ortet("--json", "mcp", "--http", "0", "--no-auth", code=2)
    assert json.loads(told)["kind"] == "bad_usage"


def httpx_client(headers: dict[str, str]) -> Any:
    from mcp.shared._httpx_utils import create_mcp_http_client

    return create_mcp_http_client(headers=headers)


@pytest.mark.parametrize(
    ("flags", "kind"),
    [
        (("--http", "0", "--host", "0.0.0.0"), "token_needed"),
        (("--http", "99999"), "bad_port"),
        (("--host", "127.0.0.1"), "bad_usage"),
        (("--no-auth",), "bad_usage"),
        (("--http", "0", "--host", "0.0.0.0", "--no-auth"), "no_auth_here"),
    ],
)
def test_bad_server_options_are_refused(
    project: Project, flags: tuple[str, ...], kind: str
) -> None:
    told = project.ortet("--json", "mcp", *flags, code=None)
    assert json.loads(told)["kind"] == kind


def test_taken_port_is_reported(project: Project) -> None:
    with project.listening() as served:
        port = served.url.split(":")[2].split("/")[0]
        told = project.ortet("--json", "mcp", "--http", port, code=7)
        assert json.loads(told)["kind"] == "port_taken"


def test_other_hosts_are_served_with_a_token(project: Project) -> None:
    env = {"ORTET_MCP_TOKEN": "s3cret"}
    with project.listening("--host", "0.0.0.0", env=env) as served:
        url = served.url.replace("0.0.0.0", "127.0.0.1")
        assert knock(url).status_code == 401
        named = knock(url, Authorization="Bearer s3cret", Host="build.example:80")
        assert named.status_code == 200


def test_two_http_clients_share_one_session(project: Project) -> None:
    with project.listening() as served:

        async def work() -> None:
            one, other = (
                Client(streamable_http_client(served.url), mode="legacy") for _ in range(2)
            )
            async with one as first, other as second:
                await Agent(first).ok("say", role="user", content="from the first")
                told = await Agent(second).ok("context")
                assert told["messages"][0]["content"] == "from the first"

        drive(work)


def test_a_signal_ends_the_server_and_its_commands(project: Project) -> None:
    with project.listening() as served:
        session = knock(served.url).headers["mcp-session-id"]
        call = {"name": "run", "arguments": {"command": "echo $$ > ../pid; sleep 1000"}}
        message = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}
        with httpx.stream(
            "POST",
            served.url,
            json=message,
            headers=HEADERS | {"mcp-session-id": session},
            timeout=None,
        ):
            pid = running(project.path.parent / "pid")
            served.process.send_signal(signal.SIGTERM)
            assert served.process.wait() == 128 + signal.SIGTERM
    assert not Path(f"/proc/{pid}").exists()
    is_free(project)
    assert not any(b"Traceback" in line for line in served.log)


def test_the_http_listener_names_its_protocol_so_that_answers_are_sent_at_once() -> None:
    """asyncio sets TCP_NODELAY only on sockets of IPPROTO_TCP; an answer took 40 ms without it."""
    with _listen("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP
