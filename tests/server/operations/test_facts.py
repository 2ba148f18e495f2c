"""Facts, recall and episodes over HTTP."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fixtures.http_server import Client, Serve, all_of


def texts(page: Any) -> list[str]:
    return [one["text"] for one in page["items"]]


def committed(client: Client, path: str) -> str:
    """By a turn, which commits."""
    done = client.post(f"{path}/turns", {"messages": [{"role": "user", "content": "go on"}]})
    oid: str = done["head"]["oid"]
    return oid


def test_a_fact_is_learned_superseded_and_retracted(client: Client) -> None:
    path = client.new("facts")
    first = client.post(f"{path}/facts", {"text": "the port is 80", "about": "web"})
    second = client.post(
        f"{path}/facts",
        {"text": "the port is 8080", "about": "web", "supersedes": first["id"], "confidence": 0.9},
    )
    client.post(f"{path}/lessons", {"text": "restart after a change of the port"})
    assert texts(client.get(f"{path}/facts")) == [
        "the port is 8080",
        "restart after a change of the port",
    ]
    assert texts(client.get(f"{path}/facts", about="web")) == ["the port is 8080"]
    assert texts(client.get(f"{path}/facts", lesson="false")) == ["the port is 8080"]
    assert len(all_of(client, f"{path}/facts", past="true", limit=1)) == 3
    history = client.get(f"{path}/facts/{first['id']}/history")
    assert texts(history) == ["the port is 80", "the port is 8080"]
    gone = client.post(f"{path}/facts/{second['id']}/forget", {"why": "it moved"})
    assert gone["ended"] > 0
    assert client.get(f"{path}/facts/{second['id']}")["why"] == "it moved"
    assert texts(client.get(f"{path}/facts", about="web")) == []
    again = client.ask("POST", f"{path}/facts/{second['id']}/forget", {})
    assert (again.status, again.kind) == (404, "no_fact")


def test_facts_are_queried_by_validity_and_knowledge_time(client: Client) -> None:
    path = client.new("then")
    old = client.post(f"{path}/facts", {"text": "it is red", "until": "2020-01-01"})
    client.post(f"{path}/facts", {"text": "it is blue", "since": "2020-01-01"})
    assert texts(client.get(f"{path}/facts", on="2019-06-01")) == ["it is red"]
    assert texts(client.get(f"{path}/facts", on="1s")) == ["it is blue"]
    client.post(f"{path}/facts/{old['id']}/forget")
    assert texts(client.get(f"{path}/facts", at=old["time"] / 1e9 + 0.000001)) == ["it is red"]


def test_contradicting_facts_are_listed(client: Client) -> None:
    path = client.new("contradicted")
    client.post(f"{path}/facts", {"text": "the default port is 80", "about": "port"})
    client.post(f"{path}/facts", {"text": "the default port is 81", "about": "port"})
    (found,) = client.get(f"{path}/contradictions")["items"]
    assert (found["ours"]["text"][-2:], found["theirs"]["text"][-2:]) == ("80", "81")


def test_recall_returns_source_and_scores(client: Client) -> None:
    path = client.new("recalled")
    client.post(f"{path}/messages", {"role": "user", "content": "how do I feed the axolotl?"})
    client.post(f"{path}/facts", {"text": "an axolotl eats worms", "scope": "agent"})
    found = client.get(f"{path}/recall", query="axolotl", explain="true")
    assert {one["tier"] for one in found["hits"]} == {"working", "semantic"}
    assert all(one["scores"]["terms"] for one in found["hits"])
    assert found["hits"][0]["source"]["session"] == path.rpartition("/")[2]
    (fact,) = client.get(f"{path}/recall", query="axolotl", tiers="semantic")["hits"]
    assert (fact["text"], fact["scores"]) == ("an axolotl eats worms", None)
    assert len(client.get(f"{path}/recall", query="axolotl", tiers="semantic,working")["hits"]) == 2
    assert client.get(f"{path}/recall", query="axolotl", k=1)["hits"] == [
        {**one, "scores": None} for one in found["hits"][:1]
    ]
    assert client.get(f"{path}/recall", query="axolotl", at="2020-01-01")["hits"] == []
    (told,) = client.get(f"{path}/recall", query="axolotl", scope="agent")["hits"]
    assert told["id"] == fact["id"]


def test_committed_project_facts_are_visible_to_other_sessions(client: Client) -> None:
    one = client.new("teller", scopes=["project:ships"])
    client.post(f"{one}/facts", {"text": "hulls are oak", "scope": "project:ships"})
    committed(client, one)
    other = client.new("listener", scopes=["project:ships"])
    assert texts(client.get(f"{other}/facts", scope="project:ships")) == ["hulls are oak"]
    names = [memory["name"] for memory in client.get(f"{other}/memory/shared")["items"]]
    assert "project:ships" in names
    assert client.post(f"{other}/memory/refresh")["items"]


def test_milestone_writes_an_episode_that_is_consolidated_once(client: Client) -> None:
    path = client.new("lived", agent="historian")
    said = "I always take the night train to Vienna."
    client.post(f"{path}/messages", {"role": "user", "content": said})
    made = client.post(f"{path}/milestones", {"summary": f"user: {said}", "outcome": "noted"})
    assert client.post(f"{path}/milestones")["id"] is None
    (episode,) = client.get(f"{path}/episodes", outcome="noted")["items"]
    assert episode["id"] == made["id"]
    client.post(f"{path}/close", {"why": "done"})
    assert made["id"] in [one["id"] for one in client.get("/episodes", agent="historian")["items"]]
    foreseen = client.post("/memory/consolidate", {"agent": "historian", "dry_run": True})
    done = client.post("/memory/consolidate", {"agent": "historian"})
    assert (foreseen["dry_run"], done["dry_run"]) == (True, False)
    assert foreseen["episodes"] == done["episodes"] >= 1
    assert client.post("/memory/consolidate", {"agent": "historian"})["episodes"] == 0


def test_memory_diff_and_markdown_show_new_facts(client: Client) -> None:
    path = client.new("compared")
    client.post(f"{path}/facts", {"text": "one"})
    old = committed(client, path)
    client.post(f"{path}/facts", {"text": "two"})
    client.post(f"{path}/decisions", {"text": "go on", "why": "it works"})
    new = committed(client, path)
    found = client.get("/memory/diff", old=old, new=new)
    assert [one["text"] for one in found["learned"]] == ["two"]
    assert [one["text"] for one in found["decisions"]] == ["go on"]
    assert "- two" in client.get(f"{path}/memory")["markdown"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "kind"),
    [
        ("GET", "/facts/none", None, 404, "no_fact"),
        ("GET", "/facts?at=never", None, 422, "bad_time"),
        ("GET", "/facts?scope=everyone", None, 422, "bad_scope"),
        ("POST", "/facts", {"text": ""}, 422, "bad_request"),
        ("POST", "/facts", {"text": " "}, 422, "no_text"),
        ("POST", "/facts", {"text": "x", "confidence": 2}, 422, "bad_request"),
        ("POST", "/facts", {"text": "x", "source": 9999}, 404, "no_event"),
        ("POST", "/facts", {"text": "x", "since": "2021", "until": "2020"}, 422, "bad_time"),
        ("GET", "/recall", None, 422, "bad_request"),
        ("GET", "/recall?query=x&tiers=none", None, 422, "bad_request"),
        ("GET", "/recall?query=x&k=0", None, 422, "bad_request"),
    ],
)
def test_bad_memory_requests_return_status_and_kind(  # noqa: PLR0917 - as the table has them
    client: Client, method: str, path: str, body: Any, status: int, kind: str
) -> None:
    place = client.new("wrong")
    reply = client.ask(method, f"{place}{path}", body)
    assert (reply.status, reply.kind) == (status, kind), reply


def test_token_limited_to_agents_recalls_only_their_memories(serve: Serve) -> None:
    server = serve()
    owner = server.client(server.token("owner", "--allow", "admin"))
    for agent in ("mine", "yours", "secret"):
        path = owner.new("s", agent=agent, scopes=["project:x"])
        owner.post(f"{path}/facts", {"text": f"the {agent} axolotl", "scope": "project:x"})
        owner.post(f"{path}/messages", {"role": "user", "content": f"axolotl of {agent}"})
        owner.post(f"{path}/milestones", {"summary": f"{agent} saw an axolotl"})
        owner.post(f"{path}/spend", {"amounts": {"usd": 1}})
        committed(owner, path)
    everything = {one["text"] for one in owner.get("/recall", query="axolotl", k=100)["hits"]}
    assert {"axolotl of mine", "axolotl of yours", "axolotl of secret"} <= everything
    limited = server.client(
        server.token("limited", "--allow", "admin", "--agent", "mine", "--agent", "yours")
    )
    own = {
        one["text"]
        for one in limited.get("/recall", query="axolotl", tiers="working,episodic", k=100)["hits"]
    }
    assert {"axolotl of mine", "axolotl of yours"} <= own
    assert not [text for text in own if "secret" in text]
    assert limited.ask("GET", "/recall", query="axolotl", agent="secret").kind == "token_agent"
    assert limited.ask("GET", "/recall", query="x", session="secret/s").kind == "no_session"
    for place in ("/recall", f"{path_of(limited, 'mine')}/recall"):
        refused = limited.ask("GET", place, query="axolotl", scope="project:other")
        assert refused.kind == "token_memory"
    path = limited.new("own", agent="mine")
    for place, body in (
        (f"{path}/facts", {"text": "x", "scope": "project:x"}),
        (f"{path}/lessons", {"text": "x", "scope": "user:ann"}),
        ("/sessions", {"name": "t", "agent": "mine", "scopes": ["project:x"]}),
    ):
        assert limited.ask("POST", place, body).kind == "token_memory"
    assert limited.post(f"{path}/facts", {"text": "x", "scope": "agent"})["scope"] == "agent"
    told = [one["summary"] for one in limited.get("/episodes")["items"]]
    assert sorted(told) == ["mine saw an axolotl", "yours saw an axolotl"]
    bills = limited.get("/bill", by="agent")["items"]
    assert [one["key"] for one in bills] == ["mine", "yours"]
    assert limited.ask("POST", "/memory/consolidate", {"agent": "secret"}).kind == "token_agent"


def path_of(client: Client, agent: str) -> str:
    (found,) = client.get("/sessions", agent=agent)["items"]
    return f"/sessions/{found['id']}"
