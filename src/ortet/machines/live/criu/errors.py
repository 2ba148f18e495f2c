"""What CRIU says when it cannot: as an error that names the process and says what to do next."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ortet.errors import Conflict, OrtetError, Unavailable
from ortet.machines.live.criu.rpc import Failed, messages

_ENDING = "Zombies with threads"
_IN_FLIGHT = "n-flight "
_SUMMARY = ("Dumping FAILED", "Restoring FAILED")
_MOST = 4  # of what it said: the cause comes before what followed from it
_TRIES = 20  # each takes as long as a dump that fails early
_PAUSE = 0.002  # seconds; a server accepts meanwhile
_PID = re.compile(r"\(pid: (\d+)\)")


def patiently() -> Iterator[bool]:
    """Tries of a dump; what is given says whether there will be another."""
    for left in reversed(range(_TRIES)):
        yield left > 0
        time.sleep(_PAUSE)


def passing(failed: Failed) -> bool:
    """Did it fail over a process that was just ending, or a connection that nobody had accepted
    yet, so that the next try may do better?"""
    return any(_ENDING in said or _IN_FLIGHT in said for said in messages(failed.log))


def not_frozen(failed: Failed) -> OrtetError:
    said = messages(failed.log)
    if any(os.strerror(errno.ENOSPC) in one for one in said):
        return Unavailable(
            "disk_full",
            "the disk was full while this machine was written down; its processes go on: free some "
            "space, then repeat",
        )
    if any(_IN_FLIGHT in one for one in said):
        named = [name for one in said for name in map(_process, _PID.findall(one))]
        return Conflict(
            "cannot_freeze",
            "a connection waits to be accepted inside this machine, and CRIU cannot carry one "
            f"({', '.join(named) or 'which it does not name'} listens or connects); its processes "
            "go on: commit again when the server has accepted it",
        )
    return Conflict(
        "cannot_freeze",
        f"CRIU could not freeze this machine ({_why(said)}); its processes go on: stop the one "
        "that it names, or commit when it has ended",
    )


def not_restored(failed: Failed) -> Conflict:
    return Conflict(
        "cannot_restore",
        f"CRIU could not bring the processes back ({_why(messages(failed.log))}): restore the "
        "files alone with only={'files'}, or on the host that made the commit",
    )


def _why(said: list[str]) -> str:
    told = [one for one in said if not one.startswith(_SUMMARY)][-_MOST:]
    named = [_PID.sub(lambda match: f"({_process(match[1])})", one) for one in told]
    return "; ".join(named) or "it said no reason"


def _process(pid: str) -> str:
    """As it is called inside its machine."""
    with suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
        words = Path(f"/proc/{pid}/cmdline").read_bytes()[:80].replace(bytes(1), b" ")
        for line in status.splitlines():
            if line.startswith("NSpid:"):
                command = " ".join(words.decode(errors="replace").split())
                return f"process {line.split()[-1]}, {command}"
    return "a process that has ended"
