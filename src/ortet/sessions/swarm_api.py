"""What a swarm is asked for and gives back; `config` hands the hub who runs it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from ortet.journal.state.merge import Contradiction
from ortet.journal.state.records import Fact

if TYPE_CHECKING:
    from ortet.history.refs import Ref
    from ortet.sessions.reader import SessionReader
    from ortet.sessions.session import Session

Task = Callable[["Session", int], Any] | str | Sequence[str]
"""A function, called with the fork and the number of the attempt, or a command for its machine."""

AttemptState = Literal["waiting", "running", "done", "failed", "stopped"]
"""Of an attempt. Stopped: it was not to be ended, or begun, as enough was found."""

Losers = Literal["drop", "keep"]
Interrupted = Literal["again", "count"]


class Attempt(msgspec.Struct, frozen=True):
    """One attempt of a swarm. `score` is None unless it is done; `reason` says why it failed."""

    i: int
    state: AttemptState = "waiting"
    score: float | None = None
    session: str = ""  # the name of its fork, which is gone when it was dropped
    id: str = ""
    commit: str = ""  # what it ended with; in the reflog when it was dropped
    value: Any = None  # what the task returned, where that is plain data
    reason: str = ""  # "error", "score", "crash", "timeout", "budget", "stopped", "lost", ...
    error: str = ""
    seconds: float = 0.0
    tries: int = 0
    kept: bool = False


class SwarmResult(msgspec.Struct, frozen=True):
    """A swarm as it is now. `contradictions` are between what its session knows and what was
    harvested: both are known now."""

    name: str
    session: str
    commit: str  # where all attempts began
    state: str  # "running", "chosen", "kept", "harvested", "finished"
    attempts: list[Attempt] = []
    kept: list[int] = []  # best first
    harvested: list[Fact] = []
    contradictions: list[Contradiction] = []
    conflicts: list[str] = []  # files that merged attempts changed in different ways

    @property
    def ranked(self) -> list[Attempt]:
        """Those with a score, best first; of equals, the one that was numbered first."""
        scored = [one for one in self.attempts if one.score is not None]
        return sorted(scored, key=lambda one: (-(one.score or 0.0), one.i))

    @property
    def best(self) -> Attempt | None:
        return next(iter(self.ranked), None)

    @property
    def winners(self) -> list[Attempt]:
        """Those that were kept, best first."""
        return [self.attempts[i] for i in self.kept]

    def count(self, state: AttemptState) -> int:
        return sum(one.state == state for one in self.attempts)


ProgressCallback = Callable[[SwarmResult], object]


class SwarmStopSignal:
    """A word to whoever drives a swarm, from any thread: `stop` when enough was found, `leave` when
    it is to let go, so that another can go on with it. The first word counts."""

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
        """Can be read once there is a word."""
        return self._pipe_fds[0]

    def stop(self) -> None:
        self._set_request("stop")

    def detach(self) -> None:
        self._set_request("leave")

    def _set_request(self, request: Literal["stop", "leave"]) -> None:
        with self._lock:
            if not self.request:
                self.request = request
                os.write(self._pipe_fds[1], b".")


class SwarmRequest(msgspec.Struct, frozen=True):
    """What a caller asks of a swarm, as given; see Session.swarm."""

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


class SwarmRunner(Protocol):
    """Runs swarms; `config` hands one to the hub, so that sessions need not know how."""

    def run(self, session: Session, wish: SwarmRequest) -> SwarmResult:
        """See Session.swarm."""
        ...

    def all(self, session: SessionReader) -> list[SwarmResult]:
        """The swarms of a session, oldest first, as they are now."""
        ...

    def get(self, session: SessionReader, name: str) -> SwarmResult:
        """NotFound("no_swarm") when it has none of this name."""
        ...


def swarm_rows(session: str) -> str:
    """The kind of rows that hold the swarms of a session."""
    return f"swarm/{session}"


def swarm_topic(session: str) -> str:
    """What whoever waits for news of the swarms of a session listens to."""
    return f"swarm:{session}"


def attempt_rows(swarm: str) -> str:
    """The kind of rows that hold the attempts of a swarm."""
    return f"attempt/{swarm}"
