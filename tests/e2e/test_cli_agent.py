"""The host agent: the same output as without it, also if it is idle, killed or refused."""

from __future__ import annotations

import fcntl
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures import forked
from tests.fixtures.commands import Ortet
from tests.fixtures.editor import PAGE, Editor
from tests.fixtures.waiting import WAIT, eventually

import ortet as library

pytestmark = pytest.mark.files({"a.txt": "one\n"})

_CONNECT = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
sock = socket.socket(socket.AF_UNIX)
try:
    sock.connect(f"/proc/self/fd/{sys.argv[1]}/sock")
    sock.sendall(bytes.fromhex(sys.argv[2]))
    print("said", sock.recv(100))
except OSError as error:
    print("refused", type(error).__name__)
"""


@pytest.fixture
def agent(ortet: Ortet, work: Path) -> Iterator[Ortet]:
    """Started, for a workspace with one commit."""
    ortet.env["ORTET_AGENT"] = "on"
    ortet("init", cwd=work)
    ortet("agent", "start", cwd=work)
    ortet("commit", "-m", "first", cwd=work)
    yield ortet
    if ortet.store.exists():
        ortet("agent", "stop", cwd=ortet.home)


def told(ortet: Ortet, place: Path) -> Any:
    return ortet.json("agent", "status", cwd=place)


def worker(ortet: Ortet, place: Path) -> int:
    return int(told(ortet, place)["workers"][0]["pid"])


@contextmanager
def ended_by(pid: int) -> Iterator[None]:
    """The block, or the passing of time after it, ends a process."""
    fd = os.pidfd_open(pid)
    try:
        yield
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        assert poll.poll(1000 * WAIT), f"{pid} did not end"
    finally:
        os.close(fd)


@contextmanager
def its_turn(ortet: Ortet, place: Path) -> Iterator[None]:
    """Nobody can look at the files of a workspace meanwhile: a commit of it waits."""
    homes = ortet.store / "local" / "machines"
    with library.open(ortet.store) as hub:
        row = next(row for row in hub.workspaces.table.all() if row.directory == place)
    with (homes / row.machine / "turn").open("rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def begin(ortet: Ortet, *args: str, cwd: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ortet.argv(*args), cwd=cwd, env=ortet.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def wait_until_busy(ortet: Ortet, place: Path, name: str) -> int:
    """Wait until a worker is at work. Returns its pid."""

    def pid() -> int | None:
        for one in told(ortet, place)["workers"]:
            if one["name"] == name and one["busy"]:
                return int(one["pid"])
        return None

    return eventually(pid, say=f"nobody works for {name}")


def test_a_commit_by_the_agent_prints_the_same_output(agent: Ortet, work: Path) -> None:
    (work / "b.txt").write_text("two\n")
    status = agent.json("status", cwd=work)
    assert [change["path"] for change in status["changes"]] == ["b.txt"]
    made = agent.json("commit", "-m", "second", cwd=work)
    assert made["created"] and made["changed"] == 1
    again = agent.json("commit", cwd=work)
    assert again["oid"] == made["oid"] and not again["created"]
    assert told(agent, work)["asked"] == 4
    log = agent("log", "--json", cwd=work, env={"ORTET_AGENT": "off"}).data
    assert [commit["message"] for commit in log] == ["second", "first"]
    agent("verify", cwd=work)


def test_the_agent_uses_the_environment_and_directory_of_the_caller(
    agent: Ortet, work: Path
) -> None:
    below = work / "deep" / "er"
    below.mkdir(parents=True)
    agent("commit", "-m", "by zoë", cwd=below, env={"ORTET_AUTHOR": "zoë"})
    (work / "c").write_text("c")
    agent("-C", "..", "commit", "-m", "mine", cwd=below)
    log = agent.json("log", cwd=work)
    assert [commit["author"] for commit in log] == ["tester", "zoë", "tester"]
    assert agent.kind("commit", "-w", "nobody", cwd=work, code=4) == "no_workspace"
    assert told(agent, work)["asked"] == 4


def test_the_agent_notices_a_replaced_workspace_directory(agent: Ortet, work: Path) -> None:
    work.rename(work.with_name("old"))
    shutil.copytree(work.with_name("old"), work)
    shutil.rmtree(work.with_name("old"))
    (work / "a.txt").write_text("another\n")
    assert agent.json("commit", cwd=work)["changed"] >= 1
    (work / "a.txt").write_text("and another\n")
    assert agent.json("commit", cwd=work)["changed"] == 1


def test_a_moved_directory_keeps_its_history(agent: Ortet, work: Path) -> None:
    moved = work.rename(work.with_name("moved"))
    (moved / "b").write_text("b")
    agent("commit", "-m", "moved", cwd=moved)
    log = agent.json("log", cwd=moved)
    assert [commit["message"] for commit in log] == ["moved", "first"]


def test_a_workspace_held_by_the_agent_can_be_restored_and_dropped(
    agent: Ortet, work: Path
) -> None:
    (work / "a.txt").write_text("two\n")
    agent("commit", "-m", "second", cwd=work)
    agent("rewind", cwd=work)
    assert (work / "a.txt").read_text() == "one\n"
    assert agent.json("status", cwd=work)["clean"]
    agent("drop", "proj", cwd=work)
    (work / "a.txt").write_text("three\n")
    assert agent.json("commit", "-m", "third", cwd=work)["created"]
    log = agent.json("log", cwd=work)
    assert [commit["message"] for commit in log] == ["third", "first"]


def test_the_agent_commits_a_session_that_started_later(agent: Ortet, work: Path) -> None:
    with library.open(agent.store) as hub:
        with hub.session("work", workspace=work) as session:
            session.say("user", "hello")
        (work / "b").write_text("b")
        agent("commit", "-m", "with a mind", cwd=work)
        with hub.session("work") as session:  # which nobody holds
            assert [message.content for message in session.messages()] == ["hello"]
        made = hub.log("proj", limit=1)[0]
        assert hub.history.state(hub.refs.resolve(made)).journal


def test_the_agent_serves_two_workspaces_at_the_same_time(
    agent: Ortet, work: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    agent("init", cwd=other)
    with its_turn(agent, work):
        waits = begin(agent, "commit", "-m", "later", cwd=work)
        wait_until_busy(agent, work, "proj")
        assert agent.json("commit", "-m", "now", cwd=other)["created"]
        assert waits.poll() is None
    assert waits.wait() == 0
    waits.communicate()
    assert len(told(agent, work)["workers"]) == 2


def test_an_interrupt_reaches_the_agent_which_goes_on(agent: Ortet, work: Path) -> None:
    with its_turn(agent, work):
        waits = begin(agent, "commit", "-m", "later", cwd=work)
        pid = wait_until_busy(agent, work, "proj")
        waits.send_signal(signal.SIGINT)
        _, error = waits.communicate()
    assert waits.returncode == 130 and error.strip() == b"interrupted"
    assert agent.json("commit", cwd=work)["oid"]
    assert worker(agent, work) == pid


def test_a_killed_client_does_not_block_the_agent(agent: Ortet, work: Path) -> None:
    (work / "b").write_text("b")
    with its_turn(agent, work):
        waits = begin(agent, "commit", "-m", "nobody's", cwd=work)
        wait_until_busy(agent, work, "proj")
        waits.kill()
        waits.communicate()
        eventually(lambda: not told(agent, work)["workers"][0]["busy"])
    assert agent.json("commit", "-m", "mine", cwd=work)["message"] == "mine"


def test_a_killed_agent_is_reported_and_the_next_command_works(agent: Ortet, work: Path) -> None:
    (work / "b").write_text("b")
    with its_turn(agent, work):
        waits = begin(agent, "commit", "-m", "cut", cwd=work)
        os.kill(wait_until_busy(agent, work, "proj"), signal.SIGKILL)
        _, error = waits.communicate()
    assert waits.returncode == 7 and b"repeat the command" in error
    assert agent.json("commit", "-m", "again", cwd=work)["created"]
    agent("verify", cwd=work)


def test_without_an_agent_the_command_works_and_starts_one(agent: Ortet, work: Path) -> None:
    pid = told(agent, work)["pid"]
    with ended_by(worker(agent, work)):  # which ends with its agent
        os.kill(pid, signal.SIGKILL)
    (work / "b").write_text("b")
    assert agent.json("commit", "-m", "alone", cwd=work)["created"]
    eventually(lambda: told(agent, work)["running"])  # another was started for the next command
    assert told(agent, work)["pid"] != pid
    assert agent.json("commit", cwd=work)["message"] == "alone"
    assert told(agent, work)["asked"] == 1


def test_with_the_agent_off_no_agent_is_started(ortet: Ortet, work: Path) -> None:
    ortet("init", cwd=work)
    ortet("commit", "-m", "first", cwd=work)
    assert told(ortet, work) == {"running": False}
    assert not (ortet.store / "local" / "agent").exists()
    assert ortet.json("agent", "stop", cwd=work) == {"stopped": False}


@pytest.mark.slow
def test_killed_at_any_moment_no_head_is_lost(agent: Ortet, work: Path) -> None:
    dice = random.Random(4)
    done: list[str] = []
    for number in range(12):
        for name in range(40):
            (work / f"f{name}").write_text(f"{number} {dice.random()}")
        commit = begin(agent, "--json", "commit", "-m", f"step {number}", cwd=work)
        time.sleep(dice.uniform(0.03, 0.12))  # any moment is as good as another
        found = told(agent, work)
        victims = [one["pid"] for one in found.get("workers", ())] + [found.get("pid")]
        with suppress(ProcessLookupError, TypeError):
            os.kill(dice.choice(victims), signal.SIGKILL)
        commit.communicate()
        assert commit.returncode in (0, 7)
        agent("commit", "-m", f"step {number}", cwd=work)
        done.append(f"step {number}")
        agent("agent", "start", cwd=work)
    log = agent.json("log", cwd=work)
    assert [one["message"] for one in log if one["message"] != "first"] == done[::-1]
    agent("verify", cwd=work)


def test_an_idle_agent_ends(ortet: Ortet, work: Path) -> None:
    ortet.env |= {"ORTET_AGENT": "on", "ORTET_AGENT_IDLE": "0.5"}
    ortet("init", cwd=work)
    pid = ortet.json("agent", "start", cwd=work)["pid"]
    with suppress(ProcessLookupError), ended_by(pid):  # on a slow host it has already
        ortet("commit", "-m", "first", cwd=work)
    sock = ortet.store / "local" / "agent" / "sock"
    # where the first had ended before the commit, that has begun another
    eventually(lambda: not sock.exists())


@pytest.mark.slow
def test_the_agent_ends_when_its_store_is_deleted(agent: Ortet, work: Path) -> None:
    with ended_by(told(agent, work)["pid"]):
        shutil.rmtree(agent.store)


def test_an_agent_ends_when_a_client_of_another_version_connects(
    agent: Ortet, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ortet.cli.daemon.client import encode_frame

    with socket.socket(socket.AF_UNIX) as sock, ended_by(told(agent, work)["pid"]):
        monkeypatch.chdir(agent.store / "local" / "agent")
        sock.connect("sock")
        sock.sendall(encode_frame(["verb", "0.0.1 /elsewhere", "", "proj"]))
        assert sock.recv(100) == b"Danother version"


def test_the_agent_works_with_a_store_path_of_any_length(
    ortet: Ortet, work: Path, tmp_path: Path
) -> None:
    store = tmp_path / ("s" * 120) / "store"
    ortet.env["ORTET_AGENT"] = "on"
    ortet("init", "--store", str(store), cwd=work)
    ortet("agent", "start", cwd=work)
    ortet("commit", cwd=work)
    assert told(ortet, work)["asked"] == 1
    ortet("agent", "stop", cwd=work)


@pytest.mark.root
def test_another_user_is_refused(agent: Ortet, work: Path) -> None:
    from ortet.cli.daemon.client import encode_frame

    place = agent.store / "local" / "agent"
    hello = encode_frame(["status", "", "", ""]).hex()

    def as_nobody() -> str:
        fd = os.open(place, os.O_PATH)
        argv = [sys.executable, "-c", _CONNECT, str(fd), hello]
        try:
            done = forked.run(argv, pass_fds=[fd], capture_output=True, check=True, text=True)
        finally:
            os.close(fd)
        return str(done.stdout)

    assert as_nobody() == "refused PermissionError\n"
    place.chmod(0o777)
    (place / "sock").chmod(0o777)
    assert "pid" not in as_nobody()  # it looks at who it is before it reads
    (work / "b").write_text("b")
    agent("commit", cwd=work)  # nor is an agent trusted whose place is open to others
    place.chmod(0o700)
    assert told(agent, work)["asked"] == 1


def test_a_commit_by_the_agent_has_writes_that_send_no_event(agent: Ortet, work: Path) -> None:
    file, other = work / "a.txt", agent.home / "other-name"
    file.write_bytes(b"-" * 2 * PAGE)
    (work / "b.txt").write_bytes(b"one")
    agent("commit", "-m", "second", cwd=work)

    def missed() -> list[str]:
        oid = agent.json("commit", cwd=work)["oid"]
        names = ("a.txt", "b.txt")
        stored = {name: agent("show", oid, name, cwd=work).out for name in names}
        return [name for name in names if stored[name] != (work / name).read_text()]

    assert missed() == []
    editor = Editor()
    editor.map(file)
    for number in range(8):
        editor.store(file, number % 2 * PAGE, b"store %d" % number, sync=number % 3 == 0)
        assert [change["path"] for change in agent.json("status", cwd=work)["changes"]] == ["a.txt"]
        assert missed() == []
    editor.store(file, 0, b"the last")
    editor.kill()
    assert missed() == []
    os.link(work / "b.txt", other)
    assert missed() == []
    other.write_bytes(b"two")
    assert missed() == []
    assert told(agent, work)["asked"] > 20, "it did them all"
