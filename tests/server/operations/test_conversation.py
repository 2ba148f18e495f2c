"""Messages, notes, questions and compactions over HTTP, and the refusals of bad requests."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fixtures.http_server import Client


def test_messages_and_batches_are_read_back_in_order(client: Client) -> None:
    path = client.new("said")
    event = client.post(f"{path}/messages", {"role": "user", "content": "hello"})
    assert event["kind"] == "message"
    assert client.get(f"{path}/events/{event['seq']}") == event
    client.post(
        f"{path}/messages/batch",
        {"messages": [{"role": "assistant", "content": [{"type": "text", "text": "hi"}]}] * 2},
    )
    found = client.get(f"{path}/messages")["items"]
    assert [one["role"] for one in found] == ["user", "assistant", "assistant"]
    assert found[1]["content"] == [{"type": "text", "text": "hi"}]
    assert client.get(f"{path}/messages", last=1)["items"] == found[-1:]


def test_notes_questions_and_records_are_stored_and_read(client: Client) -> None:
    path = client.new("noted")
    client.post(f"{path}/notes", {"key": "branch", "value": {"name": "fix"}, "ttl": 3600})
    assert client.get(f"{path}/notes") == {"notes": {"branch": {"name": "fix"}}}
    asked = client.post(f"{path}/questions", {"text": "may I?"})["id"]
    assert [one["id"] for one in client.get(f"{path}/questions")["items"]] == [asked]
    client.post(f"{path}/questions/{asked}/answer", {"answer": True})
    assert client.get(f"{path}/questions")["items"] == []
    client.post(f"{path}/records", {"kind": "shop.ticket", "data": {"n": 7}})
    (found,) = client.get(f"{path}/records", kind="shop.ticket")["items"]
    assert found["data"] == {"n": 7}


def test_compact_drops_old_messages_which_stay_readable(client: Client) -> None:
    path = client.new("compacted")
    for number in range(6):
        client.post(f"{path}/messages", {"role": "user", "content": f"message {number}"})
    done = client.post(f"{path}/compact", {"keep_last": 2, "summary": "four before"})
    assert done["compaction"]["count"] == 4
    assert [one["content"] for one in client.get(f"{path}/dropped")["items"]] == [
        f"message {number}" for number in range(4)
    ]
    assert client.get(f"{path}/compactions")["items"][0]["summary"] == "four before"
    assert client.post(f"{path}/compact", {"keep_last": 50})["compaction"] is None


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "kind"),
    [
        ("GET", "/events/9999", None, 404, "no_event"),
        ("GET", "/events?after=nonsense", None, 422, "bad_cursor"),
        ("GET", "/events?limit=0", None, 422, "bad_request"),
        ("GET", "/events?limit=1001", None, 422, "bad_request"),
        ("GET", "/events?colour=red", None, 422, "bad_request"),
        ("POST", "/messages", {"role": "user"}, 422, "bad_request"),
        ("POST", "/messages", {"role": "", "content": "x"}, 422, "bad_request"),
        ("POST", "/messages", {"role": "user", "content": "x", "rol": 1}, 422, "bad_request"),
        ("POST", "/messages", b"{", 422, "bad_json"),
        ("POST", "/messages", b"[]", 422, "bad_json"),
        ("POST", "/questions/none/answer", {"answer": 1}, 404, "no_question"),
        ("POST", "/records", {"kind": "message", "data": {}}, 422, "bad_kind"),
        ("PATCH", "/messages", {}, 405, "bad_method"),
        ("GET", "/nothing", None, 404, "no_route"),
    ],
)
def test_bad_journal_requests_return_status_and_kind(  # noqa: PLR0917 - as the table has them
    client: Client, method: str, path: str, body: Any, status: int, kind: str
) -> None:
    place = client.new("wrong")
    reply = client.ask(method, f"{place}{path}", body)
    assert (reply.status, reply.kind) == (status, kind)
    assert set(reply.data) == {"error", "kind", "message", "details"}


def test_events_and_messages_of_an_unknown_session_are_404(client: Client) -> None:
    assert client.ask("GET", "/sessions/nobody/events").kind == "no_session"
    assert (
        client.ask("POST", "/sessions/nobody/messages", {"role": "a", "content": ""}).status == 404
    )
