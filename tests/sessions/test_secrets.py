"""Secrets reach one command and no commit, in real machines of each engine."""

from __future__ import annotations

import base64
import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.waiting import WAIT, eventually

import ortet
from ortet.errors import Conflict, Invalid, NotFound, Refused
from ortet.hub.hub import Hub
from ortet.sessions.session import Session
from ortet.workspaces.workspace import Workspace

pytestmark = pytest.mark.files({"file": "one\n"})

VALUE = "correct-horse-battery-9f27"
needs_root = pytest.mark.criu
_ENGINES = ["folder", "overlay", pytest.param("criu", marks=needs_root)]

# The value is put together in memory that was asked for as zeros; where it lies can be chosen.
_HOLDER = """
import mmap, sys, time
kind = {"own": mmap.MAP_PRIVATE, "shared": mmap.MAP_SHARED}[sys.argv[1]]
memory = mmap.mmap(-1, 1 << 16, flags=kind | mmap.MAP_ANONYMOUS)
at = int(sys.argv[2])
for part in sys.argv[3:]:
    memory[at : at + len(part)] = part.encode()
    at += len(part)
sys.argv.clear()
print("ready", flush=True)
time.sleep(1000)
"""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub of this process's environment, with a secret in its vault."""
    monkeypatch.setenv("ORTET_VAULT_KEY", "ab" * 32)
    with ortet.open(tmp_path / "store") as hub:
        hub.vault.put("DEPLOY", VALUE)
        yield hub


@pytest.fixture
def live(hub: Hub, work: Path) -> Workspace:
    return hub.workspace(work, engine="criu")


def in_store(tmp_path: Path) -> list[str]:
    """What of the store holds the value: objects, and files as they are."""
    with ortet.open(tmp_path / "store") as hub:
        objects = [one for digit in "0123456789abcdef" for one in hub.objects.find_by_prefix(digit)]
        assert objects
        found = [kind.name for oid, kind in objects if VALUE.encode() in hub.objects.get(oid)]
    for work, _, names in os.walk(tmp_path / "store"):
        for path in (Path(work, name) for name in names):
            with suppress(FileNotFoundError):  # a live machine's hub keeps notes there meanwhile
                if path.is_file() and VALUE.encode() in path.read_bytes():
                    found.append(str(path))
    return found


def refused(workspace: Workspace) -> Refused:
    head = workspace.head
    with pytest.raises(Refused) as caught:
        workspace.commit("no")
    assert caught.value.kind == "secret_found"
    assert VALUE not in str(caught.value)
    assert workspace.head == head
    return caught.value


class TestOneCommand:
    @pytest.mark.parametrize("engine", _ENGINES)
    def test_secret_is_given_to_one_command_and_not_to_the_next(
        self, hub: Hub, work: Path, engine: str
    ) -> None:
        ws = hub.workspace(work, engine=engine)
        assert ws.run("echo $DEPLOY", secrets=["DEPLOY"]).stdout == f"{VALUE}\n"
        assert ws.run("echo $DEPLOY").stdout == "\n"
        assert ws.run(["printenv", "T"], secrets={"T": "DEPLOY"}).stdout == f"{VALUE}\n"
        told = ws.run(["no-such-program"], secrets=["DEPLOY"])
        assert told.exit_code == 127
        assert "command not found" in told.stderr
        assert ws.run("cat; exit 7", stdin="x", secrets=["DEPLOY"]).exit_code == 7

    @pytest.mark.parametrize("engine", _ENGINES)
    def test_commit_and_fork_are_refused_while_a_command_has_secrets(
        self, hub: Hub, work: Path, engine: str
    ) -> None:
        ws = hub.workspace(work, engine=engine)
        ws.commit("before")
        began = threading.Event()
        thread = threading.Thread(
            target=ws.run,
            args=["echo begun; until [ -e go ]; do sleep 0.05; done"],
            kwargs={"secrets": ["DEPLOY"], "output": lambda *_: began.set(), "timeout": 60},
        )
        thread.start()
        assert began.wait(WAIT)
        for verb in (ws.commit, ws.fork):
            with pytest.raises(Conflict) as caught:
                verb()
            assert caught.value.kind == "secret_in_use"
        (ws.path / "go").touch()
        thread.join()
        assert ws.commit("after").message == "after"

    def test_a_session_records_names_and_no_value(
        self, hub: Hub, work: Path, tmp_path: Path
    ) -> None:
        with hub.session("s", workspace=work) as session:
            told = session.run("echo a $DEPLOY b", secrets=["DEPLOY"], key="k")
            assert told.stdout == f"a {VALUE} b\n"
            again = session.run("echo a $DEPLOY b", secrets=["DEPLOY"], key="k")
            assert again.stdout == "a [DEPLOY] b\n"
            journal = json.dumps([event.data for event in session.events()], default=str)
            assert VALUE not in journal
            assert '"DEPLOY"' in journal
            session.commit("done")
        hub.close()
        assert in_store(tmp_path) == []

    def test_unknown_or_invalid_secret_names_are_refused(self, hub: Hub, work: Path) -> None:
        ws = hub.workspace(work)
        with pytest.raises(NotFound):
            ws.run("true", secrets=["NONE"])
        with pytest.raises(Invalid):
            ws.run("true", secrets=["deploy-token"])
        with pytest.raises(Invalid):
            ws.run("true", secrets="DEPLOY")


class TestFiles:
    @pytest.mark.parametrize("engine", _ENGINES)
    def test_commit_of_a_file_with_a_secret_is_refused_and_stores_nothing(
        self, hub: Hub, work: Path, tmp_path: Path, engine: str
    ) -> None:
        ws = hub.workspace(work, engine=engine)
        ws.commit("before")
        ws.run("mkdir -p deep; echo token=$DEPLOY > deep/config", secrets=["DEPLOY"])
        error = refused(ws)
        assert "deep/config" in str(error)
        assert "'DEPLOY'" in str(error)
        ws.run("rm -r deep; echo two > file")
        assert ws.commit("clean").oid
        hub.close()
        assert in_store(tmp_path) == []

    def test_secret_across_block_and_window_boundaries_is_found(self, hub: Hub, work: Path) -> None:
        ws = hub.workspace(work)
        for edge in (128 << 10, 1 << 20):
            for before in (1, len(VALUE) // 2, len(VALUE) - 1, len(VALUE)):
                data = b"x" * (edge - before) + VALUE.encode()
                (work / "large").write_bytes(data + b"y" * (1 << 20))
                assert "large" in str(refused(ws))

    def test_allow_secrets_permits_a_commit_with_a_secret(self, hub: Hub, work: Path) -> None:
        ws = hub.workspace(work)
        (work / "config").write_text(VALUE)
        refused(ws)
        commit = ws.commit("on purpose", allow_secrets=True)
        assert ws.commit("nothing new").oid == commit.oid
        with hub.session("s", workspace=work) as session:
            (work / "config").write_text(f"again {VALUE}")
            with pytest.raises(Refused):
                session.commit("no")
            assert session.commit("yes", allow_secrets=True).message == "yes"

    def test_ignored_files_and_short_secrets_are_not_checked(self, hub: Hub, work: Path) -> None:
        hub.vault.put("SHORT", "abc")
        (work / ".ortetignore").write_text(".env\n")
        (work / ".env").write_text(VALUE)
        (work / "file").write_text("abc")
        assert hub.workspace(work).commit("fine").oid

    def test_replaced_secret_value_is_no_longer_checked(self, hub: Hub, work: Path) -> None:
        ws = hub.workspace(work)
        (work / "config").write_text(VALUE)
        refused(ws)
        hub.vault.put("DEPLOY", "another-value-1234")
        assert ws.commit("rotated").oid

    def test_secret_in_an_environment_variable_is_found_in_files(
        self, hub: Hub, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        token = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"
        monkeypatch.setenv("GITHUB_TOKEN", token)
        with ortet.open(tmp_path / "other") as other:
            ws = other.workspace(work)
            (work / "file").write_text(f"push with {token}")
            with pytest.raises(Refused) as caught:
                ws.commit("no")
            assert "'GITHUB_TOKEN'" in str(caught.value)
            assert ws.run("echo $T", secrets={"T": "GITHUB_TOKEN"}).stdout == f"{token}\n"


class TestEnvironment:
    def test_variable_containing_a_secret_refuses_the_commit(
        self, hub: Hub, work: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with hub.session("s", workspace=work) as session:
            session.commit("before")
            hub.vault.put("WORD", "swordfish and chips")
            monkeypatch.setenv("GREETING", "hello swordfish and chips")
            with pytest.raises(Refused) as caught:
                session.commit("no")
            assert "variable GREETING" in str(caught.value)
            monkeypatch.setenv("GREETING", "hello")
            assert session.commit("yes").oid


@needs_root
class TestProcesses:
    def test_secret_in_the_environment_of_a_service_refuses_a_live_commit(
        self, live: Workspace
    ) -> None:
        job = live.spawn("server", ["sleep", "1000"], env={"TOKEN": VALUE})
        error = refused(live)
        assert "sleep 1000" in str(error)
        assert "process 1 " in str(error)  # which was asked to start it
        job.kill()
        assert live.commit("without").oid  # of no processes nothing is kept

    @pytest.mark.parametrize(
        ("kind", "at"),
        [("own", 0), ("own", 4096 - len(VALUE) // 2), ("own", 8192 - 1), ("shared", 4096 - 5)],
    )
    def test_secret_in_process_memory_refuses_a_live_commit(
        self, live: Workspace, tmp_path: Path, kind: str, at: int
    ) -> None:
        parts = [VALUE[i : i + 2] for i in range(0, len(VALUE), 2)]
        command = [sys.executable, "-c", _HOLDER, kind, str(at), *parts]
        job = live.spawn("holder", command)
        assert job.read(0, WAIT).data.startswith(b"ready")
        error = refused(live)
        assert (f"process {job.pid} " if kind == "own" else "processes share") in str(error)
        assert live.run("echo on").stdout == "on\n"  # the machine goes on
        assert in_store(tmp_path) == []
        commit = live.commit("on purpose", allow_secrets=True)
        assert commit.message == "on purpose"
        assert in_store(tmp_path) != []

    def test_secret_in_any_file_of_a_live_machine_refuses_the_commit(
        self, live: Workspace, tmp_path: Path
    ) -> None:
        live.spawn("server", ["sleep", "1000"])
        before = live.commit("before")
        for path in ("config", "/tmp/config", "/etc/config"):
            live.run(["sh", "-c", 'echo "$DEPLOY" > $0', path], secrets=["DEPLOY"])
            assert path.lstrip("/") in str(refused(live))
            live.run(["rm", path])
        assert [job.code for job in live.programs.jobs()] == [None]
        assert live.commit("after").parents == [before.oid]
        assert in_store(tmp_path) == []

    def test_a_command_leaves_no_trace_in_the_machine(self, live: Workspace) -> None:
        live.spawn("server", ["sleep", "1000"])
        for _ in range(3):
            told = live.run('test -n "$DEPLOY"', secrets=["DEPLOY"])
            assert told.exit_code == 0
        assert live.commit("clean").oid
        (fork,) = live.fork(1)
        assert fork.run("echo on").stdout == "on\n"

    def test_secrets_of_this_process_do_not_get_in(
        self, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        token = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"
        monkeypatch.setenv("GITHUB_TOKEN", token)
        with ortet.open(tmp_path / "other") as other:
            ws = other.workspace(work, engine="criu")
            ws.spawn("server", ["sleep", "1000"])
            assert ws.run("echo $GITHUB_TOKEN").stdout == "\n"
            seen = ws.kernel().run("import os; os.environ.get('GITHUB_TOKEN')")
            assert seen.value is None
            assert ws.commit("clean").oid


class TestJournal:
    """What is said, done and learned is recorded before any commit: names stand for secrets."""

    def test_recorded_events_contain_secret_names_instead_of_values(
        self, hub: Hub, work: Path, tmp_path: Path
    ) -> None:
        with hub.session("s", workspace=work) as session:
            session.say("user", f"deploy with {VALUE}!")
            session.say("user", [{"type": "text", "text": VALUE}], note={VALUE: 1})
            session.note("token", VALUE)
            session.learn(f"the token is {VALUE}")
            session.decide("go", why=VALUE)
            assert session.act(lambda token: [token, "done"], VALUE, name="deploy", key="k") == [
                VALUE,
                "done",
            ]
            session.run(f"echo {VALUE}", why=f"see {VALUE}")
            coded = base64.b64encode(f"user:{VALUE}".encode()).decode()
            session.run(["echo", f"Authorization: Basic {coded}"])
            with pytest.raises(ValueError, match=VALUE):
                session.act(fail_with, VALUE)
            hub.comment(session, f"use {VALUE}")
            session.commit("recorded")
            assert session.messages()[0].content == "deploy with [DEPLOY]!"
            assert [fact.text for fact in session.facts()] == ["the token is [DEPLOY]"]
            again = session.act(lambda token: [token, "twice"], VALUE, name="deploy", key="k")
            assert again == ["[DEPLOY]", "done"]
        hub.close()
        assert in_store(tmp_path) == []

    def test_secret_in_the_goal_is_masked(self, hub: Hub) -> None:
        with hub.session("s", goal=f"log in with {VALUE}") as session:
            assert session.goal == "log in with [DEPLOY]"

    def test_a_replay_finds_what_was_said_and_done(self, hub: Hub) -> None:
        def program(session: Session, token: str) -> str:
            session.say("user", f"log in with {token}")
            done: str = session.act(lambda given: f"in with {given}", token, name="login")
            return done

        with hub.session("s") as session:
            assert program(session, VALUE) == f"in with {VALUE}"
            session.commit("done")
        hub.vault.put("DEPLOY", "rotated-since-then")
        with hub.session("s", replay=True) as again:
            assert program(again, "rotated-since-then") == "in with [DEPLOY]"

    def test_commit_is_refused_if_an_earlier_event_contains_a_new_secret(
        self, hub: Hub, tmp_path: Path
    ) -> None:
        late = "told-before-4711"
        with hub.session("s") as session:
            session.commit("before")
            session.say("user", f"my password is {late}")
            hub.vault.put("LATE", late)
            head = session.head
            with pytest.raises(Refused) as caught:
                session.commit("no")
            assert "'LATE' is in event" in str(caught.value)
            assert "(message)" in str(caught.value)
            assert late not in str(caught.value)
            assert session.head == head
            (seq,) = (event.seq for event in session.events() if event.kind == "message")
            session.learn("goes on")
        with pytest.raises(Refused), hub.session("s") as session:
            session.commit("still not")
        hub.erase("s", seqs=[seq])
        with hub.session("s") as session:
            session.commit("without")
            assert [fact.text for fact in session.facts()] == ["goes on"]
        assert hub.verify()

    def test_allow_secrets_permits_events_with_a_new_secret(self, hub: Hub) -> None:
        with hub.session("s") as session:
            session.say("user", "told-before-4711")
            hub.vault.put("LATE", "told-before-4711")
            assert session.commit("on purpose", allow_secrets=True).message == "on purpose"
            session.learn("more")
            assert session.commit("what is sealed is not looked at again").oid

    def test_secret_put_by_another_process_is_masked_after_a_commit(
        self, hub: Hub, tmp_path: Path
    ) -> None:
        with hub.session("s") as session:
            with ortet.open(tmp_path / "store") as other:
                other.vault.put("OTHER", "put-elsewhere-4711")
            session.commit("which looks anew")
            session.say("user", "put-elsewhere-4711")
            assert session.messages()[0].content == "[OTHER]"

    def test_secret_in_a_commit_message_refuses_the_commit(self, hub: Hub, work: Path) -> None:
        with hub.session("s", workspace=work) as session:
            session.learn("a")
            with pytest.raises(Refused, match="the message of this commit"):
                session.commit(f"with {VALUE}")
            assert session.commit("without").message == "without"
            assert [fact.text for fact in session.facts()] == ["a"]
        with hub.session("mind") as session:
            session.learn("a")
            with pytest.raises(Refused, match="the message of this commit"):
                session.commit(f"with {VALUE}")
            assert session.commit("without").message == "without"
        assert hub.verify()

    def test_secret_beyond_the_first_page_of_rows_is_masked(self, hub: Hub) -> None:
        rows = [hub.vault.seal(f"N{n:04}", f"value-number-{n:04}") for n in range(1100)]
        hub.catalog.move([], verb="vault", rows=rows)
        with hub.session("s") as session:
            session.say("user", "value-number-1099")
            assert session.messages()[0].content == "[N1099]"


class TestArtifacts:
    def test_artifact_with_a_secret_is_refused_before_it_is_stored(
        self, hub: Hub, work: Path, tmp_path: Path
    ) -> None:
        with hub.session("s", workspace=work) as session:
            for data in (f"a {VALUE}", f"b {VALUE}".encode(), VALUE.encode().hex()):
                with pytest.raises(Refused, match="'DEPLOY' is in artifact report"):
                    session.artifact("report", data=data)
            (work / "large").write_bytes(b"x" * (1 << 20) + VALUE.encode())
            with pytest.raises(Refused, match="file large"):
                session.artifact("large")
            (work / "large").unlink()
            assert session.artifacts() == []
            assert session.artifact("report", data="clean").version == 1
            session.commit("clean")
        hub.close()
        assert in_store(tmp_path) == []

    def test_allow_secrets_permits_an_artifact_with_a_secret(self, hub: Hub) -> None:
        with hub.session("s") as session:
            made = session.artifact("report", data=VALUE, allow_secrets=True)
            assert session.artifact_store.artifact_data("report") == VALUE.encode()
            assert made.version == 1
            assert session.commit("content is looked at once").oid

    def test_secrets_in_model_calls_are_masked(self, hub: Hub, tmp_path: Path) -> None:
        with hub.session("s") as session:
            session.accounting.model_call(
                "p", "m", request={"auth": VALUE}, response=f"{VALUE} is yours"
            )
            (call,) = session.accounting.model_calls()
            assert session.accounting.content(call.request) == b'{"auth":"[DEPLOY]"}'
            assert session.accounting.content(call.response) == b"[DEPLOY] is yours"
            session.commit("called")
        hub.close()
        assert in_store(tmp_path) == []

    def test_secret_in_a_declared_kernel_variable_refuses_the_commit(
        self, hub: Hub, work: Path, tmp_path: Path
    ) -> None:
        with hub.session("s", workspace=work) as session:
            session.commit("before")
            kernel = session.kernel(keep=["x"])
            kernel.run("x = ['correct-horse-', 'battery-9f27']; x = ''.join(x)")
            with pytest.raises(Refused, match="artifact kernel/main"):
                session.commit("no")
            assert in_store(tmp_path) == []
            kernel.run("x = 5")
            session.commit("other")
            assert in_store(tmp_path) == []


class TestServices:
    @pytest.mark.root
    def test_secret_in_the_command_of_a_service_refuses_the_commit(
        self, hub: Hub, work: Path
    ) -> None:
        ws = hub.workspace(work, engine="overlay")
        job = ws.spawn("server", ["sh", "-c", "sleep 1000", VALUE])
        assert "service 'server'" in str(refused(ws))
        job.kill()
        job.wait()
        assert ws.commit("ended").oid

    def test_secret_in_a_link_target_or_file_name_refuses_the_commit(
        self, hub: Hub, work: Path
    ) -> None:
        ws = hub.workspace(work)
        (work / "link").symlink_to(f"https://{VALUE}@host.example/")
        assert "link link" in str(refused(ws))
        (work / "link").unlink()
        (work / VALUE).touch()
        assert "file [DEPLOY]" in str(refused(ws))


class TestExpiry:
    def test_an_expired_one_is_not_given(self, hub: Hub, work: Path, tmp_path: Path) -> None:
        hub.vault.put("SHORT_LIVED", "ends-very-soon-4711", expires=timedelta(milliseconds=1))
        ws = hub.workspace(work)
        eventually(lambda: hub.clock.now_ns() >= hub.vault.expires("SHORT_LIVED"))
        with pytest.raises(Refused) as caught:
            ws.run("true", secrets=["SHORT_LIVED"])
        assert caught.value.kind == "secret_expired"
        assert "ortet secret set SHORT_LIVED" in str(caught.value)
        (work / "config").write_text("ends-very-soon-4711")
        refused(ws)  # it is known all the same
        hub.vault.put("SHORT_LIVED", "another-value-4711", expires="90d")
        assert ws.run("echo $SHORT_LIVED", secrets=["SHORT_LIVED"]).exit_code == 0
        until = hub.vault.expires("SHORT_LIVED")
        hub.vault.rotate()
        assert hub.vault.expires("SHORT_LIVED") == until
        assert hub.vault.get("SHORT_LIVED") == "another-value-4711"

    def test_restore_reports_missing_and_expired_secrets(
        self, hub: Hub, work: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MY_API_TOKEN", "ghp_16C7e42F292c6912E7710c838347Ae178B4a")
        with hub.session("s", workspace=work) as session:
            for name in ("GONE", "OVER", "FINE"):
                hub.vault.put(name, f"value-of-{name}")
            session.run("true", secrets=["GONE", "FINE"])
            session.run("true", secrets={"TOKEN": "OVER"})
            session.external.token("host.example", "OVER")
            commit = session.commit("with all of them")
            (work / "file").write_text("two\n")
            session.act(lambda: 1, name="publish")
            session.commit("later")
            assert session.restore(commit.oid).secrets == []
            hub.vault.forget("GONE")
            hub.vault.put("OVER", "value-of-OVER", expires=timedelta(milliseconds=1))
            eventually(lambda: hub.clock.now_ns() >= hub.vault.expires("OVER"))
            monkeypatch.delenv("MY_API_TOKEN")
            session.say("user", "go on")
            for only in (None, {"files"}):
                report = session.restore(commit.oid, only=only)
                told = {one.name: (one.state, one.used) for one in report.secrets}
                assert told == {
                    "GONE": ("missing", ["run"]),
                    "OVER": ("expired", ["run", "token host.example"]),
                    "MY_API_TOKEN": ("missing", ["variable MY_API_TOKEN"]),
                }
                assert [deed.name for deed in report.deeds] == ["publish"]
                assert "secret OVER expired at" in str(report)
                assert "ortet secret set GONE" in str(report)
                assert "publish" in str(report)

    @pytest.mark.parametrize("wrong", ["soon", "", "2020-01-01", -5, True, "99999999d", [1]])
    def test_secret_with_a_bad_expiry_time_is_refused(self, hub: Hub, wrong: Any) -> None:
        with pytest.raises(Invalid) as caught:
            hub.vault.put("X", "a-value-1234", expires=wrong)
        assert caught.value.kind == "bad_time"
        assert not hub.vault.has("X")

    @pytest.mark.parametrize(
        "when",
        [
            "2100-01-31",
            "2100-01-31T12:00+02:00",
            datetime(2100, 1, 1, tzinfo=UTC),
            4_102_444_800,
            "2w",
        ],
    )
    def test_secret_accepts_dates_durations_and_timestamps_as_expiry(
        self, hub: Hub, when: Any
    ) -> None:
        hub.vault.put("X", "a-value-1234", expires=when)
        assert hub.vault.expires("X") > hub.clock.now_ns()
        assert hub.vault.get("X") == "a-value-1234"
        hub.vault.put("X", "a-value-1234")
        assert hub.vault.expires("X") == 0


def fail_with(token: str) -> None:
    raise ValueError(token)
