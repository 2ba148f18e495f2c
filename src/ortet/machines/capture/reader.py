"""Reads the files that a scan found changed, one after the other.

This is a module of its own to record why it has no threads. With warm caches most of the work needs
the interpreter lock, and two threads cost 25 % more CPU time. Hashing of large files and
compression do not need the lock; the object store has threads for them.
"""

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
    """The result of a read.

    `captured` is None for a file that is gone. If `unreadable` is True, the known entry stays
    valid.
    """

    job: ReadJob
    captured: tuple[TreeEntry, os.stat_result] | None
    unreadable: bool
    losses: list[Loss]


def read_file_entry(objects: ObjectStore, fd: int, job: ReadJob) -> ReadOutcome:
    """Capture a name in an open directory and store its content."""
    losses: list[Loss] = []
    try:
        found = capture_with_stat(
            objects, fd, job.raw, job.st, path=job.path, losses=losses, mapped=job.mapped
        )
    except Unreadable as error:
        return ReadOutcome(job, None, True, [*losses, error.loss])
    return ReadOutcome(job, found, False, losses)
