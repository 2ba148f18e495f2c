"""Finds and kills all processes that a command started, even after setsid or a double fork."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection, Iterator
from typing import NamedTuple

RUN_MARK_VARIABLE = "ORTET_RUN"
"""Environment variable with the mark of the run of a process; nested runs append with a colon."""

KILL_TIMEOUT_SECONDS = 10.0
"""Seconds after which a process that survives SIGKILL (it waits for a device) is left alone.

They count from the first SIGKILL to that process: on a busy host the search takes long, too.
"""


_THREAD_COUNT_FIELD = 17  # index of the thread count in /proc/PID/stat, after the command name


class _Process(NamedTuple):
    pid: int
    parent: int
    session: int


def kill_run(mark: str, leader: int, exclude: Collection[int] = ()) -> None:
    """Kill a command and all its descendants, except those in `exclude`.

    `leader` is the pid of the command, which must not be reaped yet, so that the pid is still its
    own. A descendant is in the leader's session, carries `mark` in its environment, or has a
    descendant as parent. All processes are stopped before any is killed, so that none can fork in
    between. Processes that only an excluded process started are not killed.
    """
    for _ in kill_rounds(mark, leader, exclude):
        time.sleep(0.001)  # dying takes a moment, and CPU time


def kill_rounds(mark: str, leader: int, exclude: Collection[int] = ()) -> Iterator[None]:
    """Do what `kill_run` does, but yield instead of sleeping, for callers with other work."""
    if not os.path.isdir("/proc/self"):
        _kill_group(leader)
        return
    immortal: set[int] = set()
    killed_at: dict[int, float] = {}
    while members := run_pids(mark, leader, exclude) - immortal:
        stopped: set[int] = set()
        while fresh := members - stopped:
            immortal |= {pid for pid in fresh if not _send_signal(pid, signal.SIGSTOP)}
            stopped |= fresh
            members = run_pids(mark, leader, exclude)
        immortal |= {pid for pid in members if not _send_signal(pid, signal.SIGKILL)}
        now = time.monotonic()
        for pid in members:
            if now - killed_at.setdefault(pid, now) > KILL_TIMEOUT_SECONDS:
                immortal.add(pid)
        yield


def run_pids(mark: str, leader: int, exclude: Collection[int] = ()) -> set[int]:
    """Return the living processes of a run, without zombies."""
    alive = [process for process in _list_processes() if process.pid not in exclude]
    token = mark.encode()
    members = {p.pid for p in alive if leader in (p.session, p.pid)}
    members |= {p.pid for p in alive if p.pid not in members and _has_mark(p.pid, token)}
    grown = True
    while grown:
        children = {p.pid for p in alive if p.parent in members} - members
        members |= children
        grown = bool(children)
    return members - {os.getpid()}


def _list_processes() -> list[_Process]:
    processes = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        text = _read_proc_file(f"/proc/{name}/stat")
        # The command name is in parentheses, and may itself contain spaces and parentheses.
        fields = text[text.rfind(b")") + 1 :].split(None, _THREAD_COUNT_FIELD + 1)
        # If only the first thread has ended, the state is zombie but the process lives on.
        if len(fields) > _THREAD_COUNT_FIELD and (
            fields[0] not in (b"Z", b"X") or int(fields[_THREAD_COUNT_FIELD]) > 1
        ):
            processes.append(_Process(int(name), int(fields[1]), int(fields[3])))
    return processes


def _has_mark(pid: int, token: bytes) -> bool:
    key = RUN_MARK_VARIABLE.encode() + b"="
    for item in _read_proc_file(f"/proc/{pid}/environ").split(b"\0"):
        if item.startswith(key):
            return token in item[len(key) :].split(b":")
    return False


def _read_proc_file(path: str) -> bytes:
    """Return the content of a /proc file, or nothing if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _send_signal(pid: int, number: signal.Signals) -> bool:
    """Send a signal. Returns False if it is not permitted; a process that is gone is no failure."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
    except PermissionError:
        return False
    return True


def _kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
