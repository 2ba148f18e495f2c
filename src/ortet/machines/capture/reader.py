"""Read the files a scan found changed, one after the other. A thread for it does not pay: with warm
caches most of the work needs the interpreter's lock, and two only fight for it (+25 % of CPU). What
does not need it, hashing large files and compressing, has threads in the store."""

from __future__ import annotations

import os
from typing import NamedTuple

from ortet.history.records import TreeEntry
from ortet.machines.base import Loss
from ortet.machines.capture.entry import Unreadable, capture_with_stat
from ortet.objects.base import ObjectStore


class ReadJob(NamedTuple):
    """One name to read."""

    name: str
    raw: bytes
    st: os.stat_result
    path: bytes
    mapped: bool = False


class ReadOutcome(NamedTuple):
    """`found` is None for a file that is gone; `unreadable` says why what was known must stand."""

    job: ReadJob
    captured: tuple[TreeEntry, os.stat_result] | None
    unreadable: bool
    losses: list[Loss]


def read_file_entry(objects: ObjectStore, fd: int, job: ReadJob) -> ReadOutcome:
    """What is at a name in an open directory, with its content stored."""
    losses: list[Loss] = []
    try:
        found = capture_with_stat(
            objects, fd, job.raw, job.st, path=job.path, losses=losses, mapped=job.mapped
        )
    except Unreadable as error:
        return ReadOutcome(job, None, True, [*losses, error.loss])
    return ReadOutcome(job, found, False, losses)
