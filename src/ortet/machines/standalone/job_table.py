"""All jobs of a machine, managed by its pid 1: start, reap, kill, list.

Standard library only: pid 1 loads this file as a plain module.
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

_NO_MARK = "-"  # matches no run
_JOB_KINDS = ("run", "service", "shell")
_MAX_ENDED_JOBS = 64  # ended jobs whose output is kept
_MAX_REAPS = 1000  # in one turn, so that requests are answered while many processes die
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class NameTaken(Exception):
    """A running job has this name."""


class UnknownJob(Exception):
    """There is no such job."""


class JobTable:
    """The jobs of a machine by id, and the running ones by pid."""

    def __init__(self, loop: event_loop.EventLoop) -> None:
        self._loop = loop
        self._jobs: dict[int, initjobs.JobProcess] = {}
        self._jobs_by_pid: dict[int, initjobs.JobProcess] = {}  # jobs that were not reaped yet
        self._last_id = 0
        self.is_protected = _set_oom_score(-1000)

    def __iter__(self) -> Iterator[initjobs.JobProcess]:
        return iter(list(self._jobs.values()))

    def find(self, request: dict[str, Any]) -> initjobs.JobProcess:
        """Return a job by its id, or the last job of a name. Raises UnknownJob."""
        if request.get("id") is not None:
            job = self._jobs.get(request["id"])
        else:
            named = [job for job in self if job.name and job.name == request["name"]]
            job = named[-1] if named else None
        if job is None:
            raise UnknownJob
        return job

    def start(self, request: dict[str, Any], reader: object = None) -> initjobs.JobProcess:
        """Start a job.

        Names of running jobs are unique; an ended job of the same name is forgotten.
        """
        job = initjobs.JobProcess(self._last_id + 1, request)
        if job.kind not in _JOB_KINDS:
            raise ValueError(f"a job is one of {', '.join(_JOB_KINDS)}")
        same = [other for other in self if job.name and other.name == job.name]
        if any(other.alive for other in same):
            raise NameTaken
        others = [other for other in self if other.alive]
        job.ran_alone = not others
        if job.kind == "run" and job.ran_alone and self.has_processes():
            job.alive_at_start = {other.identity for other in procfs.list_living()}
        job.reader = reader
        if self.is_protected:
            _set_oom_score(0)  # the job inherits this score
        try:
            job.start(self._loop, request["env"], stdin=bool(request.get("stdin")))
        finally:
            if self.is_protected:
                _set_oom_score(-1000)
        for other in others:
            other.ran_alone = False
        ended = [other for other in self if not other.alive and other.reader is None]
        for other in same + ended[:-_MAX_ENDED_JOBS]:
            self.forget(other)
        self._last_id = job.id
        self._jobs[job.id] = self._jobs_by_pid[job.pid] = job
        return job

    def forget(self, job: initjobs.JobProcess) -> None:
        """Remove a job from the table and discard its output."""
        job.discard_output()
        self._jobs.pop(job.id, None)

    def release_absent_readers(self) -> float:
        """Release readers that did not come back in time; return the next such deadline."""
        for job in self:
            if job.reader_deadline <= event_loop.now():
                job.release_reader()
        return min([job.reader_deadline for job in self], default=math.inf)

    def reap(self) -> bool:
        """Reap ended processes. Returns False if there may be more."""
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
        """Reap, and return True if any process other than this one is left."""
        while not self.reap():
            pass
        try:
            # WNOWAIT only checks: a child that ends just now is reaped in the next turn.
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        return True

    def kill(self, job: initjobs.JobProcess, mark: str) -> Iterator[None]:
        """Kill a job and all processes it started; yield while they are dying.

        This includes processes that left its session and cleared their environment, unless another
        job could have started them.
        """
        # after its end the pid may belong to another process
        yield from process_tree.kill_rounds(mark or _NO_MARK, job.pid if job.alive else -1)
        while job.kind == "run" and job.ran_alone and (strays := self._orphans(job.alive_at_start)):
            for stray in strays:
                yield from process_tree.kill_rounds(_NO_MARK, stray[0])
            job.alive_at_start |= strays  # a process that survives even this is left alone

    def _orphans(self, alive_before: set[procfs.ProcessIdentity]) -> set[procfs.ProcessIdentity]:
        """Return new orphans that belong to no job."""
        init = os.getpid()
        new = {one.identity for one in procfs.list_living() if one.parent == init} - alive_before
        strays = {born for born in new if born[0] not in self._jobs_by_pid}
        return {born for born in strays if procfs.is_unmarked(born[0])}

    def list_processes(self) -> list[dict[str, Any]]:
        """Return every process of the machine except this one, with the job it belongs to."""
        processes = {one.pid: one for one in procfs.list_processes()}
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
                "job": self._owner(one, processes),
            }
            for one in processes.values()
        ]

    def _owner(
        self, process: procfs.ProcessStat, processes: dict[int, procfs.ProcessStat]
    ) -> int | None:
        """Return the id of the job of a process, by ancestors, session, or environment mark."""
        above: procfs.ProcessStat | None = process
        while above is not None:
            job = self._jobs_by_pid.get(above.pid) or self._jobs_by_pid.get(above.session)
            if job is not None:
                return job.id
            above = processes.get(above.parent)
        marks = procfs.run_marks(process.pid)
        return next((job.id for job in self if job.mark and job.mark in marks), None)


def _set_oom_score(score: int) -> bool:
    """Set how likely the kernel kills this process if memory is short. False if not allowed."""
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
