"""Programs of users, run as processes. Arguments: store, job, and what the job needs."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from ortet.config.environment import open_hub
from ortet.errors import Refused
from ortet.hub.hub import Hub
from ortet.sessions.session import Session


def pay(amount: int, to: str) -> dict[str, int]:
    """The deed: a line in a file, so that doing it twice shows."""
    with Path(to).open("a") as file:
        file.write(f"{amount}\n")
    return {"paid": amount}


def say(line: object) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def wait_for_approval(hub: Hub, to: str) -> None:
    """Ask, tell the parent, then wait as a living process does, until it is killed."""
    s = hub.session("s")
    try:
        _pay(s, to)
    except Refused as error:
        say(error.details["id"])
        signal.pause()


def go_on(hub: Hub, to: str) -> None:
    with hub.session("s") as s:
        say(_pay(s, to))


def stay(hub: Hub, to: str) -> None:
    """Hold the session; take what comes in when the parent sends a line."""
    with hub.session("s") as s:
        say("open")
        sys.stdin.readline()
        say(_pay(s, to) if to else s.commit("took it in").oid)


def die_paying(hub: Hub, to: str) -> None:
    s = hub.session("s")

    def pay_and_die() -> None:
        pay(5, to)
        os.kill(os.getpid(), signal.SIGKILL)

    s.act(pay_and_die, name="pay", key="invoice-7", replay="once", why="due")


def keep_paying(hub: Hub, to: str) -> None:
    """In the middle of a deed until the parent sends a line."""

    def pay_slowly() -> None:
        say("begun")
        sys.stdin.readline()

    with hub.session("s") as s:
        s.act(pay_slowly, name="pay", why=to)


def _pay(s: Session, to: str) -> object:
    return s.act(
        pay, 5, to, name="pay", key="invoice-7", replay="once", why="due", approve="it is 5"
    )


if __name__ == "__main__":
    with open_hub(sys.argv[1]) as opened:
        globals()[sys.argv[2]](opened, sys.argv[3])
