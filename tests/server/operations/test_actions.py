"""Effects over HTTP: begun before the client acts, settled afterwards; and approvals."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fixtures.http_server import Client, Serve


def begin(client: Client, path: str, **said: Any) -> Any:
    return client.post(f"{path}/actions", {"name": "mail", **said})


def test_effect_is_begun_then_settled_once(client: Client) -> None:
    path = client.new("deeds")
    begun = begin(client, path, args=["ann"], kwargs={"kind": "hi"}, why="she asked", key="m1")
    effect = begun["effect"]["id"]
    assert (begun["done"], begun["effect"]["state"]) == (False, "begun")
    (known,) = client.get(f"{path}/effects", open="true")["items"]
    assert known["id"] == effect
    client.post(f"{path}/effects/{effect}/settle", {"outcome": {"sent": 1}})
    again = begin(client, path, args=["ann"], kwargs={"kind": "hi"}, key="m1")
    assert (again["done"], again["outcome"]) == (True, {"sent": 1})
    (action,) = client.get(f"{path}/actions", state="done")["items"]
    assert action["args"] == ["ann"]
    assert action["kwargs"] == {"kind": "hi"}
    assert action["outcome"] == {"sent": 1}
    assert client.get(f"{path}/effects", open="true")["items"] == []
    twice = client.ask("POST", f"{path}/effects/{effect}/settle", {"outcome": 2})
    assert (twice.status, twice.kind) == (409, "settled")


def test_unsettled_effect_is_409_until_the_caller_settles_it(client: Client) -> None:
    path = client.new("unsettled")
    effect = begin(client, path, key="k", replay="once")["effect"]["id"]
    reply = client.ask("POST", f"{path}/actions", {"name": "mail", "key": "k", "replay": "once"})
    assert (reply.status, reply.kind) == (409, "unsettled")
    assert reply.data["details"]["id"] == effect
    client.post(f"{path}/effects/{effect}/settle", {"error": "the server was away"})
    (action,) = client.get(f"{path}/actions", state="failed")["items"]
    assert action["error"] == "the server was away"
    assert begin(client, path, key="k", replay="once")["effect"]["id"] == effect


def test_begun_effect_survives_a_killed_server(serve: Serve) -> None:
    """The server dies; another knows what was begun, and the client says what became of it."""
    first = serve("--no-auth")
    path = first.client().new("s")
    effect = begin(first.client(), path, key="k")["effect"]["id"]
    first.kill()
    client = serve("--no-auth").client()
    (known,) = client.get(f"{path}/effects")["items"]
    assert known["id"] == effect
    event = client.post(f"{path}/effects/{effect}/settle", {"outcome": "sent"})
    assert event["data"]["state"] == "done"
    assert begin(client, path, key="k")["outcome"] == "sent"


def test_action_with_an_idempotency_key_is_begun_once(client: Client) -> None:
    path = client.new("lost-answer")
    body, headers = {"name": "mail"}, {"Idempotency-Key": "lost-answer-1"}
    answers = [client.ask("POST", f"{path}/actions", body, headers=headers) for _ in range(2)]
    assert answers[0].status == 201
    assert answers[0].body == answers[1].body
    assert len(client.get(f"{path}/effects")["items"]) == 1


def test_approvals_are_requested_listed_and_answered_once(client: Client) -> None:
    path = client.new("asking")
    wish = {"name": "deploy", "approve": "it is Friday"}
    waits = client.ask("POST", f"{path}/actions", wish)
    assert (waits.status, waits.kind) == (403, "approval_pending")
    asked = waits.data["details"]["id"]
    mine = [one for one in client.get("/approvals")["items"] if one["name"] == "asking"]
    assert [one["approval"]["id"] for one in mine] == [asked]
    answered = client.post(f"{path}/approvals/{asked}/approve", {"why": "tested"})
    assert (answered["state"], answered["by"], answered["because"]) == ("given", "owner", "tested")
    forged = client.ask("POST", f"{path}/approvals/{asked}/deny", {"by": "bob"})
    assert forged.status == 422  # the name is that of the token
    late = client.ask("POST", f"{path}/approvals/{asked}/deny", {})
    assert (late.status, late.kind) == (409, "answered")
    assert client.post(f"{path}/actions", wish)["effect"]["state"] == "begun"
    other = client.post(f"{path}/approvals", {"what": "buy a boat", "why": "we sail"})["id"]
    denied = client.post(f"{path}/approvals/{other}/deny", {"why": "no"})
    assert (denied["state"], denied["by"]) == ("denied", "owner")
    states = [one["state"] for one in client.get(f"{path}/approvals")["items"]]
    assert states == ["given", "denied"]
    assert client.get(f"{path}/approvals", state="asked")["items"] == []


def test_write_token_cannot_approve_its_own_request(serve: Serve) -> None:
    server = serve()
    agent = server.client(server.token("agent", "--allow", "write"))
    human = server.client(server.token("human", "--allow", "admin"))
    path = agent.new("s")
    asked = agent.post(f"{path}/approvals", {"what": "spend it all"})["id"]
    refused = agent.ask("POST", f"{path}/approvals/{asked}/approve", {})
    assert (refused.status, refused.kind) == (403, "token_scope")
    assert human.post(f"{path}/approvals/{asked}/approve")["by"] == "human"


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        ("/actions", {"name": ""}, 422, "bad_request"),
        ("/actions", {"name": "x", "replay": "twice"}, 422, "bad_request"),
        ("/actions", {"name": "x", "replay": "idempotent"}, 422, "no_key"),
        ("/actions", {"name": "x", "args": "y"}, 422, "bad_request"),
        ("/effects/none/settle", {}, 404, "no_effect"),
        ("/effects/none/settle", {"outcome": 1, "failed": True}, 422, "bad_request"),
        ("/approvals/none/approve", {}, 404, "no_approval"),
        ("/approvals", {"what": ""}, 422, "bad_request"),
    ],
)
def test_bad_effect_requests_return_status_and_kind(
    client: Client, path: str, body: Any, status: int, kind: str
) -> None:
    place = client.new("wrong")
    reply = client.ask("POST", f"{place}{path}", body)
    assert (reply.status, reply.kind) == (status, kind), reply
