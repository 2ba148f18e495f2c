"""History over HTTP: commits and their reasons, differences of two commits, branches and tags."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.fixtures.http_server import Client, Server

import ortet
from ortet.hub.hub import Hub
from ortet.server.auth.tokens import Tokens


class Scene(NamedTuple):
    """A session with files and three commits."""

    path: str
    commits: list[str]  # the oldest first
    project: Path


@pytest.fixture(scope="module")
def scene(server: Server, client: Client) -> Scene:
    project = server.home / "project"
    project.mkdir()
    (project / "one.txt").write_text("one\n")
    path = client.new("scene", workspace=str(project), goal="make it green")
    made = []

    def commit(message: str) -> None:
        made.append(client.post(f"{path}/commits", {"message": message})["oid"])

    client.post(f"{path}/messages", {"role": "user", "content": "please"})
    commit("first")
    client.post(f"{path}/thoughts", {"text": "the lexer drops a token"})
    client.post(
        f"{path}/decisions", {"text": "patch it", "why": "small", "instead_of": ["rewrite"]}
    )
    client.put(f"{path}/plan", {"steps": ["reproduce", "fix"]})
    (project / "one.txt").write_text("uno\n")
    (project / "two.txt").write_text("two\n")
    commit("second")
    client.post(f"{path}/messages", {"role": "assistant", "content": "done"})
    client.post(f"{path}/plan/advance", {})
    (project / "two.txt").unlink()
    commit("third")
    return Scene(path, made, project)


def test_commits_of_a_session_are_listed_newest_first(client: Client, scene: Scene) -> None:
    found = client.get(f"{scene.path}/commits")
    assert [one["message"] for one in found["items"]] == ["third", "second", "first"]
    assert [one["oid"] for one in found["items"]] == scene.commits[::-1]
    assert found["items"][0]["refs"] == ["scene"]
    assert found["items"][0]["parents"] == [scene.commits[1]]
    assert found["next"] is None
    assert client.get("/commits", ref="scene") == found
    assert client.get("/commits", ref="scene~1")["items"] == found["items"][1:]
    assert client.get(f"{client.new('without')}/commits") == {"items": [], "next": None}


def test_pages_of_commits_hold_each_once_while_others_commit(client: Client) -> None:
    path = client.new("long")
    for number in range(7):
        client.post(f"{path}/thoughts", {"text": str(number)})
        client.post(f"{path}/commits", {"message": str(number)})
    page = client.get(f"{path}/commits", limit=3)
    client.post(f"{path}/thoughts", {"text": "later"})
    client.post(f"{path}/commits", {"message": "later"})
    told = [one["message"] for one in page["items"]]
    while page["next"] is not None:
        page = client.get(f"{path}/commits", limit=3, after=page["next"])
        told += [one["message"] for one in page["items"]]
    assert told == list("6543210")
    assert client.ask("GET", f"{path}/commits", after="nonsense").kind == "bad_cursor"


def test_commit_page_lists_reasons_files_and_event_range(client: Client, scene: Scene) -> None:
    found = client.get(f"/commits/{scene.commits[1]}", patch="true")
    assert client.get(f"{scene.path}/commits/HEAD~1", patch="true") == found
    assert found["commit"]["message"] == "second"
    assert found["commit"]["author"] == "tester"
    reasons = [(one["kind"], one["text"], one["why"]) for one in found["reasons"]]
    assert reasons == [
        ("thought", "the lexer drops a token", ""),
        ("decision", "patch it", "small"),
        ("plan", "reproduce\nfix", ""),
    ]
    assert found["reasons"][1]["instead_of"] == ["rewrite"]
    assert found["kinds"] == {"thought": 1, "decision": 1, "plan": 1}
    assert found["last"] - found["first"] == 2
    files = found["files"]
    assert files["counts"] == {"modified": 1, "added": 1}
    assert [one["path"] for one in files["changes"]] == ["one.txt", "two.txt"]
    assert "-one\n+uno\n" in files["changes"][0]["patch"]
    some = client.get(f"/commits/{scene.commits[1]}", reasons=1, files=1)
    assert some["more"]
    assert [one["kind"] for one in some["reasons"]] == ["plan"]
    assert (some["files"]["total"], len(some["files"]["changes"])) == (2, 1)
    newest = client.get(f"{scene.path}/commits/HEAD")
    assert newest["sessions"] == [scene.path.removeprefix("/sessions/")]
    assert client.get(f"/commits/{scene.commits[0]}")["commit"]["parents"] == []


def test_commit_lists_facts_learned_and_superseded(server: Server, client: Client) -> None:
    with ortet.open(server.store) as hub, hub.session("facts") as session:
        session.learn("it is red", about="colour")
        session.commit("red")
        wrong = session.facts()[0]
        session.learn("it is blue", about="colour", supersedes=wrong.id)
        session.lesson("look twice")
        session.act(len, "abc", why="how long is it?")
        oid = session.commit("blue").oid
    found = client.get(f"/commits/{oid}")
    assert [one["text"] for one in found["learned"]] == ["it is blue", "look twice"]
    assert [one["text"] for one in found["given_up"]] == ["it is red"]
    (action,) = found["reasons"]
    assert (action["kind"], action["text"], action["state"]) == ("action", "len", "done")
    assert action["why"] == "how long is it?"
    between = client.get("/diff", old=f"{oid}^", new=oid)
    assert {one["text"] for one in between["learned"]} == {"it is blue", "look twice"}
    assert [one["text"] for one in between["given_up"]] == ["it is red"]


def test_diff_of_two_commits_lists_files_plan_decisions_and_messages(
    client: Client, scene: Scene
) -> None:
    first, _, third = scene.commits
    found = client.get("/diff", old=first, new=third, patch="true")
    assert (found["old"], found["new"]) == (first, third)
    assert [(one["path"], one["kind"]) for one in found["files"]["changes"]] == [
        ("one.txt", "modified")
    ]
    assert found["before"] == {"goal": "make it green", "plan": [], "step": 0}
    assert found["after"] == {"goal": "make it green", "plan": ["reproduce", "fix"], "step": 1}
    assert [one["text"] for one in found["decisions"]] == ["patch it"]
    assert found["left"] == {"count": 0, "messages": []}
    assert [one["content"] for one in found["come"]["messages"]] == ["done"]
    back = client.get("/diff", old=third, new=first)
    assert (back["left"]["count"], back["come"]["count"]) == (1, 0)
    own = client.get(f"{scene.path}/diff")
    assert (own["old"], own["new"]) == (scene.commits[1], third)
    assert own["files"]["counts"] == {"removed": 1}


def test_present_lists_uncommitted_files_and_messages(client: Client, scene: Scene) -> None:
    (scene.project / "three.txt").write_text("three\n")
    client.post(f"{scene.path}/messages", {"role": "user", "content": "and now?"})
    found = client.get(f"{scene.path}/present", patch="true")
    assert (found["old"], found["new"]) == (scene.commits[2], None)
    assert [(one["path"], one["kind"]) for one in found["files"]["changes"]] == [
        ("three.txt", "added")
    ]
    assert [one["content"] for one in found["come"]["messages"]] == ["and now?"]
    since = client.get(f"{scene.path}/present", old="HEAD~2")
    assert [one["content"] for one in since["come"]["messages"]] == ["done", "and now?"]
    assert [one["path"] for one in since["files"]["changes"]] == ["one.txt", "three.txt"]


def test_diff_of_forked_or_restored_commits_lists_messages_of_each_side(client: Client) -> None:
    path = client.new("parting")
    client.post(f"{path}/messages", {"role": "user", "content": "shared"})
    base = client.post(f"{path}/commits", {})["oid"]
    (fork,) = client.post(f"{path}/forks", {})["forks"]
    client.post(f"/sessions/{fork['id']}/messages", {"role": "user", "content": "there"})
    there = client.post(f"/sessions/{fork['id']}/commits", {})["oid"]
    client.post(f"{path}/messages", {"role": "user", "content": "here"})
    here = client.post(f"{path}/commits", {})["oid"]
    found = client.get("/diff", old=there, new=here)
    assert [one["content"] for one in found["left"]["messages"]] == ["there"]
    assert [one["content"] for one in found["come"]["messages"]] == ["here"]
    client.post(f"{path}/restore", {"ref": base})
    client.post(f"{path}/messages", {"role": "user", "content": "again"})
    again = client.post(f"{path}/commits", {})["oid"]
    assert client.get(f"/commits/{again}")["commit"]["parents"] == [base]
    found = client.get("/diff", old=here, new=again)
    assert [one["content"] for one in found["left"]["messages"]] == ["here"]
    assert [one["content"] for one in found["come"]["messages"]] == ["again"]


def test_branches_and_tags_are_created_deleted_and_kept_in_the_reflog(
    client: Client, scene: Scene
) -> None:
    names = [one["name"] for one in client.get("/branches", prefix="sce")["items"]]
    assert names == ["scene"]
    (own,) = client.get("/branches", prefix="scene")["items"]
    assert own["directory"] == str(scene.project)
    assert own["session"] == scene.path.removeprefix("/sessions/")
    made = client.post("/tags", {"name": "rel/1", "ref": scene.commits[0]})
    assert (made["oid"], made["message"]) == (scene.commits[0], "first")
    assert client.ask("POST", "/tags", {"name": "rel/1", "ref": "scene"}).kind == "name_taken"
    assert client.get("/commits/rel%2F1")["commit"]["refs"] == ["tag:rel/1"]
    assert client.get("/tags")["items"] == [made]
    assert client.delete("/tags/rel%2F1") == {"name": "rel/1", "oid": scene.commits[0]}
    assert client.ask("DELETE", "/tags/rel%2F1").kind == "no_ref"
    verbs = [one["verb"] for one in client.get("/reflog", name="rel/1")["items"]]
    assert verbs == ["delete tag", "create tag"]
    client.post("/branches", {"name": "aside", "ref": scene.commits[1]})
    assert client.delete("/branches/aside")["oid"] == scene.commits[1]
    assert client.ask("DELETE", "/branches/parting").kind in ("branch_in_use", "no_branch")
    assert client.ask("DELETE", "/branches/scene").kind == "branch_in_use"
    moves = client.get(f"{scene.path}/reflog", limit=2)
    assert [one["ref"] for one in moves["items"]] == ["HEAD@{0}", "HEAD@{1}"]
    rest = client.get(f"{scene.path}/reflog", after=moves["next"])
    assert rest["items"][-1]["was"] is None
    assert client.get("/reflog", name="scene")["items"][0]["oid"] == scene.commits[2]


NOTHING: list[tuple[str, dict[str, Any], int, str]] = [
    ("/commits/nonsense", {}, 404, "no_ref"),
    ("/commits/" + "0" * 64, {}, 404, "no_ref"),
    ("/commits/scene~99", {}, 404, "no_parent"),
    ("/commits/scene@{99}", {}, 404, "no_reflog"),
    ("/commits", {"ref": ""}, 422, "bad_request"),
    ("/commits", {"limit": 0}, 422, "bad_request"),
    ("/commits/scene", {"files": -1}, 422, "bad_request"),
    ("/diff", {"old": "scene"}, 422, "bad_request"),
    ("/diff", {"old": "scene", "new": "nonsense"}, 404, "no_ref"),
    ("/reflog", {"name": "nonsense"}, 404, "no_ref"),
    ("/reflog", {}, 422, "bad_request"),
    ("/branches", {"prefix": "x", "what": 1}, 422, "bad_request"),
]


@pytest.mark.usefixtures("scene")
def test_unknown_refs_and_bad_values_in_history_are_refused(client: Client) -> None:
    for path, query, status, kind in NOTHING:
        reply = client.ask("GET", path, **query)
        assert (reply.status, reply.kind) == (status, kind), path
    assert client.ask("POST", "/tags", {"name": "a b", "ref": "scene"}).status == 422
    assert client.ask("POST", "/tags", {"name": "HEAD", "ref": "scene"}).kind == "bad_name"
    assert client.ask("POST", "/tags", {"name": "x", "ref": "nonsense"}).status == 404


class Apart(NamedTuple):
    """A server with commits of two agents, and a token for one of them."""

    limited: Client
    owner: Client
    mine: str
    theirs: str
    session: str


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apart]:
    server = Server(tmp_path_factory.mktemp("apart"))
    try:
        with ortet.open(server.store) as hub:
            made = {agent: _committed(hub, agent) for agent in ("mine", "theirs")}
            tokens = Tokens(hub.catalog, hub.clock, hub.random)
            hub.refs.create("secret-tag", hub.refs.resolve(made["theirs"][0]), kind="tag")
            hub.refs.create("my-tag", hub.refs.resolve(made["mine"][0]), kind="tag")
            limited = server.client(tokens.create("limited", "admin", agents=["mine"])[0])
            owner = server.client(tokens.create("owner", "admin")[0])
        yield Apart(limited, owner, made["mine"][0], made["theirs"][0], made["mine"][1])
    finally:
        server.kill()


def _committed(hub: Hub, agent: str) -> tuple[str, str]:
    with hub.session(f"of-{agent}", agent=agent) as session:
        session.say("user", f"of {agent}")
        return session.commit(f"by {agent}").oid, session.id


def test_token_for_one_agent_sees_no_commit_of_another(apart: Apart) -> None:
    client, mine, theirs = apart.limited, apart.mine, apart.theirs
    assert client.get(f"/commits/{mine}")["commit"]["message"] == "by mine"
    assert client.get("/commits", ref="of-mine")["items"][0]["refs"] == ["of-mine", "tag:my-tag"]
    assert apart.owner.get(f"/commits/{theirs}")["commit"]["refs"] == [
        "of-theirs",
        "tag:secret-tag",
    ]
    own = f"/sessions/{apart.session}"
    for word in (theirs, theirs[:8], "of-theirs", "secret-tag", "of-theirs~1", "of-theirs@{0}"):
        unknown = client.ask("GET", "/commits/nonsense")
        asked: list[tuple[str, dict[str, Any]]] = [
            (f"/commits/{word}", {}),
            (f"{own}/commits/{word}", {}),
            ("/commits", {"ref": word}),
            (f"{own}/commits", {"ref": word}),
            ("/diff", {"old": mine, "new": word}),
            ("/diff", {"old": word, "new": mine}),
            (f"{own}/diff", {"old": word}),
            (f"{own}/present", {"old": word}),
        ]
        for path, query in asked:
            reply = client.ask("GET", path, **query)
            assert (reply.status, reply.kind) == (404, "no_ref"), (path, query, reply)
            assert reply.body.replace(word.encode(), b"nonsense") == unknown.body
        for path, body in (
            ("restore", {"ref": word}),
            ("restore", {"ref": word, "dry_run": True}),
            ("forks", {"at": word}),
            ("merge", {"other": word}),
            ("adopt", {"other": word}),
        ):
            reply = client.ask("POST", f"{own}/{path}", body)
            assert (reply.status, reply.kind) == (404, "no_ref"), (path, body, reply)
        assert client.ask("POST", "/tags", {"name": "x", "ref": word}).kind == "no_ref"
    assert [one["name"] for one in client.get("/branches")["items"]] == ["of-mine"]
    assert [one["name"] for one in client.get("/tags")["items"]] == ["my-tag"]
    assert client.ask("DELETE", "/tags/secret-tag").kind == "no_ref"
    for path in ("/commits", "/commits/HEAD", "/commits/@~1", "/commits/^"):
        reply = client.ask("GET", path)
        assert (reply.status, reply.kind) == (422, "no_default")
        assert b"theirs" not in reply.body
    assert client.ask("GET", "/reflog", name="of-theirs").kind == "token_agents"
    assert client.ask("POST", "/branches", {"name": "x", "ref": mine}).kind == "token_agents"
