"""All jobs of a machine, kept by its pid 1: starting, reaping, killing, listing.

Standard library only: the pid 1 of a machine loads this file by itself.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ortet.machines.standalone import event_loop, process_tree, procfs
    from ortet.machines.standalone import job as initjobs
else:
    import event_loop
    import job as initjobs
    import process_tree
    import procfs

_NOBODY = "-"  # no run's mark
_KINDS = ("run", "service", "shell")
_KEPT = 64  # ended jobs whose output nobody asked for
_REAP = 1000  # at once: a machine full of dying processes is still to be answered
_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class NameTaken(Exception):
    """A living job has this name."""


class Unknown(Exception):
    """No such job."""


class Table:
    def __init__(self, loop: event_loop.Loop) -> None:
        self._loop = loop
        self._jobs: dict[int, initjobs.Job] = {}
        self._pids: dict[int, initjobs.Job] = {}  # of jobs not reaped
        self._last = 0
        self.protected = _protect(-1000)

    def __iter__(self) -> Iterator[initjobs.Job]:
        return iter(list(self._jobs.values()))

    def find(self, request: dict[str, Any]) -> initjobs.Job:
        """By id, or the last one of a name."""
        if request.get("id") is not None:
            job = self._jobs.get(request["id"])
        else:
            named = [job for job in self if job.name and job.name == request["name"]]
            job = named[-1] if named else None
        if job is None:
            raise Unknown
        return job

    def start(self, request: dict[str, Any], attended: object = None) -> initjobs.Job:
        """Names of living jobs are unique; an ended one gives way to its successor."""
        job = initjobs.Job(self._last + 1, request)
        if job.kind not in _KINDS:
            raise ValueError(f"a job is one of {', '.join(_KINDS)}")
        same = [one for one in self if job.name and one.name == job.name]
        if any(one.alive for one in same):
            raise NameTaken
        others = [one for one in self if one.alive]
        job.alone = not others
        if job.kind == "run" and job.alone and self.busy():
            job.before = {one.born for one in procfs.living()}
        job.attended = attended
        if self.protected:
            _protect(0)  # what it starts inherits this
        try:
            job.start(self._loop, request["env"], stdin=bool(request.get("stdin")))
        finally:
            if self.protected:
                _protect(-1000)
        for one in others:
            one.alone = False
        ended = [one for one in self if not one.alive and one.attended is None]
        for one in same + ended[:-_KEPT]:
            self.forget(one)
        self._last = job.id
        self._jobs[job.id] = self._pids[job.pid] = job
        return job

    def forget(self, job: initjobs.Job) -> None:
        job.forget()
        self._jobs.pop(job.id, None)

    def patience(self) -> float:
        """Give up readers that do not come back; returns when to look again at the latest."""
        for job in self:
            if job.until <= event_loop.now():
                job.loosen()
        return min([job.until for job in self], default=math.inf)

    def reap(self) -> bool:
        """Take the dead; False when there may be more of them."""
        with contextlib.suppress(ChildProcessError):
            for _ in range(_REAP):
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return True
                job = self._pids.pop(pid, None)
                if job is not None:
                    job.ended(status)
            return False
        return True

    def busy(self) -> bool:
        """Is any process but this one left?"""
        while not self.reap():
            pass
        try:
            # it only looks: a child that ends between is left to the next reaping
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        return True

    def kill(self, job: initjobs.Job, mark: str) -> Iterator[None]:
        """End a job with all it started, also what shook off its parents and environment.

        The latter only where no other job can have started it. Yields while they are dying.
        """
        # once it has ended, its pid may be another's
        yield from process_tree.kill_rounds(mark or _NOBODY, job.pid if job.alive else -1)
        while job.kind == "run" and job.alone and (strays := self._strays(job.before)):
            for stray in strays:
                yield from process_tree.kill_rounds(_NOBODY, stray[0])
            job.before |= strays  # one that outlives even this is left alone

    def _strays(self, before: set[procfs.Birth]) -> set[procfs.Birth]:
        """Orphans that were not there before, and that no job will claim."""
        init = os.getpid()
        new = {one.born for one in procfs.living() if one.parent == init} - before
        strays = {born for born in new if born[0] not in self._pids}
        return {born for born in strays if procfs.unmarked(born[0])}

    def listing(self) -> list[dict[str, Any]]:
        """Every process of the machine but this one, with the job it belongs to."""
        found = {one.pid: one for one in procfs.found()}
        boot = _boot_time()
        return [
            {
                "pid": one.pid,
                "ppid": one.parent,
                "name": one.name,
                "cmdline": _arguments(one.pid),
                "state": one.state,
                "rss": one.pages * _PAGE,
                "started": boot + int(one.ticks) / _TICK,
                "job": self._owner(one, found),
            }
            for one in found.values()
        ]

    def _owner(self, one: procfs.Found, found: dict[int, procfs.Found]) -> int | None:
        """By descent, by session, by the mark in its environment."""
        above: procfs.Found | None = one
        while above is not None:
            job = self._pids.get(above.pid) or self._pids.get(above.session)
            if job is not None:
                return job.id
            above = found.get(above.parent)
        marks = procfs.marks(one.pid)
        return next((job.id for job in self if job.mark and job.mark in marks), None)


def _protect(score: int) -> bool:
    """How likely this process is to be killed when memory is short; False where not allowed."""
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(str(score))
    except OSError:
        return False
    return True


def _arguments(pid: int) -> list[str]:
    text = procfs.read(f"/proc/{pid}/cmdline")
    return [os.fsdecode(part) for part in text.removesuffix(b"\0").split(b"\0")] if text else []


def _boot_time() -> int:
    for line in procfs.read("/proc/stat").splitlines():
        if line.startswith(b"btime "):
            return int(line.split()[1])
    return 0
