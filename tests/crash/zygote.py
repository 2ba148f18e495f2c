"""Starts processes that are to be killed: one warm parent forks each, so that it begins in
milliseconds. A job is one line of JSON on stdin, its end one line on stdout."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ortet.store import faults

from . import session_toil, session_verbs, swarming
from .saying import Tell

JOBS: dict[str, Callable[..., None]] = {
    "toil": session_toil.toil,
    "race": session_toil.race,
    **session_verbs.VERBS,
    **swarming.VERBS,
}


class _Shown:
    """Stands where the name of an armed fault would: tells each point it is compared with."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell

    def __eq__(self, other: object) -> bool:
        self._tell("point", other)
        return False

    __hash__ = None  # type: ignore[assignment]


class _Teller:
    def __init__(self, tell: Tell) -> None:
        self.name = _Shown(tell)


def work(job: dict[str, Any], fd: int) -> None:
    """In the child: arm the fault, do the job."""
    tell = Tell(fd)
    armed: Any = None
    if job["fault"]:
        armed = faults.parse(job["fault"])
    elif job["points"]:
        armed = _Teller(tell)
    vars(faults)["_armed"] = lambda: armed
    JOBS[job["verb"]](Path(job["base"]), tell, **job["args"])
    tell("done")


def watch(job: dict[str, Any], pid: int, fd: int) -> list[str]:
    """Read what the child says; kill it behind the line that was asked for."""
    said = b""
    after, delay = job["after"], job["delay"]
    while True:
        if after is not None and said.count(b"\n") >= after:
            after = None
            if delay:  # a moment somewhere inside what it does next
                select.select([], [], [], delay)
            os.kill(pid, signal.SIGKILL)
        data = os.read(fd, 65536)
        if not data:
            return said.decode().splitlines()
        said += data


def run(job: dict[str, Any]) -> dict[str, Any]:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(read)
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 0)
            os.dup2(null, 1)
            work(job, write)
            code = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)
    os.close(write)
    try:
        said = watch(job, pid, read)
    finally:
        os.close(read)
        _, status = os.waitpid(pid, 0)
    return {"code": os.waitstatus_to_exitcode(status), "said": said}


def main() -> None:
    for line in sys.stdin:
        sys.stdout.write(json.dumps(run(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
