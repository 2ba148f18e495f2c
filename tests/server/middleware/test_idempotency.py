"""Requests with an idempotency key are executed once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.fixtures.http_server import Client


def test_idempotency_key_holds_after_other_rows_were_dropped(client: Client) -> None:
    path = client.new("keyed")
    for n in range(3):
        headers = {"Idempotency-Key": f"a-key-{n}"}
        asked = ("POST", f"{path}/thoughts", {"text": f"thought {n}"})
        first = client.ask(*asked, headers=headers)
        assert first.status == 201, first
        again = client.ask(*asked, headers=headers)
        assert (again.status, again.body) == (201, first.body)
        # a key whose request failed is free again: its row is dropped
        bad = ("POST", f"{path}/thoughts", {"text": ""})
        assert client.ask(*bad, headers={"Idempotency-Key": f"bad-{n}"}).status == 422
        gone = client.new(f"gone-{n}")
        client.post(f"{gone}/pause")
        client.delete(gone)
    thoughts = client.get(f"{path}/events", kind="thought")["items"]
    assert [one["data"]["text"] for one in thoughts] == [f"thought {n}" for n in range(3)]
