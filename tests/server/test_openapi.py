"""The OpenAPI document: valid, complete, without secrets, and readable without a token."""

from __future__ import annotations

import html
import json
import os
import re
import shlex
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest
import schemathesis
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from tests.fixtures.http_server import Client, Serve, Server

from ortet.errors import OrtetError
from ortet.server.openapi import ERRORS, build_document
from ortet.server.operations.registry import operations
from ortet.server.transfers.routes import STREAMING_ROUTES

OPERATIONS = operations()


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    # as its readers have it
    found: dict[str, Any] = json.loads(json.dumps(build_document()))
    return found


def described(told: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in told["paths"].items():
        for method, operation in methods.items():
            yield path, method.upper(), operation


def refs(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for one in value.values():
            yield from refs(one)
    elif isinstance(value, list):
        for one in value:
            yield from refs(one)


def plain(path: str) -> str:
    return re.sub(r":[a-z]+}", "}", path)


def test_openapi_document_is_valid(told: dict[str, Any]) -> None:
    """By the schema that the makers of OpenAPI publish; what lies in it, by JSON Schema's own."""
    schemathesis.openapi.from_dict(told).validate()
    for schema in told["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    for ref in set(refs(told)):
        found = told
        for step in ref.removeprefix("#/").split("/"):
            found = found[step]


def test_openapi_document_lists_every_operation_and_streaming_route(told: dict[str, Any]) -> None:
    there = {(method, path): operation for path, method, operation in described(told)}
    for one in OPERATIONS:
        found = there[one.method, plain(one.path)]
        assert found["operationId"] == one.name
        assert found["tags"] == [one.tag]
        assert str(one.status) in found["responses"]
        assert found["security"][0] == {"bearer": [one.needs]}
        assert ("412" in found["responses"]) == one.moves_head
        headers = [ref.rpartition("/")[2] for ref in refs(found["parameters"])]
        assert ("IdempotencyKey" in headers) == one.writes
        assert ("IfMatch" in headers) == one.moves_head
    both = [(one.method, one.path) for one in OPERATIONS]
    both += [(one.method, one.path) for one in STREAMING_ROUTES]
    assert len(set(both)) == len(both), "one of them is never reached"
    for flow in STREAMING_ROUTES:
        assert there[flow.method, plain(flow.path)]["operationId"] == flow.name
    for path in ("/healthz", "/readyz", "/metrics", "/openapi.json", "/docs"):
        assert there["GET", path]["security"] == []
    assert "101" in there["GET", "/sessions/{session}/terminal"]["responses"]


def test_names_are_unique_and_in_order(told: dict[str, Any]) -> None:
    names = Counter(operation["operationId"] for _, _, operation in described(told))
    assert [name for name, count in names.items() if count > 1] == []
    shapes = Counter(re.sub(r"{[^}]*}", "{}", path) for path in told["paths"])
    assert [path for path, count in shapes.items() if count > 1] == []
    tags = {tag["name"] for tag in told["tags"]}
    for path, method, operation in described(told):
        assert set(operation["tags"]) <= tags
        assert operation["summary"].strip("."), (method, path)
        named = re.findall(r"{([^}]*)}", path)
        given = [one["name"] for one in operation.get("parameters", []) if one.get("in") == "path"]
        assert sorted(named) == sorted(given), path


def test_openapi_error_schema_matches_real_errors(told: dict[str, Any]) -> None:
    schema = told["components"]["schemas"]["Error"]
    assert schema["required"] == list(OrtetError("kind", "message").as_dict())
    for status in ERRORS:
        answer = told["components"]["responses"][f"Error{status}"]
        assert ("Retry-After" in answer.get("headers", {})) == (status in (409, 429, 503))
    for path, method, operation in described(told):
        if operation["security"]:
            assert {"401", "403", "429", "500", "503"} <= set(operation["responses"]), path
            if method != "GET":
                assert {"409", "413", "422"} <= set(operation["responses"]), path


def test_openapi_document_lists_409_for_every_path_with_a_name(told: dict[str, Any]) -> None:
    for path, method, operation in described(told):
        if "{" in path:
            assert "409" in operation["responses"], (method, path)


def test_openapi_document_shows_parameter_limits_and_bodies(told: dict[str, Any]) -> None:
    listed = told["paths"]["/sessions/{session}/events"]["get"]["parameters"]
    limit = next(one for one in listed if one.get("name") == "limit")
    assert limit["schema"] == {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}
    answer = told["paths"]["/sessions/{session}/questions/{question}/answer"]["post"]
    body = answer["requestBody"]["content"]["application/json"]["schema"]
    assert set(body["properties"]) == {"answer"}  # the question is in the path
    stream = told["paths"]["/sessions/{session}/events/stream"]["get"]
    assert set(stream["responses"]["200"]["content"]) == {"text/event-stream"}


def test_openapi_document_needs_no_token_and_names_no_tenant(serve: Serve) -> None:
    server = serve()
    token = server.token("zebedee", "--allow", "admin", "--tenant", "acme")
    client = server.client(token)
    client.new("private-matters")
    served = server.client().ask("GET", "/openapi.json")
    assert served.status == 200
    assert served.headers["content-type"] == "application/json"
    assert served.data == json.loads(json.dumps(build_document()))
    for word in (b"acme", b"private-matters", b"zebedee", str(server.home).encode()):
        assert word not in served.body
    again = server.client().ask(
        "GET", "/openapi.json", headers={"If-None-Match": served.headers["etag"]}
    )
    assert (again.status, again.body) == (304, b"")


class _Page(HTMLParser):
    """What a browser would find: ids, links, and what it would run or fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def of(self, name: str) -> set[str]:
        return {given for _, attrs in self.tags if (given := attrs.get(name))}


def test_api_page_shows_every_operation_and_has_no_inline_scripts(
    client: Client, told: dict[str, Any]
) -> None:
    reply = client.ask("GET", "/docs")
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/html")
    assert "script-src 'self'" in reply.headers["content-security-policy"]
    text = reply.body.decode()
    page = _Page(text)
    ids = page.of("id")
    for path, _, operation in described(told):
        assert operation["operationId"] in ids
        assert path in text
    for name in told["components"]["schemas"]:
        assert f"schema-{name}" in ids
    for link in page.of("href"):
        if link.startswith("#"):
            assert link[1:] in ids, link
        elif link != "/":  # of this server, and there
            assert client.ask("GET", link).status == 200, link
    assert {tag for tag, _ in page.tags} & {"style", "iframe", "object", "embed"} == set()
    scripts = [attrs.get("src") or "" for tag, attrs in page.tags if tag == "script"]
    assert all(src.startswith("/static/") for src in scripts)
    assert not any(name.startswith("on") for _, attrs in page.tags for name in attrs)
    assert "style" not in {name for _, attrs in page.tags for name in attrs}


def test_curl_examples_of_the_api_page_work(client: Client, server: Server) -> None:
    assert shutil.which("curl"), "curl is not installed: scripts/test-tools installs it"
    session = client.new("shown")
    text = html.unescape(client.ask("GET", "/docs").body.decode())
    commands = re.findall(r"<pre><code>(curl .*?)</code></pre>", text)
    assert len(commands) > len(OPERATIONS)
    wanted = ("/sessions", "/sessions/SESSION/messages", "/sessions/SESSION/thoughts")
    for command in commands:
        place = shlex.split(command)[-1].removeprefix("$ORTET_URL")
        if place not in wanted:
            continue
        filled = command.replace("SESSION", session.rpartition("/")[2])
        done = subprocess.run(
            ["sh", "-c", f"{filled} -s -w '%{{http_code}}' -o /dev/null"],
            env={**os.environ, "ORTET_URL": server.url, "ORTET_TOKEN": ""},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        assert done.stdout in ("200", "201"), command
