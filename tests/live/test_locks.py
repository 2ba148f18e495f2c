"""Locks on files that their holder has also mapped: CRIU alone would lose them."""

from __future__ import annotations

import platform
from contextlib import suppress
from pathlib import Path

import pytest
from tests.live.lives import Life, machine_of, told, until

from ortet.errors import Conflict
from ortet.machines.live.criu import file_locks
from ortet.sessions.session import Session

_HOLDER = """
import fcntl, mmap, os, signal, time
file = open("data", "wb+")
file.truncate(8192)
memory = mmap.mmap(file.fileno(), 8192)
fcntl.lockf(file, fcntl.LOCK_EX, 10, 100)
reading = open("data", "rb")
fcntl.lockf(reading, fcntl.LOCK_SH, 0, 4000)
number = 0
signal.signal(signal.SIGUSR1, lambda *_: open("told", "w").close())
open("holding", "w").close()
while True:
    number += 1
    memory[:8] = number.to_bytes(8, "little")
    time.sleep(0.01)
"""
_WAITER = """
import fcntl
file = open("data", "rb+")
open("waiting", "w").close()
fcntl.lockf(file, fcntl.LOCK_EX, 1, 105)
open("got", "w").close()
"""


def locks(session: Session) -> set[file_locks.PosixLock]:
    """Of its holder, as the kernel has them."""
    pid = session.machine.programs.job("holder").pid
    inside = dict(file_locks._machine_processes(machine_of(session)._live_process.pid))
    return set(file_locks._locks_of(inside[pid]))


def test_a_copy_has_the_locks_that_its_original_has(life: Life) -> None:
    session = life.begin()
    session.spawn("holder", ["python3", "-c", _HOLDER])
    until(session, "[ -e holding ]")
    session.spawn("waiter", ["python3", "-c", _WAITER])
    session.spawn("stopped", ["sleep", "1000"])
    until(session, "[ -e waiting ]")
    stopped = session.machine.programs.job("stopped").pid
    told(session, f"kill -STOP {stopped}")
    held = locks(session)
    assert {(lock.write, lock.first, lock.last) for lock in held} == {
        (True, 100, 109),
        (False, 4000, None),
    }
    commit = session.commit("held")
    (fork,) = session.fork(1)
    (grandchild,) = fork.fork(1)
    for copy in (session, fork, grandchild):
        assert locks(copy) == held
    life.kill()
    restored = life.hub.session(session.name)
    restored.restore(commit.oid)
    assert locks(restored) == held

    # it goes on, it still hears signals, who waited still waits, who stood still stands
    pid = restored.machine.programs.job("holder").pid
    before = told(restored, "head -c 8 data | od -An -tu8")
    until(restored, f"[ $(head -c 8 data | od -An -tu8) -gt {before} ]")
    told(restored, f"kill -USR1 {pid}")
    until(restored, "[ -e told ]")
    assert told(restored, f"ps -o state= -p {stopped}") == "T"
    assert told(restored, "ls got 2>/dev/null || echo none") == "none"
    told(restored, f"kill {pid}")
    until(restored, "[ -e got ]")


def test_a_copy_that_cannot_have_its_locks_does_not_run(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = life.begin()
    mark = f"# of {life.project}"  # another test may run beside this one
    session.spawn("holder", ["python3", "-c", _HOLDER + mark])
    until(session, "[ -e holding ]")
    session.commit("held")
    before = set(Path("/proc").glob("[0-9]*"))
    with monkeypatch.context() as patch:
        patch.setattr(platform, "machine", lambda: "another")
        with pytest.raises(Conflict, match="lock on a file that it has mapped") as refused:
            session.fork(1)
    assert refused.value.kind == "cannot_restore"
    pid = session.machine.programs.job("holder").pid
    told(session, f"kill -0 {pid}")
    for place in set(Path("/proc").glob("[0-9]*")) - before:
        with suppress(FileNotFoundError, ProcessLookupError):  # others come and go
            assert mark.encode() not in (place / "cmdline").read_bytes()
    (fork,) = session.fork(1)
    assert locks(fork) == locks(session)
