"""Forks begin while their commit is being stored: what is left of them when that fails."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.fixtures.waiting import eventually
from tests.live.lives import Life, keepers, machine_of, told, until

from ortet.errors import Unavailable
from ortet.machines.live import machine
from ortet.machines.live.machine import LiveMachine
from ortet.machines.live.prefork import PreforkedMachines
from ortet.sessions.session import Session

# The number is replaced whole, so that who reads it never finds it empty; and by one process,
# since what a shell forks is counted as another counter until it executes its command.
_COUNTER = """
import itertools, os, time
for n in itertools.count(1):
    with open("m", "w") as file:
        print(n, file=file)
    os.replace("m", "n")
    time.sleep(0.01)
# of"""


@pytest.fixture
def session(life: Life) -> Session:
    session = life.begin()
    session.spawn("counter", ["python3", "-c", f"{_COUNTER} {life.project}"])
    until(session, "[ -s n ]")
    session.commit("runs")
    return session


def counters(session: Session) -> int:
    """How many of this test there are on this host."""
    found, mark = 0, f"# of {session.machine.row.directory}".encode()
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (place / "cmdline").read_bytes():
                found += (place / "stat").read_text().split(")")[-1].split()[0] != "Z"
        except OSError:
            continue
    return found


def test_preforked_machines_are_removed_when_the_commit_fails(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines = machine_of(session)._files.home.path.parent
    before, running = set(machines.iterdir()), counters(session)
    begun = []

    def full(*_: object, **__: object) -> None:
        heirs = machine_of(session)._prefork._started
        assert heirs is not None
        heirs.started.result()
        begun.append(counters(session))
        raise Unavailable("disk_full", "no space is left")

    with monkeypatch.context() as patch:
        patch.setattr(machine, "save_images", full)
        with pytest.raises(Unavailable, match="no space"):
            session.fork(2)
    assert begun == [running + 2]
    assert counters(session) == running
    assert set(machines.iterdir()) == before
    number = int(told(session, "cat n"))
    until(session, f"[ $(cat n) -gt {number} ]")
    for fork in session.fork(2):
        until(fork, f"[ $(cat n) -gt {number} ]")


def test_forks_are_started_after_the_commit_if_they_could_not_start_early(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: PreforkedMachines[LiveMachine], *_: object) -> None:
        """As when the keeper was killed just now."""

    monkeypatch.setattr(PreforkedMachines, "start", refuse)
    (fork,) = session.fork(1)
    number = int(told(fork, "cat n"))
    until(fork, f"[ $(cat n) -gt {number} ]")


def test_fork_succeeds_after_a_waiting_criu_was_killed(life: Life, session: Session) -> None:
    eventually(lambda: len(crius(life)) >= 3)  # they are begun, and nobody waits for them
    waiting = crius(life)
    assert len(waiting) == 3  # for the next commit, and for two restores
    for pid in waiting:
        with open_pidfd(pid) as fd:
            signal.pidfd_send_signal(fd, signal.SIGKILL)
            select.select([fd], [], [])
    number = int(told(session, "cat n"))
    for fork in session.fork(3):
        until(fork, f"[ $(cat n) -gt {number} ]")


def crius(life: Life) -> list[int]:
    """Those that wait until somebody needs one."""
    found = []
    for keeper in keepers(life.store):
        for pid in Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split():
            with suppress(OSError):
                if b"swrk" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(int(pid))
    return found


@contextmanager
def open_pidfd(pid: int) -> Iterator[int]:
    fd = os.pidfd_open(pid)
    try:
        yield fd
    finally:
        os.close(fd)
