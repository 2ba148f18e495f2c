"""Runs many small jobs in two processes. Threads would wait for the interpreter lock."""

from __future__ import annotations

import marshal
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar, cast

J = TypeVar("J")

NameList = list[str]


def map_in_two_processes(
    work: Callable[[J], NameList], jobs: Sequence[J], *, cut: int
) -> list[NameList]:
    """Return `[work(job) for job in jobs]`, with the jobs from `cut` on done in a forked child.

    Only for a process that belongs to Ortet alone. The child calls `work` and exits, without any
    cleanup. If this process has other threads, nothing is forked. If the child fails, its half is
    done here.
    """
    if not 0 < cut < len(jobs) or (os.cpu_count() or 1) < 2 or threading.active_count() > 1:
        return [work(job) for job in jobs]
    ours, theirs = os.pipe()
    try:
        child = os.fork()
    except OSError:
        os.close(ours)
        os.close(theirs)
        return [work(job) for job in jobs]
    if not child:
        os.close(ours)  # otherwise the child would wait for itself
        _run_child(work, jobs[cut:], theirs)
    os.close(theirs)
    try:
        first = [work(job) for job in jobs[:cut]]
        rest = _read(ours, len(jobs) - cut)
    finally:
        os.close(ours)  # a child that still writes gets EPIPE and exits
        os.waitpid(child, 0)
    return first + ([work(job) for job in jobs[cut:]] if rest is None else rest)


def _run_child(work: Callable[[J], NameList], jobs: Sequence[J], pipe: int) -> None:
    """Do the child's half, write the result to the pipe, and exit."""
    code = 1
    with suppress(BaseException):
        with open(pipe, "wb", closefd=False) as file:
            marshal.dump([work(job) for job in jobs], file)
        code = 0
    os._exit(code)


def _read(pipe: int, count: int) -> list[NameList] | None:
    with open(pipe, "rb", closefd=False) as file:
        data = file.read()
    try:
        found = marshal.loads(data)
    except (EOFError, ValueError, TypeError):
        return None
    return cast(list[NameList], found) if len(found) == count else None
