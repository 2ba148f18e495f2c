"""Commands, programs, ports and files of real machines over HTTP."""

from __future__ import annotations

import json
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.fixtures.waiting import WAIT, eventually

if TYPE_CHECKING:
    from tests.fixtures.http_server import Client, Serve

live = pytest.mark.criu
engines = pytest.mark.parametrize("engine", ["overlay", pytest.param("criu", marks=live)])


def until(client: Client, path: str, text: str, **query: Any) -> str:
    """Wait until a program has written this text. Returns all that it has written."""
    found, cursor = "", 0

    def is_written() -> bool:
        nonlocal found, cursor
        part = client.get(f"{path}/output", cursor=cursor, wait=5, **query)
        found += part["data"]
        cursor = part["cursor"]
        assert text in found or not part["eof"], found
        return text in found

    eventually(is_written, say=lambda: found)
    return found


class TestRun:
    @pytest.mark.parametrize("engine", ["folder", "overlay", pytest.param("criu", marks=live)])
    def test_run_executes_commands_in_each_engine(
        self, client: Client, tmp_path: Path, engine: str
    ) -> None:
        (tmp_path / "seed").write_text("seed\n")
        files = "inplace" if engine == "folder" else "private"
        path = client.new(f"run-{engine}", workspace=str(tmp_path), engine=engine, files=files)
        done = client.post(
            f"{path}/run",
            {"command": "cat seed; echo $WORD >&2; exit 3", "why": "to see", "env": {"WORD": "hi"}},
        )
        assert (done["exit_code"], done["stdout"], done["stderr"]) == (3, "seed\n", "hi\n")
        done = client.post(f"{path}/run", {"command": ["sh", "-c", "echo $0", "a b"]})
        assert done["stdout"] == "a b\n"
        assert client.post(f"{path}/run", {"command": "cat", "stdin": "fed"})["stdout"] == "fed"
        done = client.post(f"{path}/run", {"command": "sleep 60", "timeout": 0.2})
        assert (done["exit_code"], done["timed_out"]) == (124, True)
        events = client.get(f"{path}/events")["items"]
        assert [one["data"]["why"] for one in events if one["data"].get("why")] == ["to see"]
        about = client.get(f"{path}/machine")
        assert (about["engine"], about["live"], about["files"]) == (engine, True, files)

    def test_run_with_an_idempotency_key_is_executed_once(self, client: Client) -> None:
        path = client.new("keyed", engine="overlay")
        ask = {"command": "echo x >> made; wc -l < made", "key": "one"}
        assert [client.post(f"{path}/run", ask)["stdout"] for _ in range(2)] == ["1\n", "1\n"]

    def test_secret_of_a_command_is_redacted_in_its_output(self, serve: Serve) -> None:
        server = serve("--no-auth", API_KEY="sk-very-secret-0123456789abcdef")
        client = server.client()
        path = client.new("secretive", engine="overlay")
        done = client.post(
            f"{path}/run", {"command": "echo $API_KEY; echo ${#API_KEY}", "secrets": ["API_KEY"]}
        )
        assert done["stdout"].split() == ["[API_KEY]", "31"]
        assert "very-secret" not in json.dumps(client.get(f"{path}/events"))
        missing = client.ask("POST", f"{path}/run", {"command": "true", "secrets": ["NO_SUCH"]})
        assert (missing.status, missing.kind) == (404, "no_secret")

    @pytest.mark.parametrize(
        "body",
        [
            {},
            {"command": ""},
            {"command": []},
            {"command": "x", "timeout": 0},
            {"command": "x", "cwd": "../.."},
            {"command": "x", "other": 1},
            {"command": "x\0y"},
            {"command": "x", "env": {"A=B": "c"}},
        ],
    )
    def test_run_with_a_bad_command_is_422(self, client: Client, body: Any) -> None:
        path = client.new("wrong", engine="overlay")
        assert client.ask("POST", f"{path}/run", body).status == 422

    def test_running_command_blocks_only_writes_to_its_session(
        self, serve: Serve, tmp_path: Path
    ) -> None:
        server = serve("--no-auth", "--limit", "patience=1")
        client, work = server.client(), tmp_path / "work"
        work.mkdir()
        path = client.new("long", workspace=str(work), engine="folder")
        command = "touch begun; while [ ! -e go ]; do sleep 0.05; done; echo went"
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(client.post, f"{path}/run", {"command": command})
            try:
                eventually((work / "begun").exists)
                assert client.get(f"{path}/events")["items"]
                assert client.get(f"{path}/machine")["live"]
                assert client.get(f"{path}/files")["names"] == ["begun"]
                busy = client.ask("POST", f"{path}/thoughts", {"text": "now?"})
                assert (busy.status, busy.kind) == (503, "session_busy")
                assert client.post(f"{path}/comments", {"text": "leave a word"})["waiting"]
                other = client.new("other", engine="overlay")
                assert client.post(f"{other}/run", {"command": "echo x"})["stdout"] == "x\n"
            finally:
                (work / "go").touch()
            assert running.result(WAIT)["stdout"] == "went\n"


class TestPrograms:
    @engines
    def test_a_service_is_started_listed_read_and_stopped(
        self, client: Client, engine: str
    ) -> None:
        path = client.new(f"service-{engine}", engine=engine)
        begun = client.post(
            f"{path}/jobs",
            {
                "name": "echo",
                "command": "while read line; do echo got-$line; done; echo over >&2",
                "stdin": True,
                "why": "to talk to",
            },
        )
        job = f"{path}/jobs/echo"
        assert (begun["name"], begun["kind"], begun["code"]) == ("echo", "service", None)
        assert client.post(f"{job}/input", {"data": "a\nä\n"}) == {"size": 5}
        assert "got-a\ngot-ä\n" in until(client, job, "got-ä\n")
        assert client.get(job)["id"] == begun["id"]
        assert [one["name"] for one in client.get(f"{path}/jobs")["items"]] == ["echo"]
        pids = [one["pid"] for one in client.get(f"{path}/processes")["items"]]
        assert begun["pid"] in pids
        about = client.get(f"{path}/machine")
        assert about["live"]
        assert about["programs"] == 1
        assert about["memory"] > 0
        assert client.get(f"{job}/wait", timeout=0) == {"code": None}
        client.post(f"{job}/input", {"eof": True})
        assert client.get(f"{job}/wait", timeout=60) == {"code": 0}
        assert client.get(f"{job}/logs")["text"] == "got-a\ngot-ä\nover\n"
        assert client.get(f"{job}/logs", last=5)["text"] == "over\n"
        errors = client.get(f"{job}/output", stream="stderr", encoding="base64")
        assert (errors["data"], errors["eof"], errors["code"]) == ("b3Zlcgo=", True, 0)
        assert client.ask("POST", f"{job}/signal", {"signal": "TERM"}).data == {"done": False}
        client.delete(job)
        assert client.ask("GET", job).kind == "no_job"

    @engines
    def test_job_receives_signals_and_is_killed_after_the_grace_period(
        self, client: Client, engine: str
    ) -> None:
        path = client.new(f"signals-{engine}", engine=engine)
        deaf = "trap 'echo heard' USR1; trap '' TERM; echo ready; while :; do sleep 0.1; done"
        client.post(f"{path}/jobs", {"name": "deaf", "command": deaf})
        job = f"{path}/jobs/deaf"
        until(client, job, "ready")
        for name in ("usr1", "SIGUSR1", 10):
            assert client.post(f"{job}/signal", {"signal": name, "group": False}) == {"done": True}
        until(client, job, "heard")
        assert client.ask("POST", f"{job}/signal", {"signal": "NOPE"}).kind == "bad_signal"
        taken = client.ask("POST", f"{path}/jobs", {"name": "deaf", "command": "true"})
        assert (taken.status, taken.kind) == (409, "name_taken")
        assert client.post(f"{job}/stop", {"grace": 0.2}) == {"code": 137}

    @live
    def test_a_shell_keeps_its_state_between_requests(self, client: Client) -> None:
        path = client.new("shell", engine="criu")
        begun = client.post(f"{path}/shells", {"rows": 30, "cols": 100})
        assert begun["tty"] == [30, 100]
        job = f"{path}/jobs/main"
        client.post(f"{job}/resize", {"rows": 33, "cols": 111})
        client.post(f"{job}/input", {"data": "stty size; echo $((40+2))-here\n"})
        shown = until(client, job, "42-here")
        assert "33 111" in shown
        assert client.post(f"{path}/shells", {})["id"] == begun["id"]

    def test_session_without_a_running_machine_has_no_programs(self, client: Client) -> None:
        path = client.new("bare")
        for part in ("jobs", "processes", "jobs/x", "jobs/x/logs", "jobs/x/output"):
            reply = client.ask("GET", f"{path}/{part}")
            assert (reply.status, reply.kind) == (404, "not_live")
        about = client.get(f"{path}/machine")
        assert (about["live"], about["files"], about["ports"]) == (False, "", [])

    def test_session_in_place_cannot_start_programs(self, client: Client, tmp_path: Path) -> None:
        path = client.new("inplace", workspace=str(tmp_path), engine="folder")
        reply = client.ask("POST", f"{path}/jobs", {"name": "x", "command": "true"})
        assert (reply.status, reply.kind) == (501, "no_processes")

    def test_machines_of_the_host_are_listed(self, client: Client) -> None:
        path = client.new("listed", engine="overlay")
        started = client.post(f"{path}/machine/start")
        assert (started["live"], started["engine"]) == (True, "overlay")
        found = {one["session"]: one for one in client.get("/machines", limit=1000)["items"]}
        mine = found[path.rpartition("/")[2]]
        assert (mine["held"], mine["name"], mine["engine"]) == ("server", "listed", "overlay")


@live
class TestPorts:
    def test_exposed_port_forwards_connections_into_the_machine(self, client: Client) -> None:
        path = client.new("ports", engine="criu")
        code = (
            "import socket\n"
            "s = socket.create_server(('127.0.0.1', 7000))\n"
            "print('ready', flush=True)\n"
            "while True:\n"
            "    c, _ = s.accept()\n"
            "    c.sendall(b'hello ' + c.recv(100))\n"
            "    c.close()\n"
        )
        client.post(f"{path}/jobs", {"name": "web", "command": ["python3", "-c", code]})
        until(client, f"{path}/jobs/web", "ready")
        at = client.post(f"{path}/ports", {"port": 7000})["at"]
        assert client.get(f"{path}/machine")["ports"] == [{"port": 7000, "at": at}]
        with socket.create_connection(("127.0.0.1", at), timeout=WAIT) as to:
            to.sendall(b"world")
            assert to.makefile("rb").read() == b"hello world"
        assert client.delete(f"{path}/ports/7000") == {"port": 7000, "closed": True}
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", at), timeout=WAIT).close()
        assert client.delete(f"{path}/ports/7000") == {"port": 7000, "closed": False}
        assert client.get(f"{path}/machine")["ports"] == []


class TestFiles:
    @pytest.mark.parametrize("engine", ["folder", "overlay", pytest.param("criu", marks=live)])
    def test_files_are_uploaded_downloaded_listed_and_committed(
        self, client: Client, tmp_path: Path, engine: str
    ) -> None:
        files = "inplace" if engine == "folder" else "private"
        path = client.new(f"files-{engine}", workspace=str(tmp_path), engine=engine, files=files)
        data = os.urandom(3 << 20)
        made = client.ask("PUT", f"{path}/files/a/b/data.bin", data)
        assert made.status == 201, made
        assert made.data["size"] == len(data)
        done = client.post(f"{path}/run", {"command": "sha256sum a/b/data.bin; echo new > out.txt"})
        assert done["exit_code"] == 0, done
        got = client.ask("GET", f"{path}/files/a/b/data.bin")
        assert got.status == 200
        assert got.body == data
        part = client.ask("GET", f"{path}/files/a/b/data.bin", headers={"Range": "bytes=10-19"})
        assert (part.status, part.body) == (206, data[10:20])
        out = client.ask("GET", f"{path}/files/out.txt")
        assert (out.body, out.headers["ortet-kind"]) == (b"new\n", "file")
        again = client.ask("PUT", f"{path}/files/out.txt", b"#!/bin/sh\necho run\n", mode="755")
        assert (again.status, again.data["replaced"], again.data["mode"]) == (200, True, "755")
        assert client.post(f"{path}/run", {"command": "./out.txt"})["stdout"] == "run\n"
        assert client.get(f"{path}/files")["names"] == ["a", "out.txt"]
        assert client.get(f"{path}/files/a")["kind"] == "directory"
        commit = client.post(f"{path}/commits", {"message": "with files"})
        kept = client.ask("GET", f"/commits/{commit['oid']}/files/a/b/data.bin")
        assert kept.body == data
        assert not (tmp_path / "a").exists() or engine == "folder"

    def test_paths_cannot_leave_the_workspace(self, client: Client, tmp_path: Path) -> None:
        inside, outside = tmp_path / "inside", tmp_path / "outside"
        inside.mkdir()
        outside.mkdir()
        (outside / "secret").write_text("nobody may read it")
        (inside / "away").symlink_to(outside)
        (inside / "one").symlink_to(outside / "secret")
        os.mkfifo(inside / "pipe")
        path = client.new("traversal", workspace=str(inside), engine="folder")
        base = f"{path}/files"
        for name in (
            "../outside/secret",
            "..%2Foutside%2Fsecret",
            "%2e%2e/outside/secret",
            "away/../../outside/secret",
            "away/secret",
            "/etc/passwd",
            "%2Fetc%2Fpasswd",
            "./x",
            "a//b",
            "x%00y",
            "one/x",
        ):
            for method, body in (("GET", None), ("PUT", b"bad")):
                reply = client.ask(method, f"{base}/{name}", body)
                assert reply.status in (404, 422), (method, name, reply)
                assert b"nobody may read it" not in reply.body
        link = client.get(f"{base}/one")
        assert (link["kind"], link["target"]) == ("link", str(outside / "secret"))
        assert client.get(f"{base}/pipe")["kind"] == "other"  # and nobody waits for its writer
        assert client.ask("PUT", f"{base}/one", b"mine").status == 200
        assert (outside / "secret").read_text() == "nobody may read it"
        assert sorted(one.name for one in outside.iterdir()) == ["secret"]
        assert (inside / "one").read_text() == "mine"
        assert client.ask("PUT", f"{base}/away", b"x").status == 200
        assert not (inside / "away").is_symlink()
        assert client.ask("PUT", base + "/d/e", b"x", parents="false").kind == "no_file"
        assert client.ask("PUT", base + "/one", b"x", mode="9").kind == "bad_mode"
        assert client.ask("GET", base + "/none").kind == "no_file"
        (inside / "dir").mkdir()
        assert client.ask("PUT", base + "/dir", b"x").kind == "is_directory"
        assert not [one for one in inside.iterdir() if one.name.startswith(".ortet-")]

    def test_upload_with_an_idempotency_key_is_stored_once(
        self, client: Client, tmp_path: Path
    ) -> None:
        path = client.new("once", workspace=str(tmp_path), engine="folder")
        key = {"Idempotency-Key": "put-1"}
        for _ in range(2):
            reply = client.ask("PUT", f"{path}/files/x", b"first", headers=key)
            assert reply.status == 201
            (tmp_path / "x").write_text("changed since")
        assert (tmp_path / "x").read_text() == "changed since"
        other = client.ask("PUT", f"{path}/files/x", b"other", headers=key)
        assert other.kind == "key_reused"


def test_token_without_run_right_cannot_use_the_machine(serve: Serve) -> None:
    server = serve()
    owner = server.token("owner", "--allow", "admin")
    writer = server.token("writer", "--allow", "write")
    path = server.client(owner).new("guarded", engine="overlay")
    client = server.client(writer)
    command = {"command": "true"}
    for method, where, body in (
        ("POST", "run", command),
        ("POST", "jobs", {"name": "x", **command}),
        ("POST", "shells", {}),
        ("POST", "machine/start", {}),
        ("POST", "ports", {"port": 80}),
        ("DELETE", "ports/80", None),
        ("POST", "jobs/x/input", {}),
        ("POST", "jobs/x/stop", {}),
        ("POST", "jobs/x/signal", {}),
        ("DELETE", "jobs/x", None),
        ("POST", "kernels/main/run", {"code": "1"}),
        ("POST", "kernels/main/interrupt", {}),
        ("POST", "kernels/main/fork", {}),
        ("POST", "swarms", {"task": "true"}),
        ("POST", "swarms/x/resume", {}),
        ("POST", "swarms/x/stop", {}),
        ("POST", "swarms/x/adopt", {}),
        ("GET", "files/x", None),
        ("GET", "files", None),
        ("PUT", "files/x", b"data"),
    ):
        reply = client.ask(method, f"{path}/{where}", body)
        assert (reply.status, reply.kind) == (403, "token_host"), (method, where, reply)
    assert client.ask("GET", "/machines").kind == "token_scope"
    assert client.get(f"{path}/machine")["live"] is False
    allowed = serve("--allow-run", home=server.home).client(writer)
    assert allowed.post(f"{path}/run", {"command": "echo yes"})["stdout"] == "yes\n"
