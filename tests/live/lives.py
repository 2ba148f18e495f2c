"""What every program goes through here: committed while it runs, forked twice, killed, restored."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.fixtures.waiting import WAIT

import ortet
from ortet.hub.hub import Hub
from ortet.machines.jobs import Job
from ortet.machines.live.machine import LiveMachine
from ortet.sessions.session import Session

Use = Callable[[Session, str], None]
"""Works with the program of one copy. The text is the copy's own: nobody else may see it."""


class Life:
    """A store, a project directory, and a hub that can be killed with all its machines."""

    def __init__(self, place: Path) -> None:
        self.project = place / "project"
        self.project.mkdir()
        self.store = place / "store"
        self.hub = ortet.open(self.store)

    def begin(self, name: str = "work", *, network: str | None = None) -> Session:
        return self.hub.session(
            name, workspace=self.project, engine="criu", files="private", network=network
        )

    def kill(self) -> Hub:
        """End every process of every machine at once, and the hub; returns a new hub."""
        for pid in keepers(self.store):
            os.kill(pid, signal.SIGKILL)
        self.hub.close()
        self.hub = ortet.open(self.store)
        return self.hub

    def all_of_it(self, session: Session, use: Use) -> Session:
        """Commit, fork twice, use all three by turns, kill all, restore, use that and return it."""
        commit = session.commit("running")
        first, second = session.fork(2)
        copies = {"first": first, "second": second, "original": session}
        for _ in range(2):  # what one does in the first round must not show in another in the next
            for mark, copy in copies.items():
                use(copy, mark)
        name = session.name
        self.kill()
        restored = self.hub.session(name)
        restored.restore(commit.oid)
        use(restored, "restored")
        return restored

    def close(self) -> None:
        self.hub.close()


def keepers(store: Path) -> Iterator[int]:
    """The processes that the machines of a store descend from, of those that this process began."""
    own, area = str(os.getpid()).encode(), os.fsencode(store)
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                parent = (place / "stat").read_bytes().rpartition(b")")[2].split()[1]
                command = (place / "cmdline").read_bytes()
            except OSError:
                continue
            if parent == own and b"/live_supervisor.py" in command and area in command:
                yield int(place.name)


def machine_of(session: Session) -> LiveMachine:
    machine = session.machine.files.machine
    assert isinstance(machine, LiveMachine)
    return machine


def until(session: Session, command: str) -> None:
    """Repeat a shell command inside until it succeeds; its last words when it never does."""
    loop = f"until ({command}) >/dev/null 2>&1; do sleep 0.05; done"
    result = session.run(["bash", "-c", loop], timeout=WAIT)
    if result.exit_code != 0:
        raise AssertionError(f"never: {command}: {session.run(['bash', '-c', command])}")


def told(session: Session, command: str) -> str:
    """What a command prints; it must succeed."""
    result = session.run(["bash", "-c", command], timeout=WAIT)
    assert result.exit_code == 0, result
    return result.stdout.strip()


def ask(job: Job, line: str) -> str:
    """A line to the standard input of a program; the line it answers."""
    cursor = job.read(0).cursor
    job.write(f"{line}\n".encode())
    return heard(job, cursor)


def heard(job: Job, cursor: int = 0) -> str:
    """The next line it prints after `cursor`."""
    seen = b""
    while b"\n" not in seen:
        piece = job.read(cursor, WAIT)
        assert piece.data, (seen, job.logs()[-2000:])
        seen, cursor = seen + piece.data, piece.cursor
    return seen.decode().strip()
