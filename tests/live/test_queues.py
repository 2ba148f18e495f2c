"""Connections with something on its way, when a machine is committed."""

from __future__ import annotations

import pytest
from tests.live.lives import Life, ask, heard, told, until

from ortet.errors import Conflict
from ortet.sessions.session import Session

# a connection whose reader does not read, until it is told to
SLOW = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
writer = socket.create_connection(listener.getsockname())
reader, _ = listener.accept()
writer.setblocking(False)
written = 0
try:
    while written < 4_000_000:
        written += writer.send(bytes(10_000))
except BlockingIOError:
    pass
print(written, flush=True)
for line in sys.stdin:
    writer.setblocking(True)
    writer.shutdown(socket.SHUT_WR)
    print(sum(iter(lambda: len(reader.recv(1 << 16)), 0)), flush=True)
"""

# a server that is not accepting yet
LATE = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
waiting = [socket.create_connection(listener.getsockname())]
print("waits", flush=True)
for line in sys.stdin:
    waiting.append(listener.accept()[0])
    print("accepted", flush=True)
"""

LOAD = """
import urllib.request
while True:
    urllib.request.urlopen("http://127.0.0.1:3000/").read()
"""


def test_unsent_data_of_a_local_connection_arrives_in_each_copy(life: Life) -> None:
    session = life.begin()
    job = session.spawn("slow", ["python3", "-c", SLOW], stdin=True)
    written = int(heard(job))
    commit = session.commit("full")
    copies: list[Session] = [session, *session.fork(2)]
    for copy in copies:
        assert int(ask(copy.programs.job("slow"), "drain")) == written
    session.restore(commit.oid)
    assert int(ask(session.programs.job("slow"), "drain")) == written


@pytest.mark.slow
def test_a_server_under_load_is_committed(life: Life) -> None:
    session = life.begin()
    session.spawn("web", "exec python3 -m http.server 3000 --bind 127.0.0.1 2>/dev/null")
    until(session, "curl -sf 127.0.0.1:3000")
    session.spawn("load", ["python3", "-c", LOAD])
    for number in range(10):
        session.commit(f"commit {number}")
    (copy,) = session.fork(1)
    assert told(copy, "curl -s 127.0.0.1:3000")
    assert [job.code for job in session.programs.jobs()] == [None, None]


def test_commit_with_an_unaccepted_connection_is_refused_and_names_it(life: Life) -> None:
    session = life.begin()
    job = session.spawn("late", ["python3", "-c", LATE], stdin=True)
    assert heard(job) == "waits"
    with pytest.raises(Conflict, match=r"waits to be accepted.*process \d+, \S*python3 -c") as told:
        session.commit("too early")
    assert told.value.kind == "cannot_freeze"
    assert ask(job, "accept") == "accepted"
    session.commit("accepted")
