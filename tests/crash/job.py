"""The program of a process that a crash test may kill: does one job and tells what is durable.

`tests.crash.running` forks it from a warm interpreter. The fault is armed in this process only:
processes that the job starts inherit no ORTET_FAULT, so the kill always hits the job itself.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.crash import session_toil, session_verbs, store_verbs, swarming
from tests.crash.saying import Tell

from ortet._util import failpoints

JOBS: dict[str, Callable[..., None]] = {
    "toil": session_toil.toil,
    "race": session_toil.race,
    **store_verbs.VERBS,
    **session_verbs.VERBS,
    **swarming.VERBS,
}


class _Shown:
    """Takes the place of the name of an armed fault; tells each point it is compared with."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell

    def __eq__(self, other: object) -> bool:
        self._tell("point", other)
        return False

    __hash__ = None  # type: ignore[assignment]


class _Teller:
    """Takes the place of an armed fault. Modules have imported `reach` by name before the fork,
    so the points are seen through the fault that `reach` looks at, not by replacing `reach`."""

    def __init__(self, tell: Tell) -> None:
        self.name = _Shown(tell)


def main() -> None:
    """Arm the fault, do the job, end the process. The only argument is the job as JSON."""
    job = json.loads(sys.argv[1])
    os.set_inheritable(job["fd"], False)  # the pipe ends when this process ends
    tell = Tell(job["fd"])
    armed: Any = None
    if job["fault"]:
        armed = failpoints.parse(job["fault"])
    elif job["points"]:
        armed = _Teller(tell)
    vars(failpoints)["_armed"] = lambda: armed
    JOBS[job["verb"]](Path(job["base"]), tell, **job["args"])
    tell("done")
    os._exit(0)  # all is closed; the end of an interpreter takes as long as a small job
