"""The driver of a swarm, to be killed anywhere: begins it, or goes on with it, to its end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.crash.saying import Tell
from tests.swarm import tasks

import ortet

NAME = "s"
N = 5


def prepare(base: Path) -> None:
    (base / "work").mkdir()
    (base / "work/a").write_text("before")
    with (
        ortet.open(base / "store") as hub,
        hub.session(NAME, workspace=base / "work", engine="folder") as s,
    ):
        s.note("marks", str(base / "marks"))
        s.commit("golden")


def swarm(base: Path, tell: Tell, *, name: str, keep: Any, files: bool) -> None:
    """Tells each state it sees."""
    task: Any = tasks.marked if not files else "echo $ORTET_ATTEMPT | tee mine-$ORTET_ATTEMPT"
    with ortet.open(base / "store") as hub, hub.session(NAME) as s:
        result = s.swarm(
            task,
            n=N,
            keep=keep,
            name=name,
            harvest=True,
            progress=lambda found: tell("seen", found.count("done"), found.state),
        )
        scores = [one.score for one in result.attempts]
        tell("result", result.state, result.kept, scores, [one.error for one in result.attempts])


def block(base: Path, tell: Tell, *, interrupted: Any, stop_when: float | None) -> None:
    """Attempts of which all but the first never end."""
    with ortet.open(base / "store") as hub, hub.session(NAME) as s:
        result = s.swarm(
            tasks.block,
            n=4,
            name="block",
            interrupted=interrupted,
            stop_when=stop_when,
            progress=lambda found: tell("seen", found.count("done"), found.state),
        )
        states = [one.reason or one.state for one in result.attempts]
        tell("result", *states)


VERBS: dict[str, Callable[..., None]] = {"swarm": swarm, "block": block}
