"""Lists of sessions: the requested order, and complete over pages while sessions change."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from tests.fixtures.http_server import Client, Server

import ortet
from ortet.server.pagination import Sort, sort_sessions

AGENT = "listed"


@pytest.fixture(scope="module")
def names(server: Server) -> list[str]:
    made = ["b", "a", "d", "c", "e"]
    with ortet.open(server.store) as hub:
        for name in made:
            with hub.session(name, agent=AGENT) as session:
                session.say("user", name)
    return made


def said(client: Client, name: str) -> None:
    path = f"/sessions/{client.get('/sessions', agent=AGENT, name=name)['items'][0]['id']}"
    client.post(f"{path}/messages", {"role": "user", "content": "again"})


def listed(client: Client, **query: object) -> list[str]:
    return [one["name"] for one in client.get("/sessions", agent=AGENT, **query)["items"]]


def test_session_list_is_complete_over_pages_in_each_order(
    client: Client, names: list[str]
) -> None:
    said(client, "a")
    for sort, wanted in (
        ("created", names[::-1]),
        ("activity", ["a", "e", "c", "d", "b"]),
        ("name", sorted(names)),
    ):
        assert listed(client, sort=sort) == wanted
        found, after = list[str](), dict[str, str]()
        while True:
            page = client.get("/sessions", agent=AGENT, sort=sort, limit=2, **after)
            found += [one["name"] for one in page["items"]]
            if page["next"] is None:
                break
            after = {"after": page["next"]}
        assert found == wanted
    assert listed(client) == names[::-1]


def test_session_moved_between_pages_is_listed_once(client: Client, names: list[str]) -> None:
    del names
    first = client.get("/sessions", agent=AGENT, sort="activity", limit=2)
    seen = [one["name"] for one in first["items"]]
    said(client, seen[1])  # the one that the cursor names
    rest = listed(client, sort="activity", after=first["next"])
    assert sorted(seen + rest) == ["a", "b", "c", "d", "e"]
    assert listed(client, sort="activity")[0] == seen[1]


def test_restore_counts_as_activity_in_the_session_list(client: Client, server: Server) -> None:
    with ortet.open(server.store) as hub:
        for name in ("went-back", "stayed"):
            with hub.session(name, agent="back") as session:
                session.say("user", "one")
                session.commit("one")
                session.say("user", "two")
                session.commit("two")
        with hub.session("went-back", agent="back") as session:
            session.rewind()
            found = client.get("/sessions", agent="back", sort="activity")["items"]
    assert [one["name"] for one in found] == ["went-back", "stayed"]


def test_a_cursor_of_another_order_is_refused(client: Client, names: list[str]) -> None:
    del names
    cursor = client.get("/sessions", agent=AGENT, sort="name", limit=1)["next"]
    reply = client.ask("GET", "/sessions", sort="activity", after=cursor)
    assert (reply.status, reply.kind) == (422, "bad_cursor")
    assert client.ask("GET", "/sessions", sort="nonsense").status == 422


def test_sessions_with_equal_times_have_a_stable_order(tmp_path: Path) -> None:
    with ortet.open(tmp_path / "store") as hub:
        with hub.session("root") as session:
            for kid in session.fork(12, machine=False):  # all at once
                kid.pause()
        for sort in get_args(Sort):
            line = sort_sessions(hub.catalog, hub.sessions(), sort)
            keys = [line.key(row) for row in line.rows]
            assert keys == sorted(keys) and len(keys) == 13
            places = [line.cursor(n) for n in range(13)]
            assert [line.index_after(one) for one in places] == list(range(1, 14))
            assert [line.index_before(one) for one in places] == list(range(13))
