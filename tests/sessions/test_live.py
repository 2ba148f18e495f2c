"""Sessions in live machines: what runs is committed, forked and restored with the files."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from tests.fixtures.waiting import WAIT

import ortet
from ortet.hub.hub import Hub
from ortet.machines.jobs import Job
from ortet.sessions.session import Session

pytestmark = [pytest.mark.criu, pytest.mark.files({"page": "first\n"})]

# A client that keeps one connection open and asks again when told to.
_CLIENT = """
import http.client, sys
talk = http.client.HTTPConnection("127.0.0.1", 3000)
talk.connect()
port = talk.sock.getsockname()[1]
for line in sys.stdin:
    talk.request("GET", "/" + line.strip())
    said = talk.getresponse().read().decode().strip()
    print(said, talk.sock.getsockname()[1] == port, flush=True)
"""


def expect(job: Job, text: str, cursor: int = 0) -> int:
    """Read until a text has come; returns where it ended."""
    seen = b""
    while text.encode() not in seen:
        piece = job.read(cursor, WAIT)
        assert piece.data, f"{text!r} did not come: {seen!r}"
        seen, cursor = seen + piece.data, piece.cursor
    return cursor


def ask(session: Session, line: str) -> str:
    """One request of the client over the connection that it has; its answer."""
    client = session.programs.job("client")
    cursor = len(client.logs())
    client.write(f"{line}\n".encode())
    end = expect(client, "\n", cursor)
    return client.read(cursor).data[: end - cursor].decode().strip()


class TestWholeMachine:
    @pytest.fixture
    def session(self, hub: Hub, work: Path) -> Session:
        session = hub.session("web", workspace=work, engine="criu", files="private")
        session.spawn(
            "server", "exec python3 -m http.server 3000 --bind 127.0.0.1 --protocol HTTP/1.1"
        )
        waited = "until (exec 3<>/dev/tcp/127.0.0.1/3000) 2>/dev/null; do sleep 0.05; done"
        assert session.run(["bash", "-c", waited], timeout=2 * WAIT).exit_code == 0
        session.spawn("client", ["python3", "-c", _CLIENT], stdin=True)
        shell = session.shell("main", command=["bash", "--norc", "--noprofile", "-i"])
        shell.write(b"PS1='re''ady$ '; count=41\n")
        expect(shell, "ready$ ")  # the echo of what the shell has not read yet is the terminal's
        shell.write(b"echo half-$((count + 1))")  # typed, not sent
        expect(shell, "$((count + 1))")
        assert ask(session, "page") == "first True"
        return session

    def test_forks_go_on_from_the_same_instant(self, hub: Hub, session: Session) -> None:
        session.commit("running")
        forks = session.fork(3)
        for number, fork in enumerate(forks):
            assert ask(fork, "page") == "first True"  # the connection is the one it had
            fork.run(f"echo changed-{number} > page")
            assert ask(fork, "page") == f"changed-{number} True"
            shell = fork.shell("main")
            at = len(shell.logs())
            shell.write(b"\n")  # the line that was typed before the fork
            expect(shell, "half-42", at)
            shell.write(f"count={number}; echo now-$count\n".encode())
            expect(shell, f"now-{number}", at)
        assert ask(session, "page") == "first True"  # the original knows nothing of it
        shell = session.shell("main")
        at = len(shell.logs())
        shell.write(b"\n")
        expect(shell, "half-42", at)
        assert {job.name for job in forks[0].programs.jobs()} == {"server", "client", "main"}

    def test_a_commit_comes_back_after_everything_was_killed(
        self, tmp_path: Path, hub: Hub, session: Session
    ) -> None:
        commit = session.commit("running")
        session.run("echo later > page")
        hub.close()
        with ortet.open(tmp_path / "store") as again:
            session = again.session("web")
            session.restore(commit.oid)
            assert ask(session, "page") == "first True"
            shell = session.shell("main")
            at = len(shell.logs())
            shell.write(b"\n")
            expect(shell, "half-42", at)

    def test_restore_of_files_only_keeps_running_processes(self, session: Session) -> None:
        commit = session.commit("running")
        session.run("echo later > page")
        shell = session.shell("main")
        at = len(shell.logs())
        shell.write(b"\n")
        expect(shell, "half-42", at)
        shell.write(b"count=7\n")
        session.restore(commit.oid, only={"files"})
        assert ask(session, "page") == "first True"
        shell.write(b"echo now-$count\n")  # the shell is the one that ran, not the one committed
        expect(shell, "now-7", at)

    def test_a_port_leads_into_the_machine_and_stays_through_a_restore(
        self, session: Session
    ) -> None:
        port = session.programs.expose(3000)
        commit = session.commit("running")
        assert _get(port) == "first"
        session.run("echo later > page")
        assert _get(port) == "later"
        session.restore(commit.oid)
        assert _get(port) == "first"


def _get(port: int) -> str:
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT) as sock:
        sock.sendall(b"GET /page HTTP/1.0\r\n\r\n")
        answer = b""
        while part := sock.recv(4096):
            answer += part
    return answer.split(b"\r\n\r\n", 1)[1].decode().strip()


class TestCopies:
    def test_each_live_fork_has_its_own_host_name_machine_id_and_runs_fork_hooks(
        self, hub: Hub, work: Path
    ) -> None:
        session = hub.session("own", workspace=work, engine="criu", files="private")
        hooks = ".ortet-hooks/on-fork"
        session.run(
            f"mkdir -p {hooks}; echo 'echo forked >> hooked' > {hooks}/a; chmod +x {hooks}/a"
        )
        session.run(f"sed -i '1i #!/bin/sh' {hooks}/a")
        session.spawn("sleeper", "sleep 1000")
        names = []
        for fork in session.fork(2):
            told = fork.run("hostname; cat /etc/machine-id; cat hooked")
            names.append(tuple(told.stdout.split()))
        assert [name[2] for name in names] == ["forked", "forked"]
        assert len({name[0] for name in names}) == len({name[1] for name in names}) == 2
        assert session.run("cat hooked").exit_code != 0

    def test_live_fork_includes_system_files_changed_after_the_commit(
        self, hub: Hub, work: Path
    ) -> None:
        workspace = hub.workspace(work, engine="criu")
        workspace.spawn("sleeper", "sleep 1000")
        workspace.commit("before")
        for number in range(2):
            workspace.run(f"echo {number} > /etc/ortet-test-{number}")
            (fork,) = workspace.fork(1)
            assert fork.run(f"cat /etc/ortet-test-{number}").stdout == f"{number}\n"

    def test_host_name_of_a_live_fork_does_not_change_its_state(self, hub: Hub, work: Path) -> None:
        workspace = hub.workspace(work, engine="criu")
        before = workspace.commit("as it is")
        (fork,) = workspace.fork(1)
        assert fork.run("hostname").stdout != workspace.run("hostname").stdout
        assert fork.commit("nothing").state == before.state
