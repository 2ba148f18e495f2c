"""The fast scan of a known workspace: stat every name of the index, without opening anything.

A directory with an unchanged stat has the same names, so it is not listed. This saves a third of
the time of a scan. Only equality is trusted: a path through a symlink that was put there in the
meantime has another inode, and takes the slow path.
"""

from __future__ import annotations

import marshal
import os
import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import TypeVar, cast

from ortet.machines.capture.hardlinks import walk_index
from ortet.machines.capture.ignore_rules import IGNORE_FILE, IgnoreFilter
from ortet.machines.capture.stat_index import (
    MAPPED,
    STAT,
    DirectoryNode,
    StatIndex,
    is_unchanged,
    marks_of,
)
from ortet.machines.dirfd import join_path

# Runs many small jobs in two processes. Threads would wait for the interpreter lock.

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
        value = marshal.loads(data)
    except (EOFError, ValueError, TypeError):
        return None
    return cast(list[NameList], value) if len(value) == count else None


NamesByDirectory = dict[bytes, set[bytes] | None]
IndexedDirectory = tuple[bytes, DirectoryNode, list[str]]
"""A directory of the index: path, node, names."""

_IGNORE_FILE_NAME = os.fsdecode(IGNORE_FILE)
_MIN_NAMES_TO_FORK = 8192  # from this many names on a second process is faster
_MAX_PREFIX_LENGTH = 3000  # with one more name the path could exceed the kernel's limit


def find_changed_names(
    fd: int, index: StatIndex, ignore_filter: IgnoreFilter, *, may_fork: bool = False
) -> NamesByDirectory:
    """Return the names below the open root with a changed stat; None for directories to list again.

    Args:
        may_fork: The process belongs to Ortet alone, so this may use fork(2).
    """
    suspects: NamesByDirectory = dict.fromkeys(index.losses)
    if not is_unchanged(index.root_stat, os.fstat(fd)):
        suspects[b""] = None
    ruled: list[bytes] = []
    governed: list[tuple[bytes, DirectoryNode]] = []
    nodes = [(path, node, node.names()) for path, node in walk_index(index)]
    changed = _changed_names(fd, nodes, many=_MIN_NAMES_TO_FORK if may_fork else 0)
    for (path, node, names), different in zip(nodes, changed, strict=True):
        if _IGNORE_FILE_NAME in names:
            ruled.append(path)
        if node.rules_digest or _IGNORE_FILE_NAME in names:
            governed.append((path, node))
        for name in different:
            raw = os.fsencode(name)
            some = suspects.setdefault(path, set())
            if some is not None:
                some.add(raw)
            if name in node.dirs:
                suspects[join_path(path, raw)] = None
    for path in ignore_filter.reload(fd, ruled, governed):
        suspects[path] = {IGNORE_FILE}
    return suspects


def _changed_names(fd: int, nodes: list[IndexedDirectory], *, many: int) -> list[list[str]]:
    """Return the changed names of each directory.

    From `many` names on two processes work; 0 means never.
    """

    def changed(known: IndexedDirectory) -> list[str]:
        path, node, names = known
        return _changed(fd, os.fsdecode(path) + "/" if path else "", node, names)

    sizes = list(accumulate(len(names) for _, _, names in nodes))
    cut = bisect_left(sizes, sizes[-1] // 2) + 1 if 0 < many <= sizes[-1] else 0
    return map_in_two_processes(changed, nodes, cut=cut)


def _changed(fd: int, prefix: str, node: DirectoryNode, names: list[str]) -> list[str]:
    packed = node.packed
    if len(prefix) > _MAX_PREFIX_LENGTH:
        return names
    if (
        packed is not None
        and not (packed.marks or packed.far)
        and _stats(fd, prefix, names) == packed.stats
    ):
        return []
    return [
        name
        for name, was in node.stats.items()
        if marks_of(was) & MAPPED or not is_unchanged(was, _stat(fd, prefix + name))
    ]


def _stats(fd: int, prefix: str, names: list[str]) -> bytes:
    """Return the stats in the packed form of the index. This is the hot loop of a scan."""
    stat, pack = os.stat, STAT.pack
    parts = []
    try:
        for name in names:
            st = stat(prefix + name, dir_fd=fd, follow_symlinks=False)
            parts.append(pack(*st[:7], st.st_mtime_ns, st.st_ctime_ns))
    except OSError:
        return b"changed"
    return b"".join(parts)


def _stat(fd: int, path: str) -> os.stat_result | None:
    try:
        return os.stat(path, dir_fd=fd, follow_symlinks=False)
    except OSError:
        return None
