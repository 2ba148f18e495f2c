"""Outbound network of live machines: by choice, to others only, and the same in every copy."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fixtures import forked
from tests.fixtures.waiting import WAIT
from tests.live.lives import Life, ask, heard, machine_of, told
from tests.live.outside import HOST, Outside

import ortet
from ortet.errors import Invalid, Unsupported
from ortet.history.records import Image
from ortet.machines.live.network import slirp
from ortet.machines.overlay.layers import resolv_conf
from ortet.sessions.session import Session

_CALL = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), 20) as sock:
        sock.sendall(b"hello\\n")
        print(sock.makefile().readline().strip())
except OSError as error:
    print(type(error).__name__, error.errno)
"""
# who is asked is a thread of ours: on a busy host it may answer later than a resolver waits
_LOOK = """
import socket, time
until = time.monotonic() + 50
while True:
    try:
        print(socket.gethostbyname("some.where.example"))
        break
    except OSError:
        if time.monotonic() > until:
            raise
"""
_DATAGRAMS = """
import socket, sys
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.bind(("10.0.2.100", 0))
sock.connect((sys.argv[1], int(sys.argv[2])))
listener = socket.create_server(("10.0.2.100", 8000))
print("ready", flush=True)
for line in sys.stdin:
    try:
        sock.send(line.strip().encode())
        print(sock.recv(100).decode(), flush=True)
    except OSError as error:
        print(type(error).__name__, error.errno, flush=True)
"""


def call(session: Session, at: str, port: int) -> str:
    """What a connection from inside gets."""
    done = session.run(["python3", "-c", _CALL, at, str(port)], timeout=WAIT)
    return done.stdout.strip() or done.stderr


def outlets() -> list[int]:
    """Processes of slirp4netns below this one."""
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                words = (place / "cmdline").read_bytes()
                if b"slirp4netns" in words and parent_of(parent_of(int(place.name))) == os.getpid():
                    found.append(int(place.name))
            except OSError:
                continue
    return found


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])


def image_of(session: Session) -> Image:
    store, head = session.internals.store, session.machine.head
    assert head is not None
    return store.history.image(store.refs.resolve(head.oid, default_branch=session.name))


class TestChoice:
    def test_a_machine_has_no_network_by_default(self, outside: Outside, life: Life) -> None:
        port = outside.echo()
        session = life.begin()
        assert call(session, HOST, port) == "OSError 101"  # unreachable, and at once
        assert outlets() == []
        assert outside.met == []

    def test_network_outbound_reaches_other_hosts_but_not_the_host_loopback(
        self, outside: Outside, life: Life
    ) -> None:
        port, inner = outside.echo(), outside.echo("127.0.0.1")
        session = life.begin(network="outbound")
        assert call(session, HOST, port) == "echo hello"
        assert session.machine.losses == []
        for at in ("10.0.2.2", "10.0.2.3", "127.0.0.1"):
            assert "echo" not in call(session, at, inner)
        assert len(outside.met) == 1

    def test_network_host_reaches_the_host_loopback(self, outside: Outside, life: Life) -> None:
        inner = outside.echo("127.0.0.1")
        session = life.begin(network="host")
        assert call(session, "10.0.2.2", inner) == "echo hello"
        assert "echo" not in call(session, "127.0.0.1", inner)  # which is its own

    def test_host_names_are_resolved_in_a_machine_and_its_fork(
        self, outside: Outside, life: Life
    ) -> None:
        answer = outside.names()
        session = life.begin(network="outbound")
        assert told(session, f"python3 -c '{_LOOK}'") == answer
        (copy,) = session.fork(1)
        assert told(copy, f"python3 -c '{_LOOK}'") == answer

    def test_the_network_survives_forks_restores_and_reopening(
        self, outside: Outside, life: Life
    ) -> None:
        port = outside.echo()
        session = life.begin(network="outbound")
        session.spawn("sleeper", "sleep 1000")
        commit = session.commit("running")
        (copy,) = session.fork(1)
        session.restore(commit.oid)
        assert call(session, HOST, port) == call(copy, HOST, port) == "echo hello"
        names = session.name, copy.name
        life.kill()
        for name in names:
            again = life.hub.session(name)
            assert call(again, HOST, port) == "echo hello"
            again.close()

    def test_the_network_can_be_changed_when_a_session_is_reopened(
        self, outside: Outside, life: Life
    ) -> None:
        port = outside.echo()
        session = life.begin()
        assert "echo" not in call(session, HOST, port)
        name = session.name
        for network in ("outbound", "none", "outbound"):
            session.pause()
            session = life.hub.session(name, network=network)
            found = call(session, HOST, port)
            assert (found == "echo hello") == (network == "outbound")
            own = (
                told(session, "cat /etc/resolv.conf").encode() + b"\n"
                == resolv_conf.RESOLV_CONF_CONTENT
            )
            assert own == (network == "outbound")

    def test_a_fork_of_a_session_without_a_directory_has_the_network(
        self, outside: Outside, life: Life
    ) -> None:
        port = outside.echo()
        session = life.hub.session("room", engine="criu", network="outbound")
        (copy,) = session.fork(1)
        assert call(copy, HOST, port) == "echo hello"


class TestRefused:
    def test_network_is_refused_by_an_engine_without_network(self, life: Life) -> None:
        with pytest.raises(Unsupported) as caught:
            life.hub.session("s", workspace=life.project, network="outbound")
        assert caught.value.kind == "no_network"
        with pytest.raises(Unsupported):
            life.hub.workspace(life.project, network="outbound")
        assert life.hub.sessions() == []

    def test_an_invalid_network_is_refused(self, life: Life) -> None:
        with pytest.raises(Invalid) as caught:
            life.begin(network="all")
        assert caught.value.kind == "bad_network"
        with pytest.raises(Invalid):
            life.hub.session("s", engine="criu", network=5)  # type: ignore[arg-type]

    def test_network_is_refused_with_advice_where_slirp4netns_is_missing(
        self, life: Life, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(slirp, "PROGRAM", "slirp4netns-is-not-here")
        with pytest.raises(Unsupported) as caught:
            life.begin(network="outbound")
        (line,) = slirp.probe_network()
        assert caught.value.kind == "no_network"
        assert "install" in str(caught.value)
        assert not line.ok and "install" in line.fix


class TestWhereItCannotBeHad:
    def test_restore_reports_a_loss_where_the_network_is_not_available(
        self, outside: Outside, life: Life, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Processes with sockets bound and connected by an address that is not there."""
        port = outside.answers()
        session = life.begin(network="outbound")
        job = session.spawn("udp", ["python3", "-c", _DATAGRAMS, HOST, str(port)], stdin=True)
        assert heard(job) == "ready"
        assert ask(job, "one") == "echo one"
        commit = session.commit("bound")
        monkeypatch.setattr(slirp, "PROGRAM", "slirp4netns-is-not-here")
        life.kill()
        session = life.hub.session(session.name)
        report = session.restore(commit.oid)
        (loss,) = report.files.losses
        assert loss.what == "network" and "install" in loss.why
        assert "not back: network (this machine has no way out" in str(report)
        assert ask(session.programs.job("udp"), "two") == "OSError 101"
        assert call(session, HOST, port) == "OSError 101"
        second = session.commit("without")
        (copy,) = session.fork(1)
        assert [loss.what for loss in copy.machine.losses] == ["network"]
        assert ask(copy.programs.job("udp"), "three") == "OSError 101"
        monkeypatch.undo()
        life.kill()
        session = life.hub.session(session.name)
        for one in (commit, second):
            assert session.restore(one.oid).files.losses == []
            assert ask(session.programs.job("udp"), "four") == "echo four"
        session.pause()
        session = life.hub.session(session.name, network="none")
        assert session.restore(second.oid).files.losses == []  # nobody wants any
        assert ask(session.programs.job("udp"), "five") == "OSError 101"


class TestFiles:
    def test_the_generated_resolv_conf_is_not_part_of_the_commit(
        self, outside: Outside, life: Life
    ) -> None:
        session = life.begin(network="outbound")
        session.run("echo x > file")
        session.commit("a file")
        assert image_of(session).system is None
        session.spawn("sleeper", "sleep 1000 < /etc/resolv.conf")
        session.commit("running, and holding it open")
        assert image_of(session).system is None
        (copy,) = session.fork(1)
        assert told(copy, "cat /etc/resolv.conf").endswith("10.0.2.3")

    def test_a_resolv_conf_changed_in_the_machine_is_part_of_the_commit(
        self, outside: Outside, life: Life
    ) -> None:
        session = life.begin(network="outbound")
        session.run("echo nameserver 192.0.2.7 > /etc/resolv.conf")
        session.spawn("sleeper", "sleep 1000")
        session.commit("changed")
        (copy,) = session.fork(1)
        assert told(copy, "cat /etc/resolv.conf") == "nameserver 192.0.2.7"


class TestNothingIsLeft:
    def test_the_network_process_ends_when_the_session_closes(
        self, outside: Outside, life: Life
    ) -> None:
        session = life.begin(network="outbound")
        session.run("true")
        (pid,) = outlets()
        ended = os.pidfd_open(pid)
        session.close()
        assert wait_for(ended)
        assert outlets() == []

    def test_the_network_process_ends_when_pid_1_is_killed(
        self, outside: Outside, life: Life
    ) -> None:
        session = life.begin(network="outbound")
        session.run("true")
        (pid,) = outlets()
        ended = os.pidfd_open(pid)
        os.kill(machine_of(session)._live_process.pid, signal.SIGKILL)
        assert wait_for(ended)

    def test_the_network_process_ends_when_a_restored_machine_is_killed(
        self, outside: Outside, life: Life
    ) -> None:
        session = life.begin(network="outbound")
        session.spawn("sleeper", "sleep 1000")
        session.commit("running")
        before = set(outlets())
        (copy,) = session.fork(1)
        (pid,) = set(outlets()) - before
        ended = os.pidfd_open(pid)
        os.kill(machine_of(copy)._live_process.pid, signal.SIGKILL)
        assert wait_for(ended)
        assert set(outlets()) == before

    @pytest.mark.parametrize("keeper", [False, True])
    def test_the_network_process_ends_when_the_hub_or_keeper_is_killed(
        self, outside: Outside, tmp_path: Path, *, keeper: bool
    ) -> None:
        (tmp_path / "work").mkdir()
        program = (
            "import ortet, sys\n"
            "hub = ortet.open(sys.argv[1])\n"
            "work = hub.workspace(sys.argv[2], engine='criu', network='outbound')\n"
            "process = work.files.machine._live_process\n"
            "print(process.outbound._pid, process.pid, flush=True)\n"
            "input()\n"
        )
        command = [sys.executable, "-c", program, str(tmp_path / "store"), str(tmp_path / "work")]
        with forked.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as one:
            assert one.stdout is not None
            pids = [int(pid) for pid in one.stdout.readline().split()]
            ended = [os.pidfd_open(pid) for pid in pids]
            os.kill(parent_of(pids[0]) if keeper else one.pid, signal.SIGKILL)
            assert all(map(wait_for, ended))
            one.kill()
        with ortet.open(tmp_path / "store") as hub:
            assert [left for left in hub.maintenance.leftovers() if left.what == "process"] == []

    def test_a_killed_network_process_is_a_loss_and_restore_starts_a_new_one(
        self, outside: Outside, life: Life
    ) -> None:
        """It is told, the machine goes on, and can be committed, restored and opened again."""
        port = outside.echo()
        session = life.begin(network="outbound")
        session.spawn("sleeper", "sleep 1000")
        (pid,) = outlets()
        ended = os.pidfd_open(pid)
        os.kill(pid, signal.SIGKILL)
        assert wait_for(ended)
        commit = session.commit("without")
        assert [loss.what for loss in session.machine.losses] == ["network"]
        assert call(session, HOST, port) == "OSError 101"
        session.run("touch more")
        assert session.restore(commit.oid).files.losses == []
        assert session.machine.losses == []
        assert call(session, HOST, port) == "echo hello"

    def test_a_network_process_that_cannot_start_is_reported_as_a_loss(
        self, outside: Outside, life: Life, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The machine is there, without; what slirp4netns said is told."""
        port = outside.echo()
        session = life.begin(network="outbound")
        session.run("true")
        session.pause()
        monkeypatch.setattr(slirp, "_ARGUMENTS", ("--no-such-option",))
        session = life.hub.session(session.name)
        found = call(session, HOST, port)
        assert found == "OSError 101"
        (loss,) = session.machine.losses
        assert loss.what == "network" and "no-such-option" in loss.why


def wait_for(fd: int) -> bool:
    """For the end of a process."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    ended = bool(poll.poll(1000 * WAIT))
    os.close(fd)
    return ended
