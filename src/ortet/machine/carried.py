"""What a commit of a live machine tells of its programs, also to engines that carry none."""

from __future__ import annotations

import shlex

from ortet.codec import Record, decode
from ortet.errors import OrtetError
from ortet.graph.records import Image, Processes
from ortet.ids import Oid
from ortet.machine.abc import Loss
from ortet.machine.jobs import JobInfo
from ortet.store.abc import Objects


class Carried(Record, frozen=True):
    """Mounts that a restore must hand over, and the programs that were started from outside."""

    mounts: list[str] = []
    jobs: list[JobInfo] = []

    @property
    def running(self) -> list[JobInfo]:
        """Services and shells that had not ended."""
        return [job for job in self.jobs if job.name and job.code is None]


def carried_by(objects: Objects, image: Image) -> Carried:
    """Of an image; nothing when it has no processes."""
    if not image.processes:
        return Carried()
    return decode(Carried, decode(Processes, objects.get(Oid(image.processes))).jobs)


def left_behind(objects: Objects, image: Image, engine: str) -> list[Loss]:
    """Each program that an engine without processes cannot bring back, and how to start it."""
    try:
        carried = carried_by(objects, image)
    except OrtetError as error:  # the files are there, and that is what was asked for
        return [Loss("", "process", f"what ran at this commit cannot be read: {error}")]
    return [
        Loss(
            job.name,
            "process",
            f"a {job.kind} that ran at this commit does not come back with engine {engine!r}: "
            f"start it again with `{shlex.join(job.argv)}` in {job.cwd}",
        )
        for job in carried.running
    ]
