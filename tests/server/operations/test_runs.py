"""Artifacts, runs as data, checkpoints and examples over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.fixtures.http_server import Client, Serve


def spoken(client: Client, name: str, *texts: str, **options: Any) -> str:
    path = client.new(name, **options)
    for text in texts:
        client.post(f"{path}/messages", {"role": "user", "content": text})
    return path


def test_artifacts_are_listed_by_name_and_version_with_lineage(client: Client) -> None:
    path = client.new("made")
    effect = client.post(f"{path}/actions", {"name": "write"})["effect"]["id"]
    client.post(f"{path}/artifacts", {"name": "a/report.md", "data": "one", "kind": "report"})
    client.post(f"{path}/artifacts", {"name": "a/report.md", "data": "two", "why": "better"})
    client.post(f"{path}/artifacts", {"name": "site", "link": "https://a.example"})
    client.post(f"{path}/effects/{effect}/settle", {"outcome": True})
    listed = [(one["name"], one["version"]) for one in client.get(f"{path}/artifacts")["items"]]
    assert listed == [("a/report.md", 2), ("site", 1)]
    every = client.get(f"{path}/artifacts", versions="true", name="a/report.md")["items"]
    assert [one["version"] for one in every] == [1, 2]
    assert client.get(f"{path}/lineage", name="a/report.md")["why"] == "better"
    assert client.get(f"{path}/lineage", name="a/report.md", version=1)["why"] == ""
    assert client.ask("GET", f"{path}/artifacts/a/report.md").body == b"two"
    assert client.post(f"{path}/orphans") == {"missing": [], "files": []}
    assert client.ask("GET", f"{path}/lineage", name="nothing").kind == "no_artifact"


def test_artifact_from_a_file_outside_the_workspace_is_refused(
    client: Client, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "out.txt").write_text("made here")
    (tmp_path / "private.txt").write_text("not here")
    path = client.new("filed", workspace=str(work))
    made = client.post(f"{path}/artifacts", {"name": "out.txt"})
    assert made["size"] == len("made here")
    for name in ("../private.txt", str(tmp_path / "private.txt"), "/etc/passwd"):
        reply = client.ask("POST", f"{path}/artifacts", {"name": name})
        assert (reply.status, reply.kind) == (422, "outside_workspace")
    bare = client.new("bare")
    for name in ("/etc/passwd", "pyproject.toml"):
        reply = client.ask("POST", f"{bare}/artifacts", {"name": name})
        assert (reply.status, reply.kind) == (422, "no_workspace")
    both = {"name": "x", "link": "y", "data": "z"}
    assert client.ask("POST", f"{bare}/artifacts", both).kind == "bad_request"


def test_runs_diff_lists_event_pairs_and_the_first_difference(client: Client) -> None:
    one, other = spoken(client, "left", "a", "b", "c"), spoken(client, "right", "a", "x", "c")
    found = client.get("/runs/diff", left="left", right=other.rpartition("/")[2])
    assert (found["same"], found["left"]) == (False, one.rpartition("/")[2])
    assert client.get(f"{one}/events/{found['seq']}")["data"]["content"] == "b"
    differing = client.get("/runs/diff", left="left", right="right", differing="true")["pairs"]
    assert [
        [pair[side]["data"]["content"] for side in ("left", "right")] for pair in differing["items"]
    ] == [["b", "x"]]
    first = client.get("/runs/diff", left="left", right="right", limit=1)["pairs"]
    rest = client.get("/runs/diff", left="left", right="right", after=first["next"])["pairs"]
    assert first["items"] + rest["items"] == found["pairs"]["items"]
    same = client.get("/runs/diff", left="left", right="left")
    assert (same["same"], same["seq"]) == (True, None)


def test_steps_list_actions_with_their_outcome(client: Client) -> None:
    path = spoken(client, "stepped", "go")
    effect = client.post(f"{path}/actions", {"name": "look", "args": [1]})["effect"]["id"]
    client.post(f"{path}/effects/{effect}/settle", {"outcome": "seen"})
    kinds = {one["kind"]: one for one in client.get(f"{path}/steps")["items"]}
    assert set(kinds) == {"message", "begun"}
    assert (kinds["begun"]["state"], kinds["begun"]["outcome"]) == ("done", "seen")


def test_session_is_created_from_a_checkpoint_once(client: Client) -> None:
    path = spoken(client, "point", "remember me", goal="go on")
    client.post(f"{path}/facts", {"text": "it rains"})
    effect = client.post(f"{path}/actions", {"name": "pay", "key": "p"})["effect"]["id"]
    client.post(f"{path}/effects/{effect}/settle", {"outcome": 7})
    point = client.get(f"{path}/checkpoint")
    assert point["digest"]
    made = client.post("/checkpoints", {"checkpoint": point, "name": "point-2"})
    again = f"/sessions/{made['id']}"
    assert (made["goal"], made["name"]) == ("go on", "point-2")
    assert [one["content"] for one in client.get(f"{again}/messages")["items"]] == ["remember me"]
    assert [one["text"] for one in client.get(f"{again}/facts")["items"]] == ["it rains"]
    paid = client.post(f"{again}/actions", {"name": "pay", "key": "p"})
    assert (paid["done"], paid["outcome"]) == (True, 7)
    taken = client.ask("POST", "/checkpoints", {"checkpoint": point})
    assert (taken.status, taken.kind) == (409, "name_taken")
    damaged = {**point, "goal": "another"}
    wrong = client.ask("POST", "/checkpoints", {"checkpoint": damaged, "name": "point-3"})
    assert (wrong.status, wrong.kind) == (422, "bad_checkpoint")
    assert client.ask("POST", "/checkpoints", {"checkpoint": {}}).kind == "bad_checkpoint"


def test_dataset_lists_sessions_of_an_agent_in_pages(client: Client) -> None:
    for number in range(3):
        spoken(client, f"example-{number}", f"say {number}", agent="examples")
    first = client.get("/dataset", agent="examples", limit=2)
    rest = client.get("/dataset", agent="examples", after=first["next"])
    told = [one["messages"][0]["content"] for one in first["items"] + rest["items"]]
    assert told == ["say 0", "say 1", "say 2"]
    (one,) = client.get("/dataset", session="examples/example-1")["items"]
    assert one["name"] == "example-1"


def test_checkpoint_with_object_ids_of_another_agent_is_refused(serve: Serve) -> None:
    """A token for some agents: what is another's is not had by naming it in a checkpoint."""
    server = serve()
    owner = server.client(server.token("owner", "--allow", "admin"))
    limited = server.client(server.token("limited", "--agent", "mine"))
    theirs = spoken(owner, "s", "hidden words", agent="secret")
    owner.post(f"{theirs}/artifacts", {"name": "a", "data": "hidden bytes"})
    point = owner.get(f"{theirs}/checkpoint")
    point.pop("digest")
    asked = {"checkpoint": point, "agent": "mine", "name": "stolen"}
    reply = limited.ask("POST", "/checkpoints", asked)
    assert (reply.status, reply.kind) == (404, "no_session")
    elsewhere = {**asked, "checkpoint": {**point, "session_id": "0" * 32}}
    reply = limited.ask("POST", "/checkpoints", elsewhere)
    assert (reply.status, reply.kind) == (403, "token_agents")
    assert limited.ask("POST", "/checkpoints", {"checkpoint": point}).kind == "token_agent"
    mine = spoken(limited, "s", "my words", agent="mine")
    limited.post(f"{mine}/artifacts", {"name": "a", "data": "my bytes"})
    own = {"checkpoint": limited.get(f"{mine}/checkpoint"), "name": "again"}
    made = limited.post("/checkpoints", own)
    assert limited.ask("GET", f"/sessions/{made['id']}/artifacts/a").body == b"my bytes"
    assert limited.ask("GET", "/runs/diff", left="s", right="secret/s").kind == "no_session"
    assert [one["agent"] for one in limited.get("/dataset")["items"]] == ["mine", "mine"]
    assert limited.ask("GET", "/dataset", session="secret/s").kind == "no_session"
