"""Turns CRIU failures into errors that name the process and say what to do next."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ortet.errors import Conflict, OrtetError, Unavailable
from ortet.machines.live.criu.rpc import CriuError, log_errors

_EXITING_MESSAGE = "Zombies with threads"
_IN_FLIGHT_MESSAGE = "n-flight "
_SUMMARY_MESSAGES = ("Dumping FAILED", "Restoring FAILED")
_MAX_MESSAGES = 4  # the last messages: the cause comes before its consequences
_DUMP_TRIES = 20  # each takes as long as a dump that fails early
_RETRY_PAUSE_SECONDS = 0.002  # time for a server to accept a connection
_PID = re.compile(r"\(pid: (\d+)\)")


def dump_attempts() -> Iterator[bool]:
    """Yield once for each attempt of a dump: True if another attempt may follow."""
    for left in reversed(range(_DUMP_TRIES)):
        yield left > 0
        time.sleep(_RETRY_PAUSE_SECONDS)


def is_transient(error: CriuError) -> bool:
    """Return True if the next attempt may succeed.

    The failure was then a process that was just ending, or a connection not accepted yet.
    """
    return any(
        _EXITING_MESSAGE in message or _IN_FLIGHT_MESSAGE in message
        for message in log_errors(error.log)
    )


def dump_error(error: CriuError) -> OrtetError:
    """Return the error for a dump that CRIU refused, from its log."""
    messages = log_errors(error.log)
    if any(os.strerror(errno.ENOSPC) in one for one in messages):
        return Unavailable(
            "disk_full",
            "the disk was full while this machine was written down; its processes go on: free some "
            "space, then repeat",
        )
    if any(_IN_FLIGHT_MESSAGE in one for one in messages):
        named = [name for one in messages for name in map(_describe_process, _PID.findall(one))]
        return Conflict(
            "cannot_freeze",
            "a connection waits to be accepted inside this machine, and CRIU cannot carry one "
            f"({', '.join(named) or 'which it does not name'} listens or connects); its processes "
            "go on: commit again when the server has accepted it",
        )
    return Conflict(
        "cannot_freeze",
        f"CRIU could not freeze this machine ({_summarize(messages)}); its processes go on: stop "
        "the one that it names, or commit when it has ended",
    )


def restore_error(error: CriuError) -> Conflict:
    """Return the error for a restore that CRIU refused, from its log."""
    return Conflict(
        "cannot_restore",
        f"CRIU could not bring the processes back ({_summarize(log_errors(error.log))}): restore "
        "the "
        "files alone with only={'files'}, or on the host that made the commit",
    )


def _summarize(errors: list[str]) -> str:
    shown = [one for one in errors if not one.startswith(_SUMMARY_MESSAGES)][-_MAX_MESSAGES:]
    named = [_PID.sub(lambda match: f"({_describe_process(match[1])})", one) for one in shown]
    return "; ".join(named) or "it said no reason"


def _describe_process(pid: str) -> str:
    """Describe a process by its pid and command inside the machine."""
    with suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
        words = Path(f"/proc/{pid}/cmdline").read_bytes()[:80].replace(bytes(1), b" ")
        for line in status.splitlines():
            if line.startswith("NSpid:"):
                command = " ".join(words.decode(errors="replace").split())
                return f"process {line.split()[-1]}, {command}"
    return "a process that has ended"
