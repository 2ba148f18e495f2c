"""The messages of a session over HTTP, in the formats of model APIs."""

from __future__ import annotations

import json

from tests.fixtures.http_server import Client
from tests.integrations.transcripts.checking import check_anthropic, check_openai, check_responses


def test_export_supports_every_format(client: Client) -> None:
    path = client.new("said")
    for role, content in (("user", "hello"), ("assistant", "yes?")):
        client.post(f"{path}/messages", {"role": role, "content": content})
    for format_, check in (
        ("anthropic", check_anthropic),
        ("openai", check_openai),
        ("openai-responses", check_responses),
    ):
        reply = client.ask("GET", f"{path}/export", format=format_)
        assert reply.headers["content-type"].startswith("application/json")
        told = json.loads(reply.body)
        check(told)
        assert "hello" in str(told)
    spans = client.ask("GET", f"{path}/export", format="otel").body
    assert b"invoke_agent" in spans and b"hello" not in spans
    assert b"hello" in client.ask("GET", f"{path}/export", format="otel", content="true").body
    assert client.ask("GET", f"{path}/export").status == 422
    assert client.ask("GET", f"{path}/export", format="xml").status == 422
    assert client.ask("GET", "/sessions/nobody/export", format="otel").kind == "no_session"
