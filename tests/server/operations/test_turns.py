"""Stateless turns: any of several servers takes the next one, also after one was killed."""

from __future__ import annotations

from http.client import HTTPException
from typing import Any

import pytest
from tests.fixtures.http_server import Client, Reply, Serve
from tests.fixtures.waiting import WAIT, eventually

import ortet


def said(text: str, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": text}


def take(client: Client, path: str, *texts: str, key: str = "", **more: Any) -> Reply:
    return send(client, path, {"messages": [said(text) for text in texts], **more}, key)


def send(client: Client, path: str, body: dict[str, Any], key: str = "") -> Reply:
    """As clients do: while another server has the session and is slow to leave it, once more."""
    headers = {"Idempotency-Key": key} if key else {}

    def answer() -> Reply | None:
        reply = client.ask("POST", path, body, headers=headers)
        busy = reply.status == 503 or (reply.status >= 400 and reply.kind == "lease_held")
        return None if busy else reply

    return eventually(answer)


def contents(client: Client, path: str) -> list[Any]:
    """All that was ever said, in order."""
    page = client.get(f"{path}/events", kind="message", limit=1000)
    assert page["next"] is None
    return [one["data"]["content"] for one in page["items"]]


def test_turn_records_messages_and_returns_context_and_briefing(client: Client) -> None:
    path = client.new("talk", goal="be polite")
    done = client.post(
        f"{path}/turns",
        {"messages": [said("hello"), said("hi", "assistant")], "briefing": 500},
    )
    assert [one["data"]["content"] for one in done["events"]] == ["hello", "hi"]
    assert [one["content"] for one in done["context"]["messages"]] == ["hello", "hi"]
    assert "be polite" in done["briefing"]["markdown"]
    assert done["head"]["message"] == "turn"
    bare = take(client, f"{path}/turns", "more", context=0, commit=False).data
    assert (bare["context"], bare["briefing"]) == (None, None)
    assert bare["head"] == done["head"]


def test_repeated_turn_with_the_same_key_is_recorded_once(client: Client) -> None:
    path = client.new("again")
    first, again = (take(client, f"{path}/turns", "hello", key="t1") for _ in range(2))
    assert (first.status, again.status) == (201, 201)
    assert (first.data["again"], again.data["again"]) == (False, True)
    assert again.data["events"] == first.data["events"]
    other = take(client, f"{path}/turns", "something else", key="t1")
    assert (other.status, other.kind) == (422, "key_reused")
    assert contents(client, path) == ["hello"]


def test_turns_alternate_between_two_servers_and_one_is_killed(serve: Serve) -> None:
    servers = [serve("--no-auth"), serve("--no-auth")]
    path = servers[0].client().new("shared")
    for number in range(12):
        if number == 5:
            servers[0].kill()
            servers[0] = serve("--no-auth")
        client = servers[number % 2].client()
        done = take(client, f"{path}/turns", f"message {number}", key=f"turn-{number}")
        assert done.status == 201, done
        # whoever does not know whether it was done sends it again, to another
        other = servers[(number + 1) % 2].client()
        again = take(other, f"{path}/turns", f"message {number}", key=f"turn-{number}")
        assert again.data["again"], again
        assert again.data["events"] == done.data["events"]
        told = [one["content"] for one in again.data["context"]["messages"]]
        assert told == [f"message {before}" for before in range(number + 1)]
    for server in servers:
        assert contents(server.client(), path) == [f"message {number}" for number in range(12)]
    store = servers[0].store
    for server in servers:
        server.stop()
    with ortet.open(store) as hub:
        hub.verify()
        (row,) = hub.sessions()
        assert hub.audit(row.id)


@pytest.mark.parametrize(
    "place", ["journal.before-append", "journal.after-append", "commit.after-flush"]
)
def test_turn_of_a_killed_server_is_recorded_once_when_repeated(serve: Serve, place: str) -> None:
    """Where the store has it already, or not yet."""
    client = serve("--no-auth").client()
    path = client.new("s")
    dying = serve("--no-auth", ORTET_FAULT=f"{place}:kill:4")
    number = 0
    while True:
        try:
            reply = take(dying.client(), f"{path}/turns", f"m{number}", key=f"k{number}")
        except (OSError, HTTPException):
            break
        assert reply.status == 201, reply
        number += 1
    assert dying.process.wait(WAIT) == -9
    known = contents(client, path)
    assert known[:number] == [f"m{before}" for before in range(number)]
    assert len(known) - number == (place != "journal.before-append")
    for again in (number, number + 1):
        done = take(client, f"{path}/turns", f"m{again}", key=f"k{again}")
        assert done.status == 201, done
    assert contents(client, path) == [f"m{each}" for each in range(number + 2)]


def test_carry_continues_on_any_server_and_a_stale_one_is_refused(serve: Serve) -> None:
    servers = [serve("--no-auth"), serve("--no-auth")]
    start = {"messages": [said("message 0")], "session": "carried", "goal": "g"}
    done = send(servers[0].client(), "/turn", start).data
    path = f"/sessions/{done['session']}"
    for number in range(1, 8):
        if number == 4:
            servers[1].kill()
            servers[1] = serve("--no-auth")
        body = {"messages": [said(f"message {number}")], "carry": done["carry"]}
        before, done = done, send(servers[number % 2].client(), "/turn", body).data
        assert not done["again"]
        # the same request, whose answer was lost, to the other: no key was given
        again = send(servers[(number + 1) % 2].client(), "/turn", body).data
        assert (again["again"], again["events"]) == (True, done["events"])
        done = again
        stale = {"messages": [said("another")], "carry": before["carry"]}
        reply = send(servers[number % 2].client(), "/turn", stale)
        assert (reply.status, reply.kind) == (409, "stale_carry")
    client = servers[0].client()
    assert contents(client, path) == [f"message {number}" for number in range(8)]
    assert client.post("/carry/check", {"carry": done["carry"]})["name"] == "carried"
    assert client.post("/carry/check", {"carry": client.get(f"{path}/carry")["carry"]})


def test_a_tool_call_and_its_result_may_reach_two_servers(serve: Serve) -> None:
    one, other = serve("--no-auth").client(), serve("--no-auth").client()
    path = one.new("tools")
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    asks = {"role": "assistant", "content": None, "extra": {"tool_calls": [call]}}
    result = {"role": "tool", "content": "seen", "extra": {"tool_call_id": "c1"}}
    one.post(f"{path}/turns", {"messages": [said("look"), asks]})
    done = send(other, f"{path}/turns", {"messages": [result]}).data
    told = [(each["role"], each["content"]) for each in done["context"]["messages"]]
    assert told == [("user", "look"), ("assistant", None), ("tool", "seen")]


def test_turn_with_a_bad_or_conflicting_carry_is_refused(client: Client) -> None:
    path = client.new("carrier")
    text = client.get(f"{path}/carry")["carry"]
    for wrong, kind in ((text[:-4] + "AAAA", "bad_carry"), ("x", "bad_carry")):
        reply = take(client, "/turn", "hi", carry=wrong)
        assert (reply.status, reply.kind) == (403, kind)
    assert take(client, "/turn", "hi").kind == "bad_request"
    assert take(client, "/turn", "hi", carry=text, session="other").kind == "bad_request"
    assert take(client, "/turn", session="carrier").kind == "bad_request"
    assert contents(client, path) == []
    client.post(f"{path}/close")
    assert take(client, "/turn", "hi", carry=text).status == 409


def test_carry_of_another_agent_is_404(serve: Serve) -> None:
    server = serve()
    owner = server.client(server.token("owner", "--allow", "admin"))
    limited = server.client(server.token("limited", "--agent", "mine"))
    text = owner.get(f"{owner.new('s', agent='secret')}/carry")["carry"]
    for path in ("/turn", "/carry/check"):
        body = {"carry": text} | ({"messages": [said("hi")]} if path == "/turn" else {})
        reply = limited.ask("POST", path, body)
        assert (reply.status, reply.kind) == (404, "no_session")
    begun = take(limited, "/turn", "hi", session="s", agent="secret")
    assert (begun.status, begun.kind) == (403, "token_agent")
    assert take(limited, "/turn", "hi", session="s", agent="mine").status == 201
