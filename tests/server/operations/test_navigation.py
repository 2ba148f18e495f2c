"""Commit, fork, restore, undo and merge over HTTP, with If-Match and idempotency keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.fixtures.http_server import Client, Reply, Serve, Server

import ortet
from ortet.server.auth.tokens import Tokens

pytestmark = pytest.mark.files({"a.txt": "one\n"})

MOVES = ("commits", "forks", "restore", "rewind", "undo", "redo", "merge", "adopt")


def said(client: Client, path: str, text: str) -> None:
    client.post(f"{path}/messages", {"role": "user", "content": text})


def texts(client: Client, path: str) -> list[str]:
    return [one["content"] for one in client.get(f"{path}/messages")["items"]]


def committed(client: Client, path: str, text: str) -> str:
    said(client, path, text)
    oid: str = client.post(f"{path}/commits", {"message": text})["oid"]
    return oid


def etag(client: Client, path: str) -> str:
    return client.ask("GET", path).headers["etag"]


def test_a_commit_with_nothing_new_is_the_head(client: Client) -> None:
    path = client.new("twice")
    said(client, path, "hello")
    made = client.post(f"{path}/commits", {"message": "one"})
    assert client.post(f"{path}/commits", {"message": "two"}) == made
    assert client.post(f"{path}/commits", {"durable": "local"}) == made
    assert etag(client, path) == f'"{made["oid"]}"'
    assert client.get(path)["head"] == made


def test_move_with_a_stale_if_match_is_412(client: Client) -> None:
    path = client.new("matching")
    seen = etag(client, path)
    said(client, path, "one")
    first = client.ask("POST", f"{path}/commits", {}, headers={"If-Match": seen})
    assert first.status == 201
    bodies: dict[str, dict[str, Any]] = {
        "restore": {"ref": "HEAD"},
        "merge": {"other": "HEAD"},
        "adopt": {"other": "HEAD"},
    }
    said(client, path, "two")
    for verb in MOVES:
        body = bodies.get(verb, {})
        late = client.ask("POST", f"{path}/{verb}", body, headers={"If-Match": seen})
        assert (late.status, late.kind) == (412, "head_moved"), (verb, late)
        assert late.data["details"]["head"] == first.data["oid"]
    assert client.get(path)["head"]["oid"] == first.data["oid"]
    now = {"If-Match": first.headers["etag"]}
    second = client.ask("POST", f"{path}/commits", {}, headers=now)
    assert second.status == 201
    assert second.headers["etag"] != first.headers["etag"]
    assert client.ask("POST", f"{path}/rewind", {}, headers={"If-Match": "*"}).status == 200


def test_repeated_request_with_the_same_key_is_executed_once(client: Client) -> None:
    path = client.new("once")

    def ask(verb: str, body: dict[str, Any], key: str) -> Reply:
        return client.ask("POST", f"{path}/{verb}", body, headers={"Idempotency-Key": key})

    said(client, path, "one")
    made = ask("commits", {"message": "one"}, "c1")
    said(client, path, "two")
    again = ask("commits", {"message": "one"}, "c1")
    assert (again.status, again.data, again.headers["etag"]) == (
        made.status,
        made.data,
        made.headers["etag"],
    )
    assert len(client.get(f"{path}/commits")["items"]) == 1
    forks = ask("forks", {"n": 2}, "f1")
    assert ask("forks", {"n": 2}, "f1").data == forks.data
    assert [one["name"] for one in forks.data["forks"]] == ["once/1", "once/2"]
    assert len(client.get("/sessions", search="once/")["items"]) == 2
    assert ask("forks", {"n": 3}, "f1").kind == "key_reused"


def test_forks_are_named_start_at_a_commit_and_are_independent(client: Client, work: Path) -> None:
    path = client.new("parent", workspace=str(work))
    first = committed(client, path, "one")
    (work / "a.txt").write_text("two\n")
    committed(client, path, "two")
    named = client.post(f"{path}/forks", {"names": ["left", "right"]})["forks"]
    assert [one["name"] for one in named] == ["parent/left", "parent/right"]
    left = f"/sessions/{named[0]['id']}"
    said(client, left, "there")
    assert texts(client, left) == ["one", "two", "there"]
    assert texts(client, path) == ["one", "two"]
    taken = client.ask("POST", f"{path}/forks", {"names": ["left"]})
    assert (taken.status, taken.kind) == (409, "name_taken")
    (past,) = client.post(f"{path}/forks", {"at": first})["forks"]
    old = f"/sessions/{past['id']}"
    assert texts(client, old) == ["one"]
    assert client.get(f"{old}/present")["files"]["total"] == 0
    assert client.ask("GET", f"/commits/{first}/files/a.txt").body == b"one\n"
    (mind,) = client.post(f"{path}/forks", {"machine": False, "names": ["mind"], "at": first})[
        "forks"
    ]
    assert texts(client, f"/sessions/{mind['id']}") == ["one"]
    for body in ({"n": 0}, {"n": 2, "names": ["x"]}, {"names": ["a/b"]}, {"names": ["x", "x"]}):
        assert client.ask("POST", f"{path}/forks", body).status == 422, body
    assert client.ask("POST", f"{path}/forks", {"at": "nonsense"}).status == 404


def test_restore_dry_run_reports_what_restore_then_does(client: Client, work: Path) -> None:
    path = client.new("restored", workspace=str(work))
    first = committed(client, path, "one")
    (work / "a.txt").write_text("two\n")
    (work / "b.txt").write_text("new\n")
    head = committed(client, path, "two")
    (work / "c.txt").write_text("not committed\n")
    before = client.post(f"{path}/restore", {"ref": first, "dry_run": True})
    assert not before["done"]
    assert (before["to"], before["head"]) == (first, head)
    assert before["kept"]
    assert before["forgotten"] == 1
    changes = {one["path"]: one["kind"] for one in before["files"]["changes"]}
    assert changes == {"a.txt": "modified", "b.txt": "removed", "c.txt": "removed"}
    assert texts(client, path) == ["one", "two"]
    assert (work / "c.txt").exists()
    done = client.post(f"{path}/restore", {"ref": first})
    assert done["done"]
    assert (done["to"], done["head"]) == (first, first)
    assert done["removed"] >= 2
    assert texts(client, path) == ["one"]
    assert sorted(one.name for one in work.iterdir()) == ["a.txt"]
    assert (work / "a.txt").read_text() == "one\n"
    client.post(f"{path}/restore", {"ref": "HEAD@{1}"})
    assert (work / "c.txt").read_text() == "not committed\n"
    assert texts(client, path) == ["one", "two"]
    client.post(f"{path}/restore", {"ref": first, "only": ["files"]})
    assert (work / "a.txt").read_text() == "one\n"
    assert texts(client, path) == ["one", "two"]
    mind = client.post(f"{path}/restore", {"ref": first, "only": ["mind"], "dry_run": True})
    assert mind["files"]["total"] == 0


def test_fork_at_an_event_contains_messages_up_to_it(client: Client, work: Path) -> None:
    path = client.new("at-events", workspace=str(work))
    seqs = [
        client.post(f"{path}/messages", {"role": "user", "content": word})["seq"]
        for word in ("one", "two", "three")
    ]
    (work / "a.txt").write_text("later\n")
    client.post(f"{path}/commits", {})
    (fork,) = client.post(f"{path}/forks", {"event": seqs[1], "machine": False})["forks"]
    assert texts(client, f"/sessions/{fork['id']}") == ["one", "two"]
    both = client.post(f"{path}/forks", {"event": seqs[2], "names": ["x", "y"]})["forks"]
    for one in both:
        assert texts(client, f"/sessions/{one['id']}") == ["one", "two", "three"]
    assert client.ask("POST", f"{path}/forks", {"event": 999}).kind == "no_event"
    assert client.ask("POST", f"{path}/forks", {"event": 1, "at": "HEAD"}).status == 422


def test_dry_run_of_restore_rewind_and_undo_changes_nothing(
    server: Server, client: Client, work: Path
) -> None:
    """Its journal stays as it was, and whoever has it open keeps it."""
    with ortet.open(server.store) as hub:
        with hub.session("looked-at", workspace=work) as session:
            for word in ("one", "two"):
                session.say("user", word)
                (work / "a.txt").write_text(word)
                session.commit(word)
        path = f"/sessions/{session.id}"
        before = client.get(f"{path}/events")["items"]
        asked: tuple[tuple[str, dict[str, Any]], ...] = (
            ("restore", {"ref": "HEAD~1"}),
            ("rewind", {}),
            ("undo", {}),
        )
        for verb, body in asked:
            told = client.post(f"{path}/{verb}", {**body, "dry_run": True})
            assert (told["done"], told["forgotten"], told["looked"]) == (False, 1, True), verb
            assert [one["path"] for one in told["files"]["changes"]] == ["a.txt"], verb
        assert client.ask("POST", f"{path}/redo", {"dry_run": True}).kind == "nothing_to_redo"
        assert client.get(f"{path}/events")["items"] == before
        assert client.get(path)["status"] == "paused"
        moved = client.ask("POST", f"{path}/rewind", {"dry_run": True}, headers={"If-Match": '"0"'})
        assert moved.status == 412
        with hub.session("looked-at"):
            assert client.post(f"{path}/rewind", {"dry_run": True})["forgotten"] == 1
    assert client.post(f"{path}/rewind", {})["forgotten"] == 1
    assert client.post(f"{path}/undo", {})["forgotten"] == 0
    assert client.post(f"{path}/restore", {"ref": "HEAD~1"})["forgotten"] == 1
    client.post(f"{path}/close", {})
    assert client.ask("POST", f"{path}/undo", {"dry_run": True}).kind == "session_closed"


def test_restore_lists_effects_that_stay_done(server: Server, client: Client) -> None:
    with ortet.open(server.store) as hub, hub.session("deeds") as session:
        session.say("user", "before")
        first = session.commit("before").oid
        session.act(len, "abc", why="to see", key="k", replay="once")
        session.say("user", "after")
        session.commit("after")
        path = f"/sessions/{session.id}"
    for body in ({"ref": first, "dry_run": True}, {"ref": first}):
        found = client.post(f"{path}/restore", body)
        assert [one["name"] for one in found["deeds"]] == ["len"]
        assert "1 effect happened later and stays done: len" in found["text"]


def test_rewind_undo_and_redo_move_the_head(client: Client) -> None:
    path = client.new("steps")
    oids = [committed(client, path, text) for text in ("one", "two", "three")]
    told = client.post(f"{path}/rewind", {"n": 2, "dry_run": True})
    assert (told["done"], told["to"], told["forgotten"]) == (False, oids[0], 2)
    assert client.post(f"{path}/rewind", {"n": 2})["head"] == oids[0]
    told = client.post(f"{path}/undo", {"dry_run": True})
    assert (told["done"], told["to"]) == (False, oids[2])
    assert [one["verb"] for one in told["steps"]] == ["rewind"]
    undone = client.post(f"{path}/undo", {})
    assert (undone["done"], undone["head"]) == (True, oids[2])
    assert texts(client, path) == ["one", "two", "three"]
    assert client.post(f"{path}/redo", {})["head"] == oids[0]
    assert client.ask("POST", f"{path}/redo", {}).kind == "nothing_to_redo"
    assert client.ask("POST", f"{path}/rewind", {"n": 9}).kind == "no_parent"
    for verb in ("rewind", "undo", "redo"):
        assert client.ask("POST", f"{path}/{verb}", {"n": 0}).status == 422
    empty = client.new("nothing-yet")
    assert client.ask("POST", f"{empty}/rewind", {}).kind == "no_commit"
    assert client.ask("POST", f"{empty}/rewind", {"dry_run": True}).kind == "no_commit"


def test_merge_and_adopt_bring_in_a_fork(client: Client, work: Path) -> None:
    path = client.new("ours", workspace=str(work))
    committed(client, path, "base")
    (fork,) = client.post(f"{path}/forks", {"names": ["try"]})["forks"]
    there = f"/sessions/{fork['id']}"
    client.post(f"{there}/decisions", {"text": "go left", "why": "shorter"})
    merged = client.post(f"{path}/merge", {"other": fork["id"], "message": "together"})
    assert merged["commit"]["message"] == "together"
    assert [one["text"] for one in merged["decisions"]] == ["go left"]
    assert len(merged["commit"]["parents"]) == 2
    assert client.post(f"{path}/merge", {"other": "ours/try"})["up_to_date"]
    said(client, there, "better")
    adopted = client.post(f"{path}/adopt", {"other": fork["branch"]})
    assert adopted["done"]
    assert texts(client, path) == ["base", "better"]
    client.post(f"{there}/decisions", {"text": "the last one"})
    client.post(f"{there}/close", {})
    merged = client.post(f"{path}/merge", {"other": fork["id"]})
    assert [one["text"] for one in merged["decisions"]] == ["the last one"]
    assert client.ask("POST", f"{path}/merge", {"other": "ours"}).kind == "bad_ref"
    assert client.ask("POST", f"{path}/merge", {"other": "nonsense"}).status == 404
    assert client.ask("POST", f"{path}/merge", {"other": "x", "favor": "mine"}).status == 422
    assert client.ask("POST", f"{path}/merge", {}).status == 422


def test_merge_with_a_file_conflict_changes_nothing(
    server: Server, work: Path, client: Client
) -> None:
    with ortet.open(server.store) as hub:
        session = hub.session("sides", workspace=work, engine="folder")
        session.commit("base")
        (kid,) = session.fork(1)
        (kid.path / "a.txt").write_text("theirs\n")
        kid.commit("theirs")
        (work / "a.txt").write_text("ours\n")
        session.commit("ours")
        path, other = f"/sessions/{session.id}", kid.internals.row.branch
    head = etag(client, path)
    refused = client.ask("POST", f"{path}/merge", {"other": other})
    assert (refused.status, refused.kind) == (409, "merge_conflict")
    assert etag(client, path) == head
    settled = client.post(f"{path}/merge", {"other": other, "favor": "theirs"})
    assert [one["path"] for one in settled["conflicts"]] == ["a.txt"]
    assert (work / "a.txt").read_text() == "theirs\n"


def test_land_of_a_fork_writes_its_files_to_the_directory(
    server: Server, work: Path, client: Client
) -> None:
    with ortet.open(server.store) as hub:
        session = hub.session("home", workspace=work, engine="folder")
        session.commit("base")
        (kid,) = session.fork(1)
        (kid.path / "new.txt").write_text("from the fork\n")
        kid.commit("new")
    landed = client.post(f"/sessions/{kid.id}/land", {})
    assert landed["written"] == 1
    assert (work / "new.txt").read_text() == "from the fork\n"
    assert client.ask("POST", f"/sessions/{session.id}/land", {}).status == 422


def test_whatif_makes_a_fork_with_a_changed_message(client: Client) -> None:
    path = client.new("if")
    event = client.post(f"{path}/messages", {"role": "user", "content": "left"})
    said(client, path, "after")
    other = client.post(f"{path}/whatif", {"at": event["seq"], "message": "right"})
    assert texts(client, f"/sessions/{other['id']}") == ["right"]
    assert texts(client, path) == ["left", "after"]
    assert other["parent"] == path.removeprefix("/sessions/")
    for body, kind in (
        ({"at": event["seq"]}, "bad_change"),
        ({"at": event["seq"], "message": "x", "error": "y"}, "bad_change"),
        ({"at": event["seq"], "result": 1}, "bad_change"),
        ({"at": 99, "message": "x"}, "no_event"),
        ({"at": 0, "message": "x"}, "bad_request"),
    ):
        assert client.ask("POST", f"{path}/whatif", body).kind == kind, body


def test_restore_and_commit_with_bad_values_are_refused(client: Client) -> None:
    path = client.new("bad")
    committed(client, path, "one")
    for body, status in (
        ({"ref": "nonsense"}, 404),
        ({"ref": "0" * 64}, 404),
        ({"ref": ""}, 422),
        ({}, 422),
        ({"ref": "HEAD", "only": ["nothing"]}, 422),
        ({"ref": "HEAD", "only": []}, 422),
        ({"ref": "HEAD", "dry": True}, 422),
        ({"ref": "HEAD", "dry_run": "yes"}, 422),
    ):
        reply = client.ask("POST", f"{path}/restore", body)
        assert reply.status == status, (body, reply)
    assert client.ask("POST", f"{path}/commits", {"message": 7}).status == 422
    assert client.ask("POST", f"{path}/commits", {"durable": "perhaps"}).status == 422
    assert client.ask("POST", "/sessions/nobody/commits", {}).kind == "no_session"


class Apart(NamedTuple):
    mine: Client
    path: str
    theirs: str  # the id of another agent's session


@pytest.fixture
def apart(serve: Any) -> Apart:
    server: Server = serve()
    with ortet.open(server.store) as hub:
        with hub.session("theirs", agent="theirs") as session:
            session.say("user", "a secret")
            session.commit("a secret")
        tokens = Tokens(hub.catalog, hub.clock, hub.random)
        token = tokens.create("mine", "write", agents=["mine"])[0]
    client = server.client(token)
    return Apart(client, client.new("own", agent="mine"), session.id)


def test_token_for_one_agent_cannot_merge_or_adopt_another(apart: Apart) -> None:
    client, path = apart.mine, apart.path
    committed(client, path, "mine")
    for other in (apart.theirs, "theirs", "theirs/theirs", "branch:theirs"):
        for verb in ("merge", "adopt"):
            reply = client.ask("POST", f"{path}/{verb}", {"other": other})
            assert (reply.status, reply.kind) == (404, "no_ref"), (verb, other, reply)
    assert texts(client, path) == ["mine"]
    whatif = client.ask("POST", f"/sessions/{apart.theirs}/whatif", {"at": 2, "message": "x"})
    assert whatif.kind == "no_session"
    assert client.ask("POST", f"{path}/land", {}).kind == "token_host"
    (fork,) = client.post(f"{path}/forks", {})["forks"]
    assert fork["agent"] == "mine"
    assert client.post(f"{path}/merge", {"other": fork["id"]})["up_to_date"]


def test_moves_that_write_host_directories_need_the_run_right(serve: Serve, tmp_path: Path) -> None:
    """One rule for all that moves a session whose files are a directory of the server's host."""
    server, place = serve(), tmp_path / "inplace"
    place.mkdir()
    (place / "file").write_text("one")
    with ortet.open(server.store) as hub:
        with hub.session("direct", workspace=place) as session:
            first = session.commit("one").oid
            (place / "file").write_text("two")
            second = session.commit("two").oid
        tokens = Tokens(hub.catalog, hub.clock, hub.random)
        writer = server.client(tokens.create("writer", "write")[0])
        admin = server.client(tokens.create("admin", "admin")[0])
    path = f"/sessions/{session.id}"
    for verb, body in (
        ("restore", {"ref": first}),
        ("restore", {"ref": first, "only": ["files"]}),
        ("rewind", {}),
        ("undo", {}),
        ("redo", {}),
        ("merge", {"other": first}),
        ("adopt", {"other": first}),
        ("land", {}),
    ):
        reply = writer.ask("POST", f"{path}/{verb}", body)
        assert (reply.status, reply.kind) == (403, "token_host"), (verb, body, reply)
    assert writer.ask("PUT", f"{path}/files/file", b"three").kind == "token_host"
    for option in (
        {"handover": "out"},
        {"profile": "worker"},
        {"environment": "commit"},
        {"network": "host"},
    ):
        reply = writer.ask("POST", "/sessions", {"name": "direct", **option})
        assert (reply.status, reply.kind) == (403, "token_host"), option
        own = writer.ask("POST", "/sessions", {"name": "own", **option})
        assert own.status == (403 if "network" in option else 200), option
    assert not writer.post(f"{path}/restore", {"ref": first, "dry_run": True})["done"]
    writer.post(f"{path}/messages", {"role": "user", "content": "hello"})
    assert writer.post(f"{path}/commits", {"message": "said"})["parents"] == [second]
    assert [one.name for one in place.iterdir()] == ["file"]
    assert (place / "file").read_text() == "two"
    assert writer.post(f"{path}/restore", {"ref": first, "only": ["mind"]})["done"]
    assert (place / "file").read_text() == "two"
    assert admin.post(f"{path}/restore", {"ref": first})["done"]
    assert (place / "file").read_text() == "one"
    assert serve("--allow-run", home=server.home).client(writer.token).post(f"{path}/undo")["done"]


@pytest.mark.criu
def test_moves_that_resume_programs_need_the_run_right(serve: Serve, tmp_path: Path) -> None:
    server, place = serve(), tmp_path / "live"
    place.mkdir()
    with ortet.open(server.store) as hub:
        with hub.session("live", workspace=place, engine="criu") as session:
            session.spawn("service", ["sleep", "1000"])
            first = session.commit("running").oid
            session.say("user", "hello")
            session.commit("said")
        tokens = Tokens(hub.catalog, hub.clock, hub.random)
        writer = server.client(tokens.create("writer", "write")[0])
    path = f"/sessions/{session.id}"
    for verb, body in (
        ("restore", {"ref": first}),
        ("restore", {"ref": first, "only": ["mind"], "restart": True}),
        ("forks", {}),
        ("forks", {"at": first}),
        ("rewind", {}),
        ("undo", {}),
        ("redo", {}),
        ("adopt", {"other": first}),
        ("whatif", {"at": 1, "message": "x"}),
    ):
        reply = writer.ask("POST", f"{path}/{verb}", body)
        assert (reply.status, reply.kind) == (403, "token_host"), (verb, body, reply)
    assert texts(writer, path) == ["hello"]
    assert writer.post(f"{path}/restore", {"ref": first, "only": ["mind"]})["done"]
    assert texts(writer, path) == []
    (fork,) = writer.post(f"{path}/forks", {"machine": False})["forks"]
    assert fork["name"] == "live/1"
