"""The quick look finds every change that a listing would find."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ortet._util.codec import Hasher
from ortet.backends.local.memory import MemoryBucket
from ortet.history.tree.tree import Trees
from ortet.ids import Oid, SystemClock
from ortet.machines.capture.ignore_rules import IgnoreFilter, IgnoreRules
from ortet.machines.capture.quick_check import (
    NamesByDirectory,
    find_changed_names,
    map_in_two_processes,
)
from ortet.machines.capture.scanner import scan
from ortet.machines.capture.stat_index import StatIndex
from ortet.objects.store import PackedObjectStore


class Setting:
    def __init__(self, place: Path, saved: bool) -> None:
        self.root = place / "root"
        (self.root / "a" / "b").mkdir(parents=True)
        for name in ("top", "a/one", "a/b/two"):
            (self.root / name).write_text(name)
        objects = PackedObjectStore(
            place / "store", MemoryBucket(), hasher=Hasher(), clock=SystemClock()
        )
        self.trees = Trees(objects)
        self.index = StatIndex(self.trees)
        self.rules = IgnoreRules()
        scan(objects, self.trees, root=self.root, index=self.index, rules=self.rules, losses=[])
        if saved:  # packed directories are compared in another way
            self.index.save(place / "index", Oid(b"\1" * 32))
            loaded = StatIndex.load(place / "index", self.trees)
            assert loaded is not None
            self.index = loaded
        self.fd = os.open(self.root, os.O_RDONLY)
        self.alone = False

    def look(self) -> NamesByDirectory:
        return find_changed_names(
            self.fd, self.index, IgnoreFilter(self.index, self.rules), may_fork=self.alone
        )


@pytest.fixture(params=["kept", "saved", "by two processes"])
def setting(
    place: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Setting]:
    setting = Setting(place, request.param != "kept")
    if request.param == "by two processes":
        setting.alone = True
        monkeypatch.setattr("ortet.machines.capture.quick_check._MIN_NAMES_TO_FORK", 1)
        monkeypatch.setattr("os.cpu_count", lambda: 2)
        monkeypatch.setattr("threading.active_count", lambda: 1)  # pytest-xdist has one of its own
    yield setting
    os.close(setting.fd)


def test_an_unchanged_tree_has_no_suspects(setting: Setting) -> None:
    assert setting.look() == {}


@pytest.mark.parametrize(
    ("act", "found"),
    [
        (lambda root: (root / "a/b/two").write_text("2"), {b"a/b": {b"two"}}),
        (lambda root: (root / "a/one").chmod(0o600), {b"a": {b"one"}}),
        (lambda root: (root / "a/b/new").write_text("n"), {b"a": {b"b"}, b"a/b": None}),
        (lambda root: (root / "a/b").chmod(0o700), {b"a": {b"b"}, b"a/b": None}),
        (lambda root: (root / "a/one").unlink(), {b"": {b"a"}, b"a": None}),
        (lambda root: (root / "new").mkdir(), {b"": None}),
    ],
)
def test_each_kind_of_change_makes_its_directory_suspect(
    setting: Setting, act: Callable[[Path], object], found: NamesByDirectory
) -> None:
    act(setting.root)
    assert setting.look() == found


def test_a_moved_directory_makes_its_parent_and_subdirectories_suspect(setting: Setting) -> None:
    (setting.root / "a").rename(setting.root / "z")
    assert setting.look() == {
        b"": None,
        b"a": None,
        b"a/b": None,
    }


def test_a_link_in_the_place_of_a_directory_is_not_trusted(setting: Setting) -> None:
    """Through it the same names lead to the same files: only the directory tells."""
    (setting.root / "a").rename(setting.root.parent / "away")
    (setting.root / "a").symlink_to(setting.root.parent / "away")
    found = setting.look()
    assert b"" in found and found[b""] is None


def test_a_directory_with_losses_is_always_suspect(setting: Setting) -> None:
    setting.index.losses[b"a"] = {}
    assert setting.look() == {b"a": None}


def test_changed_ignore_rules_make_all_directories_below_suspect(setting: Setting) -> None:
    node = setting.index.find(b"a")
    assert node is not None
    node.rules_digest = b"other rules"
    assert setting.look() == {b"a": {b".ortetignore"}}


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
def test_with_a_cut_at_an_end_no_child_process_is_forked(
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


def test_a_failure_in_the_parent_ends_the_child(tmp_path: Path) -> None:
    parent = os.getpid()

    def work(job: int) -> list[str]:
        if os.getpid() == parent:
            raise ValueError(job)
        return ["x" * 10_000]  # more than a pipe holds

    with pytest.raises(ValueError, match="0"):
        map_in_two_processes(work, JOBS, cut=50)
