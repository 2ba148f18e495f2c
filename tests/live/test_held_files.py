"""Files that no commit takes, held by processes that one does."""

from __future__ import annotations

import pytest
from tests.fixtures.waiting import WAIT
from tests.live.lives import Life, told, until

from ortet.errors import Conflict
from ortet.sessions.session import Session

_IGNORED = "*.log\nbuild/\nsize > 1MB *.bin\n"


@pytest.fixture
def session(life: Life) -> Session:
    (life.project / ".ortetignore").write_text(_IGNORED)
    (life.project / "kept").mkdir()
    (life.project / "kept" / "file").write_text("state\n")
    return life.begin()


def test_a_log_that_is_ignored_goes_on_in_each_copy(life: Life, session: Session) -> None:
    loop = "exec 5>>kept/out.log; while sleep 0.02; do echo line >&5; done"
    session.spawn("logger", ["bash", "-c", loop])
    told(session, "echo nobody has it open > other.log")
    until(session, "[ $(wc -l < kept/out.log) -gt 5 ]")

    def use(copy: Session, mark: str) -> None:
        lines = int(told(copy, "wc -l < kept/out.log"))
        assert lines > 5  # with what was in it
        until(copy, f"[ $(wc -l < kept/out.log) -gt {lines} ]")
        told(copy, f"echo {mark} >> kept/out.log")
        others = {"first", "second", "original", "restored"} - {mark}
        assert not others & set(told(copy, "cat kept/out.log").split())
        assert told(copy, "cat kept/file") == "state"
        # what nobody has open goes along with forks, and stays at a restore
        assert told(copy, "cat other.log") == "nobody has it open"

    life.all_of_it(session, use)


@pytest.mark.parametrize(
    "place", ["build/deep", "/root/.cache/live-test/deep", "/dev/live-test", "/var/cache/live-test"]
)
def test_a_server_in_an_uncommitted_directory_continues_in_each_copy(
    session: Session, place: str
) -> None:
    """Open, mapped, watched, listened at, and stood in."""
    program = """
import mmap, os, select, socket, subprocess, sys, time
file = open("mapped", "w+b"); file.truncate(4096)
memory = mmap.mmap(file.fileno(), 4096); file.close()
server = socket.socket(socket.AF_UNIX); server.bind(os.path.abspath("socket")); server.listen()
open("ready", "w").close()
while True:
    talk, _ = server.accept()
    memory[:4] = talk.recv(4)
    talk.send(memory[:4] + os.getcwd().encode()); talk.close()
"""
    ask = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect('socket'); "
        "s.send(sys.argv[1].encode()); print(s.recv(4000).decode())"
    )
    start = f'mkdir -p {place} && cd {place} && exec python3 -c "$0"'
    session.spawn("server", ["bash", "-c", start, program])
    until(session, f"[ -e {place}/ready ]")
    session.commit("held")
    for number, copy in enumerate(session.fork(2)):
        said = told(copy, f'cd {place} && python3 -c "{ask}" num{number}; head -c 4 mapped')
        where = place if place.startswith("/") else f"{session.machine.row.directory}/{place}"
        assert said.split() == [f"num{number}{where}", f"num{number}"]
        left_out = place.startswith(("/root", "/dev"))  # and held by nobody
        assert copy.run(f"cat {place}/ready").exit_code == (1 if left_out else 0)


def test_a_watch_on_an_uncommitted_directory_works_in_each_copy(session: Session) -> None:
    watcher = "const fs = require('fs'); fs.watch('build', (e, name) => console.log('saw ' + name))"
    told(session, "mkdir build")
    session.spawn("watcher", ["node", "-e", watcher], env={"UV_USE_IO_URING": "0"})
    until(session, "touch build/first; grep -q inotify /proc/$(pgrep -x node)/fdinfo/*")
    session.commit("watching")
    for copy in session.fork(2):
        told(copy, "touch build/seen")
        seen, cursor = b"", 0
        while b"saw seen" not in seen:
            piece = copy.programs.job("watcher").read(cursor, WAIT)
            assert piece.data, seen
            seen, cursor = seen + piece.data, piece.cursor


def test_an_open_file_over_the_size_limit_is_copied_to_a_fork(session: Session) -> None:
    told(session, "head -c 2000000 /dev/urandom > open.bin; cp open.bin closed.bin")
    known = told(session, "sha256sum < open.bin")
    job = session.spawn("reader", ["bash", "-c", "exec 5<open.bin; sleep 1000"])
    until(session, f"ls -l /proc/{job.pid}/fd | grep open.bin")
    session.commit("open")
    (copy,) = session.fork(1)
    assert told(copy, "sha256sum < open.bin") == known
    assert told(copy, "sha256sum < closed.bin") == known


def test_commit_with_a_huge_open_file_is_refused_and_names_it(session: Session) -> None:
    told(session, "truncate -s 300M huge.log")
    session.spawn("reader", ["bash", "-c", "exec 5<huge.log; while sleep 0.02; do date > at; done"])
    until(session, "[ -s at ]")
    with pytest.raises(Conflict) as caught:
        session.commit("no")
    assert caught.value.kind == "cannot_freeze"
    assert "huge.log" in str(caught.value)
    told(session, "rm at")
    until(session, "[ -s at ]")
    session.programs.job("reader").kill()
    session.commit("yes")
