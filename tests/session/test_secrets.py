"""Secrets reach one command and no commit, in real machines of each engine."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import ortet
from ortet.errors import Conflict, Invalid, NotFound, Refused
from ortet.machine.mounts import privileged
from ortet.session.hub import Hub
from ortet.session.workspace import Workspace

VALUE = "correct-horse-battery-9f27"
needs_root = pytest.mark.skipif(not privileged(), reason="live machines need root")
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
    monkeypatch.setenv("ORTET_VAULT_KEY", "ab" * 32)
    with ortet.open(tmp_path / "store") as hub:
        hub.vault.put("DEPLOY", VALUE)
        yield hub


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = tmp_path / "work"
    place.mkdir()
    (place / "file").write_text("one\n")
    return place


@pytest.fixture
def live(hub: Hub, place: Path) -> Workspace:
    return hub.workspace(place, engine="criu")


def in_store(tmp_path: Path) -> list[str]:
    """What of the store holds the value: objects, and files as they are."""
    with ortet.open(tmp_path / "store") as hub:
        objects = [one for digit in "0123456789abcdef" for one in hub.objects.find(digit)]
        assert objects
        found = [kind.name for oid, kind in objects if VALUE.encode() in hub.objects.get(oid)]
    for path in (tmp_path / "store").rglob("*"):
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
    def test_it_has_them_and_the_next_has_not(self, hub: Hub, place: Path, engine: str) -> None:
        work = hub.workspace(place, engine=engine)
        assert work.run("echo $DEPLOY", secrets=["DEPLOY"]).stdout == f"{VALUE}\n"
        assert work.run("echo $DEPLOY").stdout == "\n"
        assert work.run(["printenv", "T"], secrets={"T": "DEPLOY"}).stdout == f"{VALUE}\n"
        told = work.run(["no-such-program"], secrets=["DEPLOY"])
        assert told.exit_code == 127
        assert "command not found" in told.stderr
        assert work.run("cat; exit 7", stdin="x", secrets=["DEPLOY"]).exit_code == 7

    @pytest.mark.parametrize("engine", _ENGINES)
    def test_no_commit_is_made_while_it_lives(self, hub: Hub, place: Path, engine: str) -> None:
        work = hub.workspace(place, engine=engine)
        work.commit("before")
        began = threading.Event()
        thread = threading.Thread(
            target=work.run,
            args=["echo begun; until [ -e go ]; do sleep 0.05; done"],
            kwargs={"secrets": ["DEPLOY"], "output": lambda *_: began.set(), "timeout": 60},
        )
        thread.start()
        assert began.wait(60)
        for verb in (work.commit, work.fork):
            with pytest.raises(Conflict) as caught:
                verb()
            assert caught.value.kind == "secret_in_use"
        (work.path / "go").touch()
        thread.join()
        assert work.commit("after").message == "after"

    def test_a_session_records_names_and_no_value(
        self, hub: Hub, place: Path, tmp_path: Path
    ) -> None:
        with hub.session("s", workspace=place) as session:
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

    def test_wrong_names(self, hub: Hub, place: Path) -> None:
        work = hub.workspace(place)
        with pytest.raises(NotFound):
            work.run("true", secrets=["NONE"])
        with pytest.raises(Invalid):
            work.run("true", secrets=["deploy-token"])
        with pytest.raises(Invalid):
            work.run("true", secrets="DEPLOY")


class TestFiles:
    @pytest.mark.parametrize("engine", _ENGINES)
    def test_refused_by_name_and_nothing_is_stored(
        self, hub: Hub, place: Path, tmp_path: Path, engine: str
    ) -> None:
        work = hub.workspace(place, engine=engine)
        work.commit("before")
        work.run("mkdir -p deep; echo token=$DEPLOY > deep/config", secrets=["DEPLOY"])
        error = refused(work)
        assert "deep/config" in str(error)
        assert "'DEPLOY'" in str(error)
        work.run("rm -r deep; echo two > file")
        assert work.commit("clean").oid
        hub.close()
        assert in_store(tmp_path) == []

    def test_across_the_edges_of_blocks_and_windows(self, hub: Hub, place: Path) -> None:
        work = hub.workspace(place)
        for edge in (128 << 10, 1 << 20):
            for before in (1, len(VALUE) // 2, len(VALUE) - 1, len(VALUE)):
                data = b"x" * (edge - before) + VALUE.encode()
                (place / "large").write_bytes(data + b"y" * (1 << 20))
                assert "large" in str(refused(work))

    def test_a_flag_allows_it(self, hub: Hub, place: Path) -> None:
        work = hub.workspace(place)
        (place / "config").write_text(VALUE)
        refused(work)
        commit = work.commit("on purpose", allow_secrets=True)
        assert work.commit("nothing new").oid == commit.oid
        with hub.session("s", workspace=place) as session:
            (place / "config").write_text(f"again {VALUE}")
            with pytest.raises(Refused):
                session.commit("no")
            assert session.commit("yes", allow_secrets=True).message == "yes"

    def test_ignored_files_and_short_values_are_not_looked_at(self, hub: Hub, place: Path) -> None:
        hub.vault.put("SHORT", "abc")
        (place / ".ortetignore").write_text(".env\n")
        (place / ".env").write_text(VALUE)
        (place / "file").write_text("abc")
        assert hub.workspace(place).commit("fine").oid

    def test_an_entry_that_is_gone_is_known_no_more(self, hub: Hub, place: Path) -> None:
        work = hub.workspace(place)
        (place / "config").write_text(VALUE)
        refused(work)
        hub.vault.put("DEPLOY", "another-value-1234")
        assert work.commit("rotated").oid

    def test_a_secret_of_the_environment(
        self, hub: Hub, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        token = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"
        monkeypatch.setenv("GITHUB_TOKEN", token)
        with ortet.open(tmp_path / "other") as other:
            work = other.workspace(place)
            (place / "file").write_text(f"push with {token}")
            with pytest.raises(Refused) as caught:
                work.commit("no")
            assert "'GITHUB_TOKEN'" in str(caught.value)
            assert work.run("echo $T", secrets={"T": "GITHUB_TOKEN"}).stdout == f"{token}\n"


class TestEnvironment:
    def test_a_variable_that_would_be_recorded(
        self, hub: Hub, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with hub.session("s", workspace=place) as session:
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
    def test_in_the_environment_of_a_service(self, live: Workspace) -> None:
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
    def test_in_memory_only(self, live: Workspace, tmp_path: Path, kind: str, at: int) -> None:
        parts = [VALUE[i : i + 2] for i in range(0, len(VALUE), 2)]
        command = [sys.executable, "-c", _HOLDER, kind, str(at), *parts]
        job = live.spawn("holder", command)
        assert job.read(0, 60).data.startswith(b"ready")
        error = refused(live)
        assert (f"process {job.pid} " if kind == "own" else "processes share") in str(error)
        assert live.run("echo on").stdout == "on\n"  # the machine goes on
        assert in_store(tmp_path) == []
        commit = live.commit("on purpose", allow_secrets=True)
        assert commit.message == "on purpose"
        assert in_store(tmp_path) != []

    def test_in_a_file_beside_what_runs(self, live: Workspace, tmp_path: Path) -> None:
        live.spawn("server", ["sleep", "1000"])
        before = live.commit("before")
        for path in ("config", "/tmp/config", "/etc/config"):
            live.run(["sh", "-c", 'echo "$DEPLOY" > $0', path], secrets=["DEPLOY"])
            assert path.lstrip("/") in str(refused(live))
            live.run(["rm", path])
        assert [job.code for job in live.jobs()] == [None]
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
        self, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        token = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"
        monkeypatch.setenv("GITHUB_TOKEN", token)
        with ortet.open(tmp_path / "other") as other:
            work = other.workspace(place, engine="criu")
            work.spawn("server", ["sleep", "1000"])
            assert work.run("echo $GITHUB_TOKEN").stdout == "\n"
            seen = work.kernel().run("import os; os.environ.get('GITHUB_TOKEN')")
            assert seen.value is None
            assert work.commit("clean").oid
