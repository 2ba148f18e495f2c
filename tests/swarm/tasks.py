"""Tasks of attempts, which other processes import by name."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from ortet.sessions.session import Session


def number(session: Session, i: int) -> int:
    """The last is the best."""
    session.say("assistant", f"attempt {i}")
    return i


def write(session: Session, i: int) -> float:
    """A file of its own, and one that all write."""
    session.run(f"echo {i} > mine-{i}; echo {i} > all")
    session.learn(f"learned by {i}", about="the matter")
    return float(i)


def learn(session: Session, i: int) -> int:
    session.learn(f"{i} is the answer", about="the answer")
    session.lesson(f"lesson {i}")
    return i


def own_process(session: Session, i: int) -> list[int]:
    return [os.getpid(), os.getppid(), os.getsid(0)]


def nothing(session: Session, i: int) -> None:
    return None


def bad_score(session: Session, i: int) -> object:
    return [float("nan"), "no number", float("inf"), 4.0][i]


def raise_score(session: Session, i: int) -> float:
    if i == 0:
        raise ValueError("no idea")
    return 1.0


def fail(session: Session, i: int) -> int:
    """Each in another way; the last is fine."""
    if i == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if i == 1:
        raise RuntimeError("it went wrong")
    if i == 2:
        os._exit(7)
    return i


def hang(session: Session, i: int) -> int:
    """The first never ends, and what it started neither; nor does what that has left behind."""
    if i == 0:
        here, long = session.conversation.notes()["here"], session.conversation.notes()["long"]
        subprocess.Popen(["sleep", str(long)], start_new_session=True)
        begun = Path(str(here)) / "begun"
        session.run(
            f"(setsid sleep {long} &) ; echo; sleep {long}", output=lambda *_: begun.touch()
        )
    return i


def leave_behind(session: Session, i: int) -> int:
    subprocess.Popen(["sleep", str(session.conversation.notes()["long"])], start_new_session=True)
    return i


def block(session: Session, i: int) -> int:
    """All but the first wait for ever, and say where they do."""
    if i and "marks" in session.conversation.notes():
        with Path(str(session.conversation.notes()["marks"])).open("a") as file:
            file.write(f"pid {os.getpid()}\n")
    while i:
        signal.pause()
    return i


def spend(session: Session, i: int) -> int:
    session.spend(usd=0.5 if i else 2.0)
    return i


def spend_some(session: Session, i: int) -> float:
    session.spend(usd=0.1)
    return session.accounting.budget_left()["usd"]


def marked(session: Session, i: int) -> int:
    """Leaves a line where all of them do, twice: that it began, and that it is done."""
    file = Path(str(session.conversation.notes()["marks"]))
    for word in ("began", "done"):
        fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(fd, f"{word} {i}\n".encode())
        os.close(fd)
    session.learn(f"learned {i}")
    return i


class Adder:
    """A task with something to go with it."""

    def __init__(self, more: int) -> None:
        self.more = more

    def __call__(self, session: Session, i: int) -> int:
        return i + self.more
