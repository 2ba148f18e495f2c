"""Budgets, bills and calls of models over HTTP."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fixtures.http_server import Client


def test_spend_and_budget_report_limits_spent_and_left(client: Client) -> None:
    path = client.new("money", budget={"usd": 5})
    done = client.post(f"{path}/spend", {"amounts": {"usd": 2, "tokens": 10}, "model": "m"})
    assert (done["left"], done["stopped"]) == ({"usd": 3}, None)
    client.put(f"{path}/budget", {"limits": {"tokens": 100, "usd": None}, "soft": {"usd": 9}})
    assert client.get(f"{path}/budget") == {
        "limits": {"tokens": 100},
        "soft": {"usd": 9},
        "spent": {"usd": 2, "tokens": 10},
        "left": {"tokens": 90},
    }


def test_spend_over_budget_is_recorded_once_and_pauses_the_session(client: Client) -> None:
    path = client.new("spent", budget={"usd": 1})
    headers = {"Idempotency-Key": "spent-1"}
    for _ in range(2):
        reply = client.ask("POST", f"{path}/spend", {"amounts": {"usd": 3}}, headers=headers)
        assert reply.status == 201
        assert "raise" in reply.data["stopped"] or "budget" in reply.data["stopped"]
    assert client.get(f"{path}/budget")["spent"] == {"usd": 3}
    assert client.get(path)["status"] == "paused"
    refused = client.ask("POST", f"{path}/actions", {"name": "buy"})
    assert (refused.status, refused.kind) == (403, "budget_spent")
    client.put(f"{path}/budget", {"limits": {"usd": 10}})
    assert client.post(f"{path}/actions", {"name": "buy"})["effect"]["state"] == "begun"


def test_model_call_is_stored_with_usage_request_and_response(client: Client) -> None:
    path = client.new("models")
    usage = {"input_tokens": 5, "output_tokens": 2}
    made = client.post(
        f"{path}/model-calls",
        {
            "provider": "p",
            "model": "m",
            "params": {"temperature": 0},
            "usage": usage,
            "request": {"messages": ["hi"]},
            "response": "hello",
        },
    )
    (call,) = client.get(f"{path}/model-calls", model="m")["items"]
    assert (call["seq"], call["usage"]) == (made["event"]["seq"], usage)
    whole = client.get(f"{path}/model-calls/{call['seq']}")
    assert (whole["request"], whole["response"]) == ('{"messages":["hi"]}', "hello")
    assert client.get(f"{path}/budget")["spent"]["tokens"] == 7
    bare = client.post(f"{path}/model-calls", {"model": "m"})
    assert client.get(f"{path}/model-calls/{bare['event']['seq']}")["request"] is None


def test_bill_groups_by_agent_model_and_session(client: Client) -> None:
    path = client.new("billed", agent="payer")
    client.post(f"{path}/spend", {"amounts": {"usd": 2}, "model": "m1"})
    client.post(f"{path}/spend", {"amounts": {"usd": 1}, "model": "m2"})
    lines = {one["key"]: one for one in client.get("/bill", by="agent")["items"]}
    assert (lines["payer"]["amounts"], lines["payer"]["spends"]) == ({"usd": 3}, 2)
    assert {"m1", "m2"} <= {one["key"] for one in client.get("/bill", by="model")["items"]}
    sessions = {one["key"]: one["name"] for one in client.get("/bill", since="1h")["items"]}
    assert sessions[path.rpartition("/")[2]] == "billed"
    assert client.get("/bill", since="2100-01-01")["items"] == []


@pytest.mark.parametrize(
    ("method", "path", "body", "kind"),
    [
        ("POST", "/spend", {"amounts": {}}, "bad_request"),
        ("POST", "/spend", {"amounts": {"usd": -1}}, "bad_request"),
        ("POST", "/spend", {"amounts": {"model": 1}}, "bad_budget"),
        ("POST", "/spend", {"amounts": {"a\nb": 1}}, "bad_amount"),
        ("PUT", "/budget", {}, "bad_budget"),
        ("PUT", "/budget", {"limits": {"soft": 1}}, "bad_budget"),
        ("POST", "/model-calls", {"model": ""}, "bad_request"),
        ("POST", "/model-calls", {"model": "m", "usage": {"usd": -1}}, "bad_amount"),
        ("GET", "/model-calls?limit=x", None, "bad_request"),
    ],
)
def test_bad_spend_and_budget_requests_are_422(
    client: Client, method: str, path: str, body: Any, kind: str
) -> None:
    place = client.new("wrong")
    reply = client.ask(method, f"{place}{path}", body)
    assert (reply.status, reply.kind) == (422, kind), reply


def test_unknown_model_call_and_bad_bill_queries_are_refused(client: Client) -> None:
    path = client.new("wrong")
    assert client.ask("GET", f"{path}/model-calls/1").kind == "no_call"
    assert client.ask("GET", "/bill", by="colour").kind == "bad_request"
    assert client.ask("GET", "/bill", since="some day").kind == "bad_time"
