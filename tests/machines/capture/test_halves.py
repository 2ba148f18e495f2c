"""Two processes at once give what one would, whatever happens to the second."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ortet.machines.capture.quick_check import map_in_two_processes

JOBS = list(range(100))


@pytest.fixture(autouse=True)
def several_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(threading, "active_count", lambda: 1)  # pytest-xdist has one of its own


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[[int], list[str]]:
    """Work that leaves a file with the process that did it."""

    def work(job: int) -> list[str]:
        (tmp_path / f"{job}").write_text(str(os.getpid()))
        return ["even"] * (job % 2 == 0)

    return work


def workers(place: Path) -> list[int]:
    return [int((place / f"{job}").read_text()) for job in JOBS]


def children() -> set[str]:
    """Of this process, those too that have ended and were not waited for."""
    found: set[str] = set()
    for task in Path("/proc/self/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread of another test has ended
            found |= set(task.read_text().split())
    return found


@pytest.fixture(autouse=True)
def no_child_is_left() -> Iterator[None]:
    before = children()  # of other tests
    yield
    assert children() <= before


def test_two_processes_return_the_same_results_in_order(
    recorded: Callable[[int], list[str]], tmp_path: Path
) -> None:
    expected = [["even"] * (job % 2 == 0) for job in JOBS]
    assert map_in_two_processes(recorded, JOBS, cut=30) == expected
    pids = workers(tmp_path)
    assert set(pids[:30]) == {os.getpid()}
    assert len(set(pids[30:])) == 1 and pids[30] != os.getpid()


@pytest.mark.parametrize("cut", [0, -1, 100, 101])
def test_without_a_cut_no_child_process_is_forked(
    recorded: Callable[[int], list[str]], tmp_path: Path, cut: int
) -> None:
    assert len(map_in_two_processes(recorded, JOBS, cut=cut)) == 100
    assert set(workers(tmp_path)) == {os.getpid()}


@pytest.mark.parametrize("reason", ["threads", "one core", "no process to be had"])
def test_all_jobs_run_in_the_parent_where_fork_is_not_possible(
    recorded: Callable[[int], list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reason: str,
) -> None:
    def refuse() -> int:
        raise BlockingIOError

    if reason == "threads":
        monkeypatch.setattr(threading, "active_count", lambda: 2)
    elif reason == "one core":
        monkeypatch.setattr(os, "cpu_count", lambda: 1)
    else:
        monkeypatch.setattr(os, "fork", refuse)
    assert len(map_in_two_processes(recorded, JOBS, cut=50)) == 100
    assert set(workers(tmp_path)) == {os.getpid()}


@pytest.mark.parametrize("end", ["raises", "is killed", "exits"])
def test_jobs_that_a_failed_child_did_not_finish_run_in_the_parent(
    recorded: Callable[[int], list[str]], tmp_path: Path, end: str
) -> None:
    parent = os.getpid()

    def work(job: int) -> list[str]:
        if os.getpid() != parent and job == 70:
            if end == "is killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if end == "exits":
                os._exit(0)
            raise ValueError(job)
        return recorded(job)

    assert map_in_two_processes(work, JOBS, cut=50) == [["even"] * (job % 2 == 0) for job in JOBS]
    assert set(workers(tmp_path)) == {parent}


def test_a_failure_here_ends_the_child(tmp_path: Path) -> None:
    parent = os.getpid()

    def work(job: int) -> list[str]:
        if os.getpid() == parent:
            raise ValueError(job)
        return ["x" * 10_000]  # more than a pipe holds

    with pytest.raises(ValueError, match="0"):
        map_in_two_processes(work, JOBS, cut=50)
