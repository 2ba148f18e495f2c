"""Malformed, slow and hostile requests: each gets a documented error."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.http_server import Client, Serve, Server
from tests.fixtures.waiting import eventually
from tests.server.raw_connection import raw


@contextmanager
def limited(place: Path, *limits: str) -> Iterator[Server]:
    options = [word for limit in limits for word in ("--limit", limit)]
    started = Server(place, "--no-auth", *options)
    try:
        yield started
    finally:
        started.kill()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that takes little, and is patient: this host may be slow to send it."""
    with limited(tmp_path_factory.mktemp("small"), "body=1", "headers=8") as started:
        yield started


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that waits for nobody."""
    limits = ("header_seconds=4", "body_seconds=4")
    with limited(tmp_path_factory.mktemp("hasty"), *limits) as started:
        yield started


def alive(server: Server) -> None:
    assert server.process.poll() is None
    assert server.client().ask("GET", "/healthz").body == b"ok\n"
    assert server.client().ask("GET", "/sessions").status == 200


# bodies and heads


def test_a_body_with_a_too_large_content_length_is_refused_before_it_is_read(small: Server) -> None:
    with raw(small) as one:
        one.head("POST /sessions", "Content-Length: 2000000")
        assert one.status() == 413
    alive(small)


def test_a_chunked_body_is_refused_once_it_is_too_large(small: Server) -> None:
    with raw(small) as one:
        one.head("POST /sessions", "Transfer-Encoding: chunked")
        for _ in range(64):
            one.send(b"%x\r\n%s\r\n" % (65536, b" " * 65536))
        found = one.rest()
        assert not found or b" 413 " in found.split(b"\r\n")[0]
    alive(small)


@pytest.mark.parametrize("size", ["-1", "1e9", "999999999999999999999999", "5, 6", "0x10"])
def test_request_with_a_bad_content_length_is_refused(small: Server, size: str) -> None:
    with raw(small) as one:
        one.head("POST /sessions", f"Content-Length: {size}", "Connection: close")
        assert one.status() in (400, 413, 422)
    alive(small)


def test_slow_heads_and_bodies_are_timed_out(hasty: Server) -> None:
    with raw(hasty) as silent, raw(hasty) as head, raw(hasty) as body, raw(hasty) as chunks:
        head.send("GET /sessions HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        body.head("POST /sessions", "Content-Length: 100")
        body.send("{")
        chunks.head("POST /sessions", "Transfer-Encoding: chunked")
        chunks.send("1\r\n{\r\n")
        assert silent.rest() == b""
        assert head.status() == 408
        assert body.status() == 408
        assert chunks.status() == 408
    alive(hasty)


def test_request_head_that_is_too_large_is_431(small: Server) -> None:
    with raw(small) as one, raw(small) as many:
        one.head("GET /sessions", f"X-Large: {'x' * 20_000}")
        assert one.status() == 431
        many.head("GET /sessions", *[f"X-{number}: {number}" for number in range(2000)])
        assert many.status() == 431
    alive(small)


def test_half_closed_connection_is_answered_or_ended_without_a_500(hasty: Server) -> None:
    with raw(hasty) as whole, raw(hasty) as half, raw(hasty) as cut:
        whole.head("GET /healthz", "Connection: close")
        half.head("POST /sessions", "Content-Length: 100")
        half.send('{"name": "ha')
        cut.send("GET /sess")
        for one in (half, cut, whole):
            one.sock.shutdown(socket.SHUT_WR)
            found = one.rest()
            assert not found or found.startswith(b"HTTP/1.1 ")
            assert b" 500 " not in found.split(b"\r\n")[0]
    alive(hasty)
    assert hasty.client().ask("GET", "/sessions", name="ha").data["items"] == []


def test_client_that_disconnects_within_a_body_is_not_logged_as_a_bug(serve: Serve) -> None:
    server = serve("--no-auth")
    client = server.client()
    path = client.new("cut")
    for where in (f"POST {path}/messages", "POST /raw/catalog/head", "PUT /raw/bucket/x"):
        with raw(server) as connection:
            connection.begin(where, 100)
            connection.send("{")
    with raw(server) as connection:
        connection.begin(f"PUT {path}/artifacts/x", 100)
        connection.send("{")

    eventually(lambda: server.log.read_text().count('"status":422') == 4, say=server.log.read_text)
    assert '"message":"bug"' not in server.log.read_text()


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\x01\x02\xff\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # the beginning of TLS
        b"GET / HTTP/1.1\r\nHost x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_garbage_after_a_request_closes_only_its_own_connection(
    hasty: Server, garbage: bytes
) -> None:
    with raw(hasty) as one, raw(hasty) as first:
        one.head("GET /healthz")
        one.send(garbage)
        first.send(garbage)
        for each in (one, first):
            found = each.rest()
            assert b"HTTP/1.1 500" not in found
    alive(hasty)


# what bodies hold


def deep(depth: int) -> bytes:
    return b'{"role":"user","content":' + b"[" * depth + b"]" * depth + b"}"


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"\xff\xfe",
        b'{"role": "user", "content": "\xff"}',
        b'{"role": "user", "content": "\xed\xa0\x80"}',
        b'{"role": "user", "content": NaN}',
        b'{"role": "user", "content": 1e999}',
        b'{"role": "user", "content": ' + b"9" * 5000 + b"}",
        b'{"role": "user", "content": "a", "role"}',
        b"\xef\xbb\xbf{}",
        b"null",
        b'"text"',
        deep(100_000),
        deep(2_000),
        b"[" * 200_000,
    ],
    ids=range(14),
)
def test_bad_json_is_422_and_stores_nothing(client: Client, body: bytes) -> None:
    path = client.new("bad-json")
    reply = client.ask("POST", f"{path}/messages", body)
    assert reply.status == 422, reply.body[:200]
    assert set(reply.data) == {"error", "kind", "message", "details"}
    assert client.get(f"{path}/messages")["items"] == []


def test_message_text_with_control_and_special_characters_is_kept(client: Client) -> None:
    path = client.new("text")
    for text in ("\0", "\x1b[31m", "𝄞", "\u202e", "</script><b>"):
        client.post(f"{path}/messages", {"role": "user", "content": text})
        assert client.get(f"{path}/messages", last=1)["items"][0]["content"] == text
    lone = b'{"role": "user", "content": "\\ud800"}'
    assert client.ask("POST", f"{path}/messages", lone).status in (201, 422)
    assert client.ask("GET", f"{path}/messages").status == 200


def test_idempotency_key_must_be_short_printable_ascii(client: Client) -> None:
    path = client.new("keys")
    for key in ("", "x" * 201, "caf\xe9", "a\tb"):
        reply = client.ask("POST", f"{path}/pause", {}, headers={"Idempotency-Key": key})
        assert (reply.status, reply.kind) == (422, "bad_key"), key
    kept = {"Idempotency-Key": "x y" * 60}
    assert client.ask("POST", f"{path}/pause", {}, headers=kept).status == 200


@pytest.mark.parametrize("number", ["%C2%B2", "%D9%A1", "9" * 5000, "-1", "1e3", ""])
def test_bad_numbers_in_page_queries_never_cause_a_server_error(
    client: Client, number: str
) -> None:
    path = client.new("numbered")
    client.post(f"{path}/messages", {"role": "user", "content": "one"})
    oid = client.post(f"{path}/commits")["oid"]
    page = path.replace("/sessions/", "/s/")
    for where in (f"compare/{oid}/{oid}?file=", "replay?at=", "tree.json?from=", "journal?before="):
        reply = client.ask("GET", f"{page}/{where}{number}")
        assert reply.status < 500, (where, reply)


def test_bad_event_numbers_in_paths_are_404_or_422(client: Client) -> None:
    path = client.new("numbers")
    for number in ("0", "-1", "9" * 18, "9" * 30, "9" * 5000, "1e3", "٣"):
        reply = client.ask("GET", f"{path}/events/{number}")
        assert reply.status in (404, 422), (number[:20], reply)


# paths that lead out


ESCAPES = (
    "../../../../etc/passwd",
    "..%2f..%2f..%2f..%2fetc%2fpasswd",
    "%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
    "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    "/etc/passwd",
    "%2fetc%2fpasswd",
    "//etc/passwd",
    "x%00.txt",
    "..%5c..%5cetc%5cpasswd",
    "..\\..\\etc\\passwd",
    "%252e%252e%252fetc%252fpasswd",
    "....//....//etc/passwd",
    "..;/etc/passwd",
    "%c0%ae%c0%ae/etc/passwd",
    "%ff%fe",
    "a/../../../catalog.db",
)


@pytest.mark.parametrize("escape", ESCAPES)
def test_path_traversal_reads_and_writes_no_file_outside(
    client: Client, server: Server, tmp_path: Path, escape: str
) -> None:
    path = client.new("paths")
    client.ask("PUT", f"{path}/artifacts/kept.txt", b"kept")
    commit = client.post(f"{path}/commits", {"message": "kept"})["oid"]
    places = (f"{path}/artifacts/", f"/commits/{commit}/files/", "/static/x/", "/docs/", "/")
    for place in places:
        for method in ("GET", "HEAD", "PUT"):
            if method == "PUT" and not place.endswith("artifacts/"):
                continue
            with raw(server) as one:
                one.head(f"{method} {place}{escape}", "Content-Length: 0", "Connection: close")
                found = one.rest()
            status = int(found.split()[1])
            assert b"root:" not in found, place
            assert b"SQLite format" not in found, place
            if method == "PUT":
                assert status in (201, 400, 404, 405, 422), found
            elif "artifacts" not in place:
                assert status in (400, 401, 404, 405, 422), found
    assert not (tmp_path.parent / "etc").exists()
    alive(server)


def test_upload_that_is_no_bundle_is_refused_without_naming_a_server_path(
    client: Client, server: Server
) -> None:
    reply = client.ask("POST", "/bundles", b"no bundle at all", name="theirs")
    assert (reply.status, reply.kind) == (422, "not_a_bundle")
    assert reply.data["message"].startswith("theirs is not a bundle")
    assert str(server.home).encode() not in reply.body


# foreign pages


def test_unknown_host_header_is_refused(server: Server) -> None:
    client = server.client()
    for name in ("evil.example", "127.0.0.1.evil.example", "localhost.", "", "[::2]", "\xff"):
        with raw(server) as one:
            head = f"GET /sessions HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n"
            one.send(head.encode("latin-1"))
            assert one.status() in (400, 403), name
    for path in ("/", "/metrics", "/openapi.json", "/docs", "/login"):
        assert client.ask("GET", path, headers={"Host": "evil.example"}).status == 403, path
    assert client.ask("GET", "/healthz", headers={"Host": "10.0.0.7"}).status == 200
    assert client.ask("GET", "/me", headers={"Host": "LOCALHOST:1"}).status == 200


FOREIGN: tuple[dict[str, str], ...] = (
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
)


@pytest.mark.parametrize("headers", FOREIGN)
def test_request_from_a_page_of_another_site_is_refused(
    serve: Serve, headers: dict[str, str]
) -> None:
    server = serve()
    token = server.token("ann", "--allow", "admin")
    anyone = server.client()
    signed = anyone.ask("POST", "/login", {"token": token})
    cookie = signed.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    mine = {"Cookie": cookie.partition(";")[0]}
    session = server.client(token).new("mine")
    asked: tuple[tuple[str, str, Any], ...] = (
        ("POST", "/sessions", {"name": "theirs"}),
        ("POST", f"{session}/messages", {"role": "user", "content": "x"}),
        ("PUT", f"{session}/artifacts/x", b"x"),
        ("DELETE", session, None),
        ("POST", "/login", {"token": token}),
        ("POST", "/logout", {}),
    )
    for method, path, body in asked:
        reply = anyone.ask(method, path, body, headers={**mine, **headers})
        assert (reply.status, reply.kind) == (403, "foreign_page"), (method, path)
    assert [one["name"] for one in server.client(token).get("/sessions")["items"]] == ["mine"]
    own = {**mine, "Origin": server.url, "Sec-Fetch-Site": "same-origin"}
    assert anyone.ask("POST", "/sessions", {"name": "ours"}, headers=own).status == 200
    if "navigate" not in headers.values() and "Sec-Fetch-Site" in headers:
        assert anyone.ask("GET", "/sessions", headers={**mine, **headers}).status == 403
