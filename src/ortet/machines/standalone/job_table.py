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

_NO_MARK = "-"  # no run's mark
_JOB_KINDS = ("run", "service", "shell")
_MAX_ENDED_JOBS = 64  # ended jobs whose output nobody asked for
_MAX_REAPS = 1000  # at once: a machine full of dying processes is still to be answered
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class NameTaken(Exception):
    """A living job has this name."""


class UnknownJob(Exception):
    """No such job."""


class JobTable:
    def __init__(self, loop: event_loop.EventLoop) -> None:
        self._loop = loop
        self._jobs: dict[int, initjobs.JobProcess] = {}
        self._jobs_by_pid: dict[int, initjobs.JobProcess] = {}  # of jobs not reaped
        self._last_id = 0
        self.is_protected = _set_oom_score(-1000)

    def __iter__(self) -> Iterator[initjobs.JobProcess]:
        return iter(list(self._jobs.values()))

    def find(self, request: dict[str, Any]) -> initjobs.JobProcess:
        """By id, or the last one of a name."""
        if request.get("id") is not None:
            job = self._jobs.get(request["id"])
        else:
            named = [job for job in self if job.name and job.name == request["name"]]
            job = named[-1] if named else None
        if job is None:
            raise UnknownJob
        return job

    def start(self, request: dict[str, Any], reader: object = None) -> initjobs.JobProcess:
        """Names of living jobs are unique; an ended one gives way to its successor."""
        job = initjobs.JobProcess(self._last_id + 1, request)
        if job.kind not in _JOB_KINDS:
            raise ValueError(f"a job is one of {', '.join(_JOB_KINDS)}")
        same = [one for one in self if job.name and one.name == job.name]
        if any(one.alive for one in same):
            raise NameTaken
        others = [one for one in self if one.alive]
        job.ran_alone = not others
        if job.kind == "run" and job.ran_alone and self.has_processes():
            job.alive_at_start = {one.identity for one in procfs.list_living()}
        job.reader = reader
        if self.is_protected:
            _set_oom_score(0)  # what it starts inherits this
        try:
            job.start(self._loop, request["env"], stdin=bool(request.get("stdin")))
        finally:
            if self.is_protected:
                _set_oom_score(-1000)
        for one in others:
            one.ran_alone = False
        ended = [one for one in self if not one.alive and one.reader is None]
        for one in same + ended[:-_MAX_ENDED_JOBS]:
            self.forget(one)
        self._last_id = job.id
        self._jobs[job.id] = self._jobs_by_pid[job.pid] = job
        return job

    def forget(self, job: initjobs.JobProcess) -> None:
        job.discard_output()
        self._jobs.pop(job.id, None)

    def release_absent_readers(self) -> float:
        """Give up readers that do not come back; returns when to look again at the latest."""
        for job in self:
            if job.reader_deadline <= event_loop.now():
                job.release_reader()
        return min([job.reader_deadline for job in self], default=math.inf)

    def reap(self) -> bool:
        """Take the dead; False when there may be more of them."""
        with contextlib.suppress(ChildProcessError):
            for _ in range(_MAX_REAPS):
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return True
                job = self._jobs_by_pid.pop(pid, None)
                if job is not None:
                    job.mark_ended(status)
            return False
        return True

    def has_processes(self) -> bool:
        """Is any process but this one left?"""
        while not self.reap():
            pass
        try:
            # it only looks: a child that ends between is left to the next reaping
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        return True

    def kill(self, job: initjobs.JobProcess, mark: str) -> Iterator[None]:
        """End a job with all it started, also what shook off its parents and environment.

        The latter only where no other job can have started it. Yields while they are dying.
        """
        # once it has ended, its pid may be another's
        yield from process_tree.kill_rounds(mark or _NO_MARK, job.pid if job.alive else -1)
        while job.kind == "run" and job.ran_alone and (strays := self._orphans(job.alive_at_start)):
            for stray in strays:
                yield from process_tree.kill_rounds(_NO_MARK, stray[0])
            job.alive_at_start |= strays  # one that outlives even this is left alone

    def _orphans(self, alive_before: set[procfs.ProcessIdentity]) -> set[procfs.ProcessIdentity]:
        """Orphans that were not there before, and that no job will claim."""
        init = os.getpid()
        new = {one.identity for one in procfs.list_living() if one.parent == init} - alive_before
        strays = {born for born in new if born[0] not in self._jobs_by_pid}
        return {born for born in strays if procfs.is_unmarked(born[0])}

    def list_processes(self) -> list[dict[str, Any]]:
        """Every process of the machine but this one, with the job it belongs to."""
        found = {one.pid: one for one in procfs.list_processes()}
        boot = _boot_time()
        return [
            {
                "pid": one.pid,
                "ppid": one.parent,
                "name": one.name,
                "cmdline": _command_line(one.pid),
                "state": one.state,
                "rss": one.pages * _PAGE_BYTES,
                "started": boot + int(one.ticks) / _TICKS_PER_SECOND,
                "job": self._owner(one, found),
            }
            for one in found.values()
        ]

    def _owner(
        self, process: procfs.ProcessStat, processes: dict[int, procfs.ProcessStat]
    ) -> int | None:
        """By descent, by session, by the mark in its environment."""
        above: procfs.ProcessStat | None = process
        while above is not None:
            job = self._jobs_by_pid.get(above.pid) or self._jobs_by_pid.get(above.session)
            if job is not None:
                return job.id
            above = processes.get(above.parent)
        marks = procfs.run_marks(process.pid)
        return next((job.id for job in self if job.mark and job.mark in marks), None)


def _set_oom_score(score: int) -> bool:
    """How likely this process is to be killed when memory is short; False where not allowed."""
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(str(score))
    except OSError:
        return False
    return True


def _command_line(pid: int) -> list[str]:
    text = procfs.read_proc_file(f"/proc/{pid}/cmdline")
    return [os.fsdecode(part) for part in text.removesuffix(b"\0").split(b"\0")] if text else []


def _boot_time() -> int:
    for line in procfs.read_proc_file("/proc/stat").splitlines():
        if line.startswith(b"btime "):
            return int(line.split()[1])
    return 0
