"""The driver's end of the server: attempts are started, awaited and stopped."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from ortet.errors import Invalid, Unavailable
from ortet.machine import wire
from ortet.machine.polling import readable
from ortet.session.swarming import Halt
from ortet.swarm.attempt import Job
from ortet.swarm.travel import Work, surroundings

_START = 120.0
"""Seconds: the modules of a task may be heavy."""


class Crew:
    """One server process, for one swarm, that loads what is needed meanwhile: see `ready`. Closing
    it ends every attempt that still runs."""

    def __init__(
        self, opener: Callable[..., Any], task: Work, score: Work | None, *, lends: bool
    ) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ortet.swarm.server", str(number)],
                pass_fds=[number],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._sock = ours
        self._ready = False
        try:
            self._say(
                {
                    "opener": f"{opener.__module__}:{opener.__qualname__}",
                    "task": msgspec.to_builtins(task),
                    "score": msgspec.to_builtins(score),
                    "around": surroundings(task, score),
                    "lends": lends,
                }
            )
        except BaseException:
            self.close()
            raise

    def ready(self) -> None:
        """Wait until it has loaded the task; Invalid("bad_task") when it cannot."""
        if self._ready:
            return
        self._sock.settimeout(_START)
        try:
            reply, _ = wire.receive(self._sock)
        except (wire.Closed, TimeoutError) as error:
            raise _gone() from error
        self._sock.settimeout(None)
        self._ready = True
        if "error" in reply:
            raise Invalid(
                "bad_task",
                f"another process cannot load the task ({reply['error']}): it must be possible to "
                "import its module there; what a script does by itself goes below "
                "`if __name__ == '__main__':`",
            )

    def start(self, job: Job) -> None:
        self._say({"job": msgspec.to_builtins(job)})

    def stop(self, i: int) -> None:
        """End an attempt with all it has started; `wait` tells when it is gone."""
        self._say({"stop": i})

    def wait(self, seconds: float | None, halt: Halt | None = None) -> tuple[int, int] | None:
        """The next attempt that has ended, and its exit code; None when the time is over, or there
        is a word to the driver."""
        both = [self._sock] if halt is None else [self._sock, halt]
        if self._sock.fileno() not in readable(*both, seconds=seconds):
            return None
        try:
            message, _ = wire.receive(self._sock)
        except wire.Closed as error:
            raise _gone() from error
        return message["ended"], message["code"]

    def close(self) -> None:
        self._sock.close()
        self._process.wait()

    def _say(self, message: dict[str, Any]) -> None:
        try:
            wire.send(self._sock, message)
        except (wire.Closed, OSError) as error:
            raise _gone() from error


def _gone() -> Unavailable:
    return Unavailable(
        "no_server",
        "the process that starts attempts has ended: call the swarm again with its name to go on",
    )
