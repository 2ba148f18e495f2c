"""Machines in which processes start and end all the time, as under a test runner or a build."""

from __future__ import annotations

import platform

import pytest
from tests.live.lives import Life, told, until

from ortet.errors import Conflict

_CHURN = """
while :; do
  python3 -S -c '
import os, threading, time
for _ in range(8): threading.Thread(target=time.sleep, args=(9,), daemon=True).start()
os._exit(0)'
  ls -R /etc | sort | wc -l > lines
  echo round >> rounds
done
"""
_EXIT = 60 if platform.machine() == "x86_64" else 93  # of one thread
_HEADLESS = f"""
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(1000,)).start()
open("begun", "w").close()
ctypes.CDLL(None).syscall({_EXIT}, 0)
"""
_DUE = """
import os, threading, time
for _ in range(200): threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
open("begun", "w").close()
while not os.path.exists("due"): pass
os._exit(0)
"""


@pytest.mark.slow
def test_commits_succeed_while_processes_start_and_end(life: Life) -> None:
    session = life.begin()
    for number in range(2):
        session.spawn(f"churn-{number}", ["bash", "-c", _CHURN])
    until(session, "[ -s rounds ]")
    for number in range(15):
        commit = session.commit(f"moment {number}")
    for copy in session.fork(2):
        rounds = told(copy, "wc -l < rounds")
        until(copy, f"[ $(wc -l < rounds) -gt {rounds} ]")
    life.kill()
    restored = life.hub.session(session.name)
    restored.restore(commit.oid)
    rounds = told(restored, "wc -l < rounds")
    until(restored, f"[ $(wc -l < rounds) -gt {rounds} ]")


def test_restore_succeeds_when_a_process_exits_at_once(life: Life) -> None:
    session = life.begin()
    session.run("echo due > .ortetignore")  # no state: it stays when a commit is restored
    other = session.spawn("other", "sleep 1000")
    session.spawn("due", ["python3", "-c", _DUE])
    until(session, "[ -e begun ]")
    commit = session.commit("not yet due")
    session.run("touch due")
    for _ in range(3):  # its first thread ends it while CRIU lets go of the others
        session.restore(commit.oid)
        assert told(session, f"kill -0 {other.pid}; echo $?") == "0"


@pytest.mark.slow
def test_commit_with_a_process_whose_first_thread_ended_is_refused(life: Life) -> None:
    session = life.begin()
    job = session.spawn("half", ["python3", "-c", _HEADLESS])
    session.spawn("other", "sleep 1000")
    until(session, f"[ -e begun ] && grep -q '^State:.Z' /proc/{job.pid}/status")
    with pytest.raises(Conflict) as caught:
        session.commit("no")
    assert caught.value.kind == "cannot_freeze"
    assert "first thread has ended" in str(caught.value)
    job.kill()
    session.commit("yes")
