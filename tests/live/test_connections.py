"""Connections that leave a machine: the original keeps them, a copy is told at once that it has
none, and its report says which."""

from __future__ import annotations

import hashlib
import socket
import threading

import pytest
from tests.fixtures.waiting import WAIT
from tests.live.lives import Life, ask, heard, machine_of
from tests.live.outside import HOST, Outside

from ortet._util.codec import decode, encode
from ortet.ids import from_hex
from ortet.machines.jobs import JobInfo
from ortet.machines.live.images.load import read_processes
from ortet.machines.services import ExternalConnection, RunningServices
from ortet.sessions.session import Session

_TALKER = """
import socket, sys
sock = socket.create_connection((sys.argv[1], int(sys.argv[2])))
file = sock.makefile("rb")
print("connected", flush=True)
for line in sys.stdin:
    try:
        sock.sendall(line.encode())
        print(file.readline().decode().strip() or "end", flush=True)
    except OSError as error:
        print("error", error.errno, flush=True)
"""
_WAITER = """
import select, socket, sys
sock = socket.create_connection((sys.argv[1], int(sys.argv[2])))
print("connected", flush=True)
if sys.argv[3] == "epoll":
    poll = select.epoll()
    poll.register(sock, select.EPOLLIN)
    print("events", poll.poll(), flush=True)
try:
    print("got", sock.recv(100), flush=True)
except OSError as error:
    print("error", error.errno, flush=True)
"""
_SENDER = """
import socket, sys
sock = socket.create_connection((sys.argv[1], int(sys.argv[2])))
sock.setblocking(False)
count = 0
try:
    while True:
        count += sock.send(bytes(65536))
except BlockingIOError:
    print("full", count, flush=True)
sys.stdin.read()
"""
_RECEIVER = """
import hashlib, socket, sys
sock = socket.create_connection((sys.argv[1], int(sys.argv[2])))
found, count = hashlib.sha256(), 0
print("connected", flush=True)
try:
    while data := sock.recv(1 << 16):
        found.update(data)
        count += len(data)
    print(count, found.hexdigest(), flush=True)
except OSError as error:
    print("error", error.errno, flush=True)
"""
_INNER = """
import socket, sys
listener = socket.create_server((sys.argv[1], 0))
one = socket.create_connection(listener.getsockname())
two, _ = listener.accept()
print("connected", flush=True)
for line in sys.stdin:
    one.sendall(line.encode())
    print("through", two.recv(100).decode().strip(), flush=True)
"""
_SERVER = """
import socket, threading
listener = socket.create_server(("127.0.0.1", 3000))
print("listening", flush=True)
def serve(sock):
    try:
        with sock.makefile("rb") as file:
            for line in file:
                sock.sendall(b"echo " + line)
        print("end", flush=True)
    except OSError as error:
        print("error", error.errno, flush=True)
while True:
    threading.Thread(target=serve, args=listener.accept()[:1]).start()
"""
_NOT_CONNECTED, _BROKEN = 107, 32


def carried_of(session: Session) -> RunningServices:
    head = session.machine.head
    assert head is not None
    store = session.internals.store
    image = store.history.image(from_hex(head.oid))
    return decode(RunningServices, read_processes(store.objects, image.processes).jobs)


class TestToTheOutside:
    def test_the_original_keeps_its_connection_and_a_copy_gets_an_error(
        self, outside: Outside, life: Life
    ) -> None:
        port = outside.echo()
        session = life.begin(network="outbound")
        job = session.spawn("talker", ["python3", "-c", _TALKER, HOST, str(port)], stdin=True)
        assert heard(job) == "connected"
        assert ask(job, "one") == "echo one"
        commit = session.commit("connected")
        assert ask(job, "two") == "echo two"

        (copy,) = session.fork(1)
        (loss,) = copy.machine.losses
        assert (loss.what, loss.path) == ("connection", f"{HOST}:{port}")
        assert "python3 -c import socket, sys" in loss.command
        assert loss.pid == job.pid and str(job.pid) in loss.why
        assert ask(copy.programs.job("talker"), "never") == f"error {_BROKEN}"
        assert ask(job, "three") == "echo three"

        life.kill()
        session = life.hub.session(session.name)
        report = session.restore(commit.oid)
        assert [one.path for one in report.files.losses] == [f"{HOST}:{port}"]
        assert f"not back: {HOST}:{port} (process {job.pid}" in str(report)
        assert ask(session.programs.job("talker"), "nor this") == f"error {_BROKEN}"
        again = session.spawn("again", ["python3", "-c", _TALKER, HOST, str(port)], stdin=True)
        assert heard(again) == "connected"
        assert ask(again, "four") == "echo four"

        words = [(0, b"one\n"), (0, b"two\n"), (0, b"three\n"), (1, b"four\n")]
        assert outside.lines(4) == words
        assert len(outside.met) == 2  # nobody else ever came

    @pytest.mark.parametrize("how", ["recv", "epoll"])
    def test_a_copy_waiting_on_a_connection_is_woken_with_an_error(
        self, outside: Outside, life: Life, how: str
    ) -> None:
        port = outside.echo()
        session = life.begin(network="outbound")
        job = session.spawn("waiter", ["python3", "-c", _WAITER, HOST, str(port), how])
        assert heard(job) == "connected"
        (copy,) = session.fork(1)
        ended = copy.programs.job("waiter")
        assert ended.wait(WAIT) == 0
        assert ended.logs().endswith(f"error {_NOT_CONNECTED}\n".encode())
        assert job.wait(0) is None
        outside.first().sendall(b"for the original")
        assert job.wait(WAIT) == 0
        assert job.logs().endswith(b"got b'for the original'\n")

    def test_unsent_data_is_sent_by_the_original_only(self, outside: Outside, life: Life) -> None:
        listener = socket.create_server((HOST, 0))
        port = listener.getsockname()[1]
        session = life.begin(network="outbound")
        job = session.spawn("sender", ["python3", "-c", _SENDER, HOST, str(port)], stdin=True)
        with listener:
            sock, _ = listener.accept()
            count = int(heard(job).split()[1])
            copies = session.fork(2)
            assert [len(copy.machine.losses) for copy in copies] == [1, 1]
            dumped = machine_of(session)._last_dump
            assert dumped is not None
            assert list(dumped[1].glob("tcp-stream-*")) == []
            for copy in copies:
                assert copy.programs.job("sender").wait(0) is None
            with sock:
                got = 0
                while got < count:
                    data = sock.recv(1 << 20)
                    assert data
                    got += len(data)
                job.kill()
                assert (sock.recv(1), got) == (b"", count)
            listener.setblocking(False)
            with pytest.raises(BlockingIOError):
                listener.accept()

    def test_commits_while_much_comes_in(self, outside: Outside, life: Life) -> None:
        listener = socket.create_server((HOST, 0))
        session = life.begin(network="outbound")
        port = listener.getsockname()[1]
        job = session.spawn("receiver", ["python3", "-c", _RECEIVER, HOST, str(port)])
        assert heard(job) == "connected"
        sock, _ = listener.accept()
        enough = threading.Event()
        sent, found = 0, hashlib.sha256()

        def send() -> None:
            nonlocal sent
            piece = bytes(range(256)) * 256
            while not enough.is_set():
                sock.sendall(piece)
                found.update(piece)
                sent += len(piece)

        thread = threading.Thread(target=send)
        thread.start()
        try:
            for number in range(8):
                session.commit(f"moment {number}")
            (copy,) = session.fork(1)
        finally:
            enough.set()
            thread.join()
            sock.close()
            listener.close()
        assert job.wait(WAIT) == 0
        assert job.logs().splitlines()[-1].decode() == f"{sent} {found.hexdigest()}"
        assert copy.programs.job("receiver").wait(WAIT) == 0
        assert copy.programs.job("receiver").logs().endswith(f"error {_NOT_CONNECTED}\n".encode())

    def test_the_commit_records_its_outside_connections(self, outside: Outside, life: Life) -> None:
        port = outside.echo()
        session = life.begin(network="outbound")
        job = session.spawn("talker", ["python3", "-c", _TALKER, HOST, str(port)], stdin=True)
        assert heard(job) == "connected"
        session.commit("connected")
        carried = carried_of(session)
        assert carried.outlet
        (one,) = carried.outside
        assert (one.pid, one.peer, one.door) == (job.pid, f"{HOST}:{port}", False)
        assert one.local.startswith("10.0.2.100:")


class TestInside:
    @pytest.mark.parametrize("at", ["127.0.0.1", "10.0.2.100"])
    def test_connections_inside_the_machine_continue_in_a_copy(
        self, outside: Outside, life: Life, at: str
    ) -> None:
        session = life.begin(network="outbound")
        job = session.spawn("pair", ["python3", "-c", _INNER, at], stdin=True)
        assert heard(job) == "connected"
        commit = session.commit("a pair")
        (copy,) = session.fork(1)
        assert copy.machine.losses == []
        assert ask(copy.programs.job("pair"), "copy") == "through copy"
        assert ask(job, "original") == "through original"
        life.kill()
        session = life.hub.session(session.name)
        assert session.restore(commit.oid).files.losses == []
        assert ask(session.programs.job("pair"), "restored") == "through restored"


class TestThroughADoor:
    def test_a_client_of_the_host_stays_with_the_original(self, life: Life) -> None:
        session = life.begin()
        job = session.spawn("server", ["python3", "-c", _SERVER])
        assert heard(job) == "listening"
        at = session.programs.expose(3000)
        with socket.create_connection(("127.0.0.1", at)) as client:
            file = client.makefile("rb")
            client.sendall(b"one\n")
            assert file.readline() == b"echo one\n"
            session.commit("with a client")
            (one,) = carried_of(session).outside
            assert (one.pid, one.local, one.door) == (job.pid, "127.0.0.1:3000", True)
            (copy,) = session.fork(1)
            (loss,) = copy.machine.losses
            assert (loss.what, loss.path, loss.pid) == ("connection", "127.0.0.1:3000", job.pid)
            assert "exposed" in loss.why
            assert (
                heard(copy.programs.job("server"), len("listening\n")) == f"error {_NOT_CONNECTED}"
            )
            client.sendall(b"two\n")
            assert file.readline() == b"echo two\n"
        with socket.create_connection(("127.0.0.1", copy.programs.expose(3000))) as client:
            client.sendall(b"three\n")
            assert client.makefile("rb").readline() == b"echo three\n"


def test_a_record_of_an_earlier_release_decodes_without_connections() -> None:
    job = JobInfo(1, "web", "service", 7, ["sleep"], "/", None, True, 0.5, None)
    old = encode([["/data"], [job]])
    assert decode(RunningServices, old) == RunningServices(["/data"], [job])
    new = RunningServices(
        ["/data"], [job], True, [ExternalConnection(7, "curl", "10.0.2.100:1", "192.0.2.1:80")]
    )
    assert decode(RunningServices, encode(new)) == new


def test_a_failed_dump_opens_the_network_outlet_again(outside: Outside, life: Life) -> None:
    """A dump that fails lets what is outside in again."""
    port = outside.echo()
    session = life.begin(network="outbound")
    job = session.spawn("talker", ["python3", "-c", _TALKER, HOST, str(port)], stdin=True)
    assert heard(job) == "connected"
    with pytest.raises(ZeroDivisionError), machine_of(session)._live_process.outbound.paused():
        raise ZeroDivisionError
    assert ask(job, "on") == "echo on"
