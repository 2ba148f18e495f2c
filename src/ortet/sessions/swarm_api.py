"""Request and result types of swarms, with the names of their rows and topics."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ortet.journal.state.merge import Contradiction
from ortet.journal.state.records import Fact

if TYPE_CHECKING:
    from ortet.history.refs import Ref

AttemptState = Literal["waiting", "running", "done", "failed", "stopped"]
"""State of an attempt. "stopped" means not started or cancelled, because enough was found."""

Losers = Literal["drop", "keep"]
Interrupted = Literal["again", "count"]


class Attempt(msgspec.Struct, frozen=True):
    """One attempt of a swarm.

    Attributes:
        i: Number of the attempt, from 0.
        state: State of the attempt.
        score: Score, or None unless the attempt is done.
        session: Name of its fork. The fork no longer exists if it was dropped.
        id: Id of its fork.
        commit: Its last commit. It is in the reflog if the fork was dropped.
        value: Result of the task, if that is plain data.
        reason: Why it failed: "error", "score", "crash", "timeout", "budget", "stopped", "lost" and
            others.
        error: Text of the error.
        seconds: Seconds that it ran.
        tries: How often it was started.
        kept: True if it was kept as a session or adopted.
    """

    i: int
    state: AttemptState = "waiting"
    score: float | None = None
    session: str = ""
    id: str = ""
    commit: str = ""
    value: Any = None
    reason: str = ""
    error: str = ""
    seconds: float = 0.0
    tries: int = 0
    kept: bool = False


class SwarmResult(msgspec.Struct, frozen=True):
    """A swarm as it is now.

    Attributes:
        name: Name of the swarm.
        session: Name of its session.
        commit: The commit where all attempts started.
        state: "running", "chosen", "kept", "harvested" or "finished".
        attempts: All attempts.
        kept: Numbers of the attempts that were kept, best first.
        harvested: Facts that were learned from the losers.
        contradictions: Contradictions between facts of its session and harvested facts. Both are
            kept.
        conflicts: Files that merged attempts changed in different ways.
    """

    name: str
    session: str
    commit: str
    state: str
    attempts: list[Attempt] = []
    kept: list[int] = []
    harvested: list[Fact] = []
    contradictions: list[Contradiction] = []
    conflicts: list[str] = []

    @property
    def ranked(self) -> list[Attempt]:
        """Return the attempts with a score, best first, and by number if equal."""
        scored = [one for one in self.attempts if one.score is not None]
        return sorted(scored, key=lambda one: (-(one.score or 0.0), one.i))

    @property
    def best(self) -> Attempt | None:
        """Return the attempt with the highest score, or None."""
        return next(iter(self.ranked), None)

    @property
    def winners(self) -> list[Attempt]:
        """Return the kept attempts, best first."""
        return [self.attempts[i] for i in self.kept]

    def count(self, state: AttemptState) -> int:
        """Return the number of attempts in a state."""
        return sum(one.state == state for one in self.attempts)


ProgressCallback = Callable[[SwarmResult], object]


class SwarmStopSignal:
    """Lets any thread end a running swarm.

    `stop` ends the swarm because enough was found. `detach` leaves it so that another process can
    continue it. The first call counts.
    """

    def __init__(self) -> None:
        self.request: Literal["", "stop", "leave"] = ""
        self._pipe_fds = os.pipe2(os.O_CLOEXEC)
        self._lock = Lock()

    def __enter__(self) -> SwarmStopSignal:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.request = self.request or "leave"
            for end in self._pipe_fds:
                os.close(end)

    def fileno(self) -> int:
        """Return a file descriptor that is readable after a request."""
        return self._pipe_fds[0]

    def stop(self) -> None:
        """End the swarm with the attempts that are done."""
        self._set_request("stop")

    def detach(self) -> None:
        """Leave the swarm, so that another process can continue it."""
        self._set_request("leave")

    def _set_request(self, request: Literal["stop", "leave"]) -> None:
        with self._lock:
            if not self.request:
                self.request = request
                os.write(self._pipe_fds[1], b".")


class SwarmRequest(msgspec.Struct, frozen=True):
    """The arguments of `Session.swarm`, unchecked."""

    task: Any = None
    n: Any = 8
    score: Any = None
    keep: Any = 1
    parallel: Any = 2
    budget: Mapping[str, Any] | None = None
    stop_when: Any = None
    timeout: Any = None
    harvest: Any = False
    losers: Any = "drop"
    name: Any = None
    at: Ref | None = None
    interrupted: Any = "again"
    on: Any = None
    needs: Any = None
    progress: Any = None
    halt: SwarmStopSignal | None = None


def swarm_rows(session: str) -> str:
    """Return the row kind of the swarms of a session."""
    return f"swarm/{session}"


def swarm_topic(session: str) -> str:
    """Return the signal topic for changes of the swarms of a session."""
    return f"swarm:{session}"


def attempt_rows(swarm: str) -> str:
    """Return the row kind of the attempts of a swarm."""
    return f"attempt/{swarm}"
