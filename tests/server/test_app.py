"""A whole server: its limits, log, metrics and spans, and its graceful shutdown."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

from tests.fixtures import forked
from tests.fixtures.http_server import Client, Serve
from tests.fixtures.waiting import WAIT, eventually
from tests.server.event_streams import streaming
from tests.server.raw_connection import Raw, raw

import ortet

# limits


def test_request_over_the_rate_limit_is_429_with_retry_after(serve: Serve) -> None:
    server = serve("--limit", "rate=0.01", "--limit", "burst=3", "--limit", "unknown_rate=0.01")
    first, second = (server.client(server.token(name)) for name in ("ann", "bob"))
    replies = [first.ask("GET", "/me") for _ in range(5)]
    assert [one.status for one in replies] == [200, 200, 200, 429, 429]
    assert int(replies[-1].headers["retry-after"]) >= 1
    assert replies[-1].kind == "too_many_requests"
    assert second.ask("GET", "/me").status == 200  # one's limit is not another's
    wrong = [server.client("ortet_x_y").ask("GET", "/me").status for _ in range(5)]
    assert wrong[-1] == 429
    assert second.ask("GET", "/me").status == 200


def test_concurrent_requests_over_the_limit_are_429(serve: Serve) -> None:
    """Requests that are being sent count; those that end make room."""
    server = serve("--limit", "requests_each=2")
    token = server.token("ann")
    client = server.client(token)
    session = client.new("busy")
    held = []
    try:
        for _ in range(2):
            one = Raw(server)
            held.append(one)
            auth = f"Authorization: Bearer {token}"
            one.begin(f"PUT {session}/artifacts/slow", 10, auth)
        reply = client.ask("GET", "/me")
        assert reply.status == 429
        assert int(reply.headers["retry-after"]) >= 1
        for one in held:
            one.send(b"0123456789")
        eventually(lambda: client.ask("GET", "/me").status == 200)
    finally:
        for one in held:
            one.sock.close()


# what is said of it


def test_the_log_is_json_with_sessions_and_without_secrets(serve: Serve) -> None:
    server = serve()
    token = server.token("ann", "--allow", "admin")
    client = server.client(token)
    session = client.new("logged")
    client.post(f"{session}/messages", {"role": "user", "content": "my password is hunter2"})
    server.client(token[:-1] + "x").ask("GET", "/me")
    anyone = server.client()
    anyone.ask("GET", f"/me?token={token}")
    anyone.ask("GET", f"/nothing/{token}")
    anyone.ask("GET", "/me", headers={"Cookie": f"ortet={token}"})
    anyone.ask("POST", "/login", {"token": token})
    anyone.ask("POST", "/login", {"token": token + "x"})
    client.ask("GET", f"/sessions/{token}")
    with raw(server) as one:
        one.head("GET /me", f"Authorization: Basic {token}", f"X-Request-Id: {token}", "Bad")
        one.rest()
    assert server.stop() == 0
    text = server.log.read_text()
    secret = token.rpartition("_")[2]
    assert secret not in text
    assert secret[:16] not in text
    assert "hunter2" not in text
    lines = [json.loads(line) for line in text.splitlines()]
    requests = [line for line in lines if line["message"] == "request"]
    said = next(line for line in requests if line["route"] == "/sessions/{session}/messages")
    assert said["session"] == session.rpartition("/")[2]
    assert (said["method"], said["status"]) == ("POST", 201)
    assert {"time", "level", "request", "ms", "token"} <= set(said)
    assert lines[-1]["message"] == "stopped"


_LABELS = r'\{[a-z_]+="(?:[^"\\\n]|\\.)*"(?:,[a-z_]+="(?:[^"\\\n]|\\.)*")*\}'
_SAMPLE = re.compile(rf"([a-zA-Z_:][a-zA-Z0-9_:]*)({_LABELS})? (-?[0-9.e+-]+|\+Inf|NaN)\Z")


def test_metrics_are_prometheus_text_without_tenants_or_tokens(serve: Serve) -> None:
    server = serve()
    client = server.client(server.token("ann-of-acme", "--tenant", "acme", "--allow", "admin"))
    session = client.new("secret-name", agent="secret-agent")
    client.post(f"{session}/messages", {"role": "user", "content": "x"})
    client.ask("GET", "/secret-path")
    with raw(server) as one:
        one.head('GET /x"\\y', "Connection: close")
        one.rest()
    reply = server.client().ask("GET", "/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    text = reply.body.decode()
    kinds: dict[str, str] = {}
    values: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in kinds
            kinds[name] = kind
        elif not line.startswith("# HELP "):
            found = _SAMPLE.match(line)
            assert found, line
            name = found[1]
            base = re.sub(r"_(bucket|sum|count)\Z", "", name)
            assert kinds.get(name) or kinds[base] == "histogram", line
            assert line.rpartition(" ")[0] not in values
            values[line.rpartition(" ")[0]] = float(found[3])
    key = 'ortet_requests_total{method="POST",route="/sessions/{session}/messages",status="201"}'
    assert values[key] == 1
    for word in ("acme", "ann", "secret", session.rpartition("/")[2]):
        assert word not in text


# ends


def test_stopping_server_finishes_open_requests_and_releases_sessions(serve: Serve) -> None:
    server = serve("--no-auth", "--limit", "grace=30")
    client = server.client()
    session = client.new("handed-over")
    client.post(f"{session}/messages", {"role": "user", "content": "before"})
    eventually(lambda: client.ask("GET", "/readyz").body == b'{"ready":true}')
    kept = HTTPConnection(urlsplit(server.url).netloc, timeout=WAIT)
    kept.request("GET", "/readyz")
    assert kept.getresponse().read()
    with raw(server) as one, streaming(server.url, f"{session}/events/stream") as stream:
        stream.upto("live")
        one.begin(f"PUT {session}/artifacts/last", 4)
        server.process.terminate()
        assert stream.upto("end")[-1].data == {"reason": "stopping"}
        # connections that there are already are answered until what was begun has ended
        one.send(b"done")
        assert b" 201 " in one.rest().split(b"\r\n")[0]
    assert server.process.wait(WAIT) == 0
    kept.close()
    # whoever comes next has it at once, with nothing to close first
    with ortet.open(server.store) as hub, hub.session("handed-over") as again:
        assert [message.content for message in again.messages()] == ["before"]
        again.say("user", "after")


def test_readiness_is_503_while_it_stops(serve: Serve) -> None:
    server = serve("--no-auth", "--limit", "grace=30")
    session = server.client().new("slow-end")
    kept = HTTPConnection(urlsplit(server.url).netloc, timeout=WAIT)
    with raw(server) as one:
        one.begin(f"PUT {session}/artifacts/last", 4)
        kept.request("GET", "/readyz")
        _status(kept)
        server.process.terminate()

        def other_than_ready() -> int | None:
            try:
                kept.request("GET", "/readyz")
                status = _status(kept)
            except OSError:
                return 503  # the server takes no request any more
            return None if status == 200 else status

        assert eventually(other_than_ready) == 503
        one.send(b"done")
    kept.close()
    assert server.process.wait(WAIT) == 0


def _status(connection: HTTPConnection) -> int:
    reply = connection.getresponse()
    reply.read()
    return reply.status


TRACED = """
import sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

provider = TracerProvider()
out = open(sys.argv.pop(1), "w")
exporter = ConsoleSpanExporter(out=out, formatter=lambda span: span.to_json(None) + "\\n")
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
sys.argv[0] = "ortet"
from ortet.cli.entry import main
main()
"""


def test_requests_become_spans_if_a_provider_is_set(tmp_path: Path) -> None:
    spans = tmp_path / "spans"
    env = {"HOME": str(tmp_path), "ORTET_URL": str(tmp_path / "store"), "ORTET_AGENT": "off"}
    argv = [sys.executable, "-c", TRACED, str(spans), "serve", "--port", "0", "--json", "--no-auth"]
    with forked.Popen(
        argv, env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        try:
            assert process.stdout is not None
            client = Client(json.loads(process.stdout.readline())["url"])
            session = client.new("traced")
            trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
            given = {"traceparent": f"00-{trace}-{parent}-01"}
            client.ask("GET", f"{session}/events", headers=given)
            client.ask("GET", "/nothing")
        finally:
            process.terminate()
            process.wait(WAIT)
    told = {one["name"]: one for one in map(json.loads, spans.read_text().splitlines())}
    begun = told["POST /sessions"]
    assert begun["attributes"]["http.response.status_code"] == 200
    read = told["GET /sessions/{session}/events"]
    assert read["attributes"]["ortet.session"] == session.rpartition("/")[2]
    assert read["context"]["trace_id"].removeprefix("0x") == trace
    assert read["parent_id"].removeprefix("0x") == parent
    assert "SERVER" in read["kind"]
