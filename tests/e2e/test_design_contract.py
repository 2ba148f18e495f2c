"""Fixed points of the public API, which programs rely on. One test for each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests import typing_sample
from tests.fixtures.commands import Ortet
from tests.fixtures.http_server import Serve
from tests.fixtures.stores import Open

import ortet as package
from ortet.hub.hub import Hub


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "a.txt").write_text("one\n")
    return directory


def test_the_sample_of_the_api_runs(tmp_path: Path) -> None:
    directory = tmp_path / "sample"
    directory.mkdir()
    typing_sample.main(tmp_path / "store", directory)


class TestOpen:
    def test_without_an_address_ortet_url_names_the_store(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ORTET_URL", str(tmp_path / "named"))
        with package.open() as hub:
            hub.session("s")
        with package.open(tmp_path / "named") as hub:
            assert [row.name for row in hub.sessions()] == ["s"]

    def test_leaving_the_block_of_a_hub_pauses_every_session_and_fork(self, store: Path) -> None:
        with package.open(store) as hub:
            s = hub.session("s")
            s.say("user", "hello")
            (fork,) = s.fork(1)
            names = {s.name, fork.name}
        with package.open(store) as hub:
            rows = hub.sessions()
            assert {row.name for row in rows} == names
            assert {row.status for row in rows} == {"paused"}

    def test_leaving_the_block_of_a_workspace_closes_it(self, hub: Hub, project: Path) -> None:
        with hub.workspace(project) as ws:
            pass
        assert "closed" in repr(ws)

    def test_closing_twice_is_harmless(self, hub: Hub, project: Path) -> None:
        ws = hub.workspace(project)
        ws.close()
        ws.close()
        hub.close()
        hub.close()

    def test_a_bucket_url_that_is_neither_s3_nor_file_is_refused(self) -> None:
        with pytest.raises(package.Invalid):
            package.open("postgresql://127.0.0.1:1/db?bucket=ftp://host/x")

    def test_errors_and_action_are_names_of_the_package(self) -> None:
        names = (
            *("NotFound", "Conflict", "Invalid", "Refused", "Unavailable", "Corrupt"),
            *("Unsupported", "Diverged", "Unsettled"),
        )
        for name in names:
            assert issubclass(getattr(package, name), package.OrtetError)
        assert issubclass(package.Diverged, package.Conflict)
        assert issubclass(package.Unsettled, package.Conflict)
        assert callable(package.action)


class TestHub:
    def test_a_session_is_leased_without_a_with_block(self, hub: Hub, opened: Open) -> None:
        hub.session("s").say("user", "hello")
        with pytest.raises(package.Refused):
            opened().session("s")

    def test_a_session_that_uses_no_machine_starts_nothing(
        self, hub: Hub, store: Path, project: Path
    ) -> None:
        with hub.session("s", workspace=project, files="private", engine="auto") as s:
            s.say("user", "hello")
            assert s.internals.files.attached is None or not any(
                path.is_socket() for path in (store / "local" / "machines").rglob("*")
            )

    def test_sessions_have_id_name_and_status(self, hub: Hub) -> None:
        s = hub.session("s")
        (row,) = hub.sessions()
        assert (row.id, row.name, row.status) == (s.id, "s", s.status)

    def test_get_reads_without_a_lease(self, hub: Hub, opened: Open) -> None:
        hub.session("s").say("user", "hello")
        view = opened().get("s")
        assert [message.content for message in view.messages()] == ["hello"]
        assert not hasattr(view, "say")

    def test_verify_returns_a_report_and_raises_corrupt(
        self, opened: Open, store: Path, project: Path
    ) -> None:
        with opened() as hub, hub.workspace(project) as ws:
            ws.commit("one")
            assert hub.verify().problems == []
        for tail in (store / "local" / "tails").glob("*.tail"):
            content = bytearray(tail.read_bytes())
            content[len(content) // 2] ^= 0xFF
            tail.write_bytes(content)
        with pytest.raises(package.Corrupt):
            opened().verify()

    def test_rare_verbs_live_on_facets(self, hub: Hub) -> None:
        assert hub.maintenance.verify().problems == []
        assert callable(hub.governance.audit)
        assert callable(hub.transfer.pull)

    def test_restore_writes_the_files_of_a_commit_into_a_new_directory(
        self, hub: Hub, project: Path, tmp_path: Path
    ) -> None:
        with hub.workspace(project) as ws:
            oid = ws.commit("one").oid
        hub.restore(oid, to=tmp_path / "out")
        assert {path.name for path in (tmp_path / "out").iterdir()} == {"a.txt"}
        assert (tmp_path / "out" / "a.txt").read_text() == "one\n"

    def test_a_workspace_writes_nothing_of_ours_into_the_directory(
        self, hub: Hub, project: Path
    ) -> None:
        os.utime(project, ns=(10**18, 10**18))
        with hub.workspace(project) as ws:
            ws.commit("one")
        assert [path.name for path in project.iterdir()] == ["a.txt"]
        assert project.stat().st_mtime_ns == 10**18


class TestWorkspace:
    def test_run_returns_exit_code_and_text(self, hub: Hub, project: Path) -> None:
        with hub.workspace(project, engine="folder") as ws:
            done = ws.run("echo out; echo err >&2; exit 3")
        assert (done.exit_code, done.stdout, done.stderr) == (3, "out\n", "err\n")

    def test_a_text_goes_to_the_shell_and_a_list_is_executed(self, hub: Hub, project: Path) -> None:
        with hub.workspace(project) as ws:
            assert ws.run("echo $((1+1))").stdout == "2\n"
            assert ws.run(["echo", "$((1+1))"]).stdout == "$((1+1))\n"

    def test_the_working_directory_is_the_workspace(self, hub: Hub, project: Path) -> None:
        with hub.workspace(project) as ws:
            assert ws.run("pwd").stdout.strip() == str(project)
            assert ws.path == project

    def test_a_commit_has_oid_state_parents_message_and_time(self, hub: Hub, project: Path) -> None:
        with hub.workspace(project) as ws:
            first = ws.commit("one")
            (project / "a.txt").write_text("two\n")
            second = ws.commit("two")
        assert second.parents == [first.oid]
        assert second.message == "two"
        assert second.time >= first.time
        assert second.state != first.state

    def test_restore_rewind_diff_merge_and_land(self, hub: Hub, project: Path) -> None:
        with hub.workspace(project) as ws:
            first = ws.commit("one")
            (project / "a.txt").write_text("two\n")
            ws.commit("two")
            assert [change.path for change in ws.diff(first.oid)] == ["a.txt"]
            ws.rewind()
            assert (project / "a.txt").read_text() == "one\n"
            attempts = ws.fork(2)
            attempts[0].run("echo b > b.txt")
            attempts[0].commit("b")
            ws.merge(attempts[0])
            assert (project / "b.txt").read_text() == "b\n"
            attempts[1].run("echo c > c.txt")
            attempts[1].land()
            assert (project / "c.txt").read_text() == "c\n"
            ws.restore(first.oid)
            assert [path.name for path in project.iterdir()] == ["a.txt"]

    def test_the_overlay_engine_is_private(
        self, with_overlay: None, hub: Hub, project: Path
    ) -> None:
        with hub.workspace(project, engine="overlay") as ws:
            ws.run("echo private > a.txt")
            assert (ws.path / "a.txt").read_text() == "private\n"
            assert (project / "a.txt").read_text() == "one\n"
            ws.land()
        assert (project / "a.txt").read_text() == "private\n"

    def test_the_criu_engine_is_private(self, with_criu: None, hub: Hub, project: Path) -> None:
        with hub.workspace(project, engine="criu") as ws:
            ws.run("echo private > a.txt")
            assert (project / "a.txt").read_text() == "one\n"


class TestSession:
    def test_content_is_what_was_said(self, hub: Hub) -> None:
        s = hub.session("s")
        s.say("user", "hello")
        s.say("assistant", [{"type": "text", "text": "hi"}])
        assert [(m.role, m.content) for m in s.messages()] == [
            ("user", "hello"),
            ("assistant", [{"type": "text", "text": "hi"}]),
        ]

    def test_recall_returns_exact_texts_and_sees_every_append(self, hub: Hub) -> None:
        s = hub.session("s")
        text = "the dev server is on port 3000, " + "and much more follows. " * 40
        s.say("user", text)
        (hit,) = s.recall("dev server port", 1)
        assert hit.text == text
        assert hit.score > 0
        assert hit.source
        s.learn("the database is on port 5432")
        assert s.recall("which port has the database?", k=1)[0].text == (
            "the database is on port 5432"
        )

    def test_facts_events_effects_status_id_and_head(self, hub: Hub) -> None:
        s = hub.session("s")
        s.learn("a fact")
        s.act(len, "four", key="k")
        assert [fact.text for fact in s.facts()] == ["a fact"]
        assert {"fact", "begun", "ended"} <= {event.kind for event in s.events()}
        assert [effect.name for effect in s.effects()] == ["len"]
        assert s.status == "active"
        assert hub.get(s.id).name == "s"
        assert s.head is None
        commit = s.commit("one")
        assert s.head is not None
        assert s.head.oid == commit.oid

    def test_a_fork_without_a_machine_has_the_mind_only(self, hub: Hub, project: Path) -> None:
        s = hub.session("s", workspace=project)
        s.say("user", "hello")
        (fork,) = s.fork(1, machine=False)
        assert [message.content for message in fork.messages()] == ["hello"]
        assert fork.internals.files.attached is None

    def test_spawn_and_shell_start_programs(self, with_criu: None, hub: Hub, project: Path) -> None:
        s = hub.session("s", workspace=project, engine="criu", files="private")
        job = s.spawn("web", ["sleep", "60"])
        assert {info.name for info in s.programs.jobs()} == {"web"}
        s.shell("main").write(b"echo $((20 + 22))\n")
        job.kill()

    def test_a_kernel_returns_values_and_forks(self, hub: Hub, project: Path) -> None:
        s = hub.session("s", workspace=project, files="private")
        kernel = s.kernel()
        assert kernel.run("x = 20\nx + 1").value == 21
        copies = kernel.fork(2)
        copies[0].run("x = 0")
        assert [copy.run("x").value for copy in copies] == [0, 20]

    def test_rare_verbs_live_on_facets(self, hub: Hub) -> None:
        s = hub.session("s")
        fact = s.learn("a fact")
        assert s.memory.fact(fact).text == "a fact"
        assert s.accounting.spent() == {}
        assert s.actions.approvals() == []
        assert s.artifact_store.artifacts() == []
        assert s.external.collaborations() == []
        assert s.conversation.decisions() == []
        assert s.programs.jobs() == []

    def test_a_session_goes_on_at_its_head_by_name(self, hub: Hub, opened: Open) -> None:
        with hub.session("s") as s:
            s.say("user", "hello")
        with opened().session("s") as again:
            assert [message.content for message in again.messages()] == ["hello"]
            assert again.id == s.id

    def test_an_archived_session_can_be_read_and_opened_again(self, hub: Hub) -> None:
        s = hub.session("s")
        s.say("user", "hello")
        s.archive()
        assert hub.get("s").status == "archived"
        hub.unarchive("s")
        assert hub.session("s").messages()[0].content == "hello"


class TestCommandLine:
    def test_only_init_writes_the_pointer_and_keeps_the_mtime(
        self, ortet: Ortet, project: Path
    ) -> None:
        os.utime(project, ns=(10**18, 10**18))
        ortet("init", cwd=project)
        assert {path.name for path in project.iterdir()} == {"a.txt", ".ortet"}
        assert project.stat().st_mtime_ns == 10**18
        made = ortet.json("commit", "-m", "one", cwd=project)
        listed = ortet("-C", str(project), "show", made["oid"], cwd=project).out
        assert ".ortet" not in listed

    def test_commit_prints_oid_and_state(self, ortet: Ortet, project: Path) -> None:
        ortet("-C", str(project), "init", cwd=project.parent)
        made = json.loads(
            ortet("-C", str(project), "commit", "-m", "one", "--json", cwd=project.parent).out
        )
        assert {"oid", "state"} <= made.keys()

    def test_restore_writes_a_commit_into_a_new_directory(
        self, ortet: Ortet, project: Path, tmp_path: Path
    ) -> None:
        ortet("init", cwd=project)
        oid = ortet.json("commit", "-m", "one", cwd=project)["oid"]
        ortet("-C", str(project), "restore", oid, "--to", str(tmp_path / "new"), cwd=tmp_path)
        assert (tmp_path / "new" / "a.txt").read_text() == "one\n"

    @pytest.mark.parametrize("command", ["log", "verify", "doctor"])
    def test_json_is_printed(self, ortet: Ortet, project: Path, command: str) -> None:
        ortet("init", cwd=project)
        ortet("commit", "-m", "one", cwd=project)
        assert json.loads(ortet("-C", str(project), command, "--json", cwd=project).out)


@pytest.mark.server
class TestServer:
    @pytest.mark.parametrize("path", ["/healthz", "/metrics", "/openapi.json"])
    def test_probes_need_no_token(self, serve: Serve, path: str) -> None:
        assert serve("--host", "127.0.0.1").client().ask("GET", path).status == 200

    @pytest.mark.parametrize("path", ["/sessions", "/commits/x"])
    def test_everything_else_needs_a_token(self, serve: Serve, path: str) -> None:
        assert serve("--host", "127.0.0.1").client().ask("GET", path).status == 401

    def test_no_auth_serves_sessions_on_loopback(self, serve: Serve) -> None:
        assert serve("--no-auth").client().get("/sessions")["items"] == []

    def test_a_remote_hub_has_the_same_verbs(self, serve: Serve) -> None:
        with package.open(serve("--no-auth").url) as hub, hub.session("s") as s:
            s.say("user", "hello")
            assert hub.get("s").messages()[0].content == "hello"


@pytest.mark.langgraph
def test_langgraph_adapters_take_a_hub(hub: Hub) -> None:
    from ortet.integrations.langgraph import OrtetSaver, OrtetStore

    assert OrtetSaver(hub)
    assert OrtetStore(hub)


@pytest.mark.openai_agents
def test_the_openai_agents_adapter_takes_an_id_and_a_hub(hub: Hub) -> None:
    from ortet.integrations.openai_agents import OrtetSession

    assert OrtetSession("chat", hub).session_id == "chat"


@pytest.mark.adk
def test_the_adk_adapter_takes_a_hub(hub: Hub) -> None:
    from ortet.integrations.adk import OrtetSessionService

    assert OrtetSessionService(hub)


@pytest.mark.claude
def test_the_claude_adapter_takes_a_hub(hub: Hub) -> None:
    from ortet.integrations.claude import OrtetSessionStore

    assert OrtetSessionStore(hub)


@pytest.mark.mcp
def test_the_mcp_server_answers_over_stdio(ortet: Ortet, project: Path) -> None:
    ortet("init", cwd=project)
    hello = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        },
    }
    done = subprocess.run(
        [sys.executable, "-m", "ortet", "mcp"],
        cwd=project,
        env=ortet.env,
        input=json.dumps(hello) + "\n",
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout.splitlines()[0])["result"]["serverInfo"]["name"]
