"""Pages show only what the token of the caller may see."""

from __future__ import annotations

from tests.fixtures.http_server import Serve
from tests.web.sample import Sample

import ortet

HTML = {"Accept": "text/html"}


def test_a_token_for_one_agent_sees_no_session_of_another(serve: Serve) -> None:
    server = serve()
    made = {}
    with ortet.open(server.store) as hub:
        for agent in ("mine", "theirs"):
            with hub.session("work", agent=agent, goal=f"goal of {agent}") as session:
                session.say("user", f"only for {agent}")
                first = session.commit(f"first of {agent}")
                session.learn(f"known to {agent}")
                made[agent] = session.id, first.oid, session.commit(f"second of {agent}").oid
    client = server.client(server.token("limited", "--allow", "read", "--agent", "mine"))
    mine, theirs = made["mine"], made["theirs"]

    def paths(session: str, commits: tuple[str, str, str]) -> list[str]:
        _, old, new = commits
        return [f"/s/{session}/c/{new}", f"/s/{session}/compare/{old}/{new}"]

    own = [
        f"/s/{mine[0]}",
        f"/s/{mine[0]}/tree.json",
        f"/s/{mine[0]}/replay",
        *paths(mine[0], mine),
    ]
    for path in own:
        assert client.ask("GET", path, headers=HTML).status == 200, path
    others = [f"/s/{theirs[0]}", f"/s/{theirs[0]}/tree.json", f"/s/{theirs[0]}/replay"]
    others += [*paths(theirs[0], theirs), *paths(mine[0], theirs), "/s/theirs%2Fwork"]
    others += [f"/s/{mine[0]}/compare/{mine[1]}/{theirs[2]}"]
    for path in others:
        reply = client.ask("GET", path, headers=HTML)
        assert reply.status == 404, path
        for word in (b"goal of theirs", b"only for", b"known to theirs", b"first of", b"second of"):
            assert word not in reply.body, path
    rows = client.get(f"/s/{mine[0]}/tree.json")
    assert sorted(rows["title"]) == ["first of mine", "second of mine"]


def test_json_request_without_a_token_gets_a_json_error(serve: Serve) -> None:
    reply = serve().client().ask("GET", "/s/x/tree.json", headers={"Accept": "application/json"})
    assert (reply.status, reply.kind) == (401, "no_token")


def test_commit_that_a_restore_left_has_no_replay_link(serve: Serve, sample: Sample) -> None:
    server = serve("--no-auth", home=sample.store.parent)
    client = server.client()
    there = client.ask("GET", f"/s/{sample.session}/c/{sample.second}", headers=HTML).body
    away = client.ask("GET", f"/s/{sample.session}/c/{sample.away}", headers=HTML).body
    assert b"/replay?at=" in there
    assert b"/replay?at=" not in away
    assert b"mocking the clock hid the bug" in away
