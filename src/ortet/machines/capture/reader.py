"""Read the files a scan found changed, one after the other. A thread for it does not pay: with warm
caches most of the work needs the interpreter's lock, and two only fight for it (+25 % of CPU). What
does not need it, hashing large files and compressing, has threads in the store."""

from __future__ import annotations

import os
from typing import NamedTuple

from ortet.history.records import Entry
from ortet.machines.base import Loss
from ortet.machines.capture.entry import Unreadable, look
from ortet.objects.base import Objects


class Job(NamedTuple):
    """One name to read."""

    name: str
    raw: bytes
    st: os.stat_result
    path: bytes
    mapped: bool = False


class Outcome(NamedTuple):
    """`found` is None for a file that is gone; `unreadable` says why what was known must stand."""

    job: Job
    found: tuple[Entry, os.stat_result] | None
    unreadable: bool
    losses: list[Loss]


def read(objects: Objects, fd: int, job: Job) -> Outcome:
    """What is at a name in an open directory, with its content stored."""
    losses: list[Loss] = []
    try:
        found = look(objects, fd, job.raw, job.st, path=job.path, losses=losses, mapped=job.mapped)
    except Unreadable as error:
        return Outcome(job, None, True, [*losses, error.loss])
    return Outcome(job, found, False, losses)
