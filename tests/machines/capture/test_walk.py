"""One walk after the other: what each looks at, and what they tell together."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ortet._util.codec import Hasher
from ortet.backends.local.memory import MemoryBucket
from ortet.history.tree.tree import Trees
from ortet.ids import SystemClock
from ortet.machines.capture.frames import ScanPlan
from ortet.machines.capture.ignore_rules import IgnoreFilter, IgnoreRules
from ortet.machines.capture.stat_index import StatIndex
from ortet.machines.capture.walk import ScanWalk
from ortet.objects.store import PackedObjectStore


class Setting:
    def __init__(self, place: Path) -> None:
        self.root = place / "root"
        (self.root / "a" / "b").mkdir(parents=True)
        (self.root / "one").write_text("one")
        (self.root / "a" / "b" / "two").write_text("two")
        self.objects = PackedObjectStore(
            place / "store", MemoryBucket(), hasher=Hasher(), clock=SystemClock()
        )
        self.trees = Trees(self.objects)
        self.index = StatIndex(self.trees)
        self.fd = os.open(self.root, os.O_RDONLY)

    def walk(self) -> ScanWalk:
        sieve = IgnoreFilter(self.index, IgnoreRules())
        return ScanWalk(self.objects, self.trees, self.index, ignore_filter=sieve, watch=None)

    def plan(self, **names: set[bytes]) -> ScanPlan:
        plan = ScanPlan()
        plan.add({path.replace("_", "/").encode(): some for path, some in names.items()})
        return plan


@pytest.fixture
def setting(place: Path) -> Iterator[Setting]:
    setting = Setting(place)
    walk = setting.walk()
    walk.run(setting.fd, None)
    walk.close()
    assert (walk.changed_count, bool(walk.learned_count), len(walk.files_read)) == (2, True, 2)
    yield setting
    os.close(setting.fd)
    setting.objects.close()


def test_a_second_walk_finds_no_change(setting: Setting) -> None:
    walk = setting.walk()
    walk.run(setting.fd, None)
    walk.close()
    assert (walk.changed_count, bool(walk.learned_count), walk.files_read) == (0, False, {})


def test_several_walks_accumulate_their_changes(setting: Setting) -> None:
    (setting.root / "one").write_text("1")
    (setting.root / "a/b/two").write_text("2")
    walk = setting.walk()
    walk.run(setting.fd, ScanPlan())
    assert walk.changed_count == 0
    walk.run(setting.fd, setting.plan(a_b={b"two"}))
    assert walk.changed_count == 1
    root = ScanPlan()
    root.add({b"": {b"one", b"never"}})
    walk.run(setting.fd, root)
    walk.close()
    assert walk.changed_count == 2
    paths = {job.path for job in walk.files_read.values()}
    assert paths == {b"one", b"a/b/two"}


def test_a_walk_reports_the_inodes_of_hardlinked_files(setting: Setting) -> None:
    os.link(setting.root / "one", setting.root / "a" / "uno")
    walk = setting.walk()
    walk.run(setting.fd, setting.plan(a={b"uno"}))
    walk.close()
    st = (setting.root / "one").stat()
    assert walk.changed_hardlinks == {(st.st_ino, st.st_dev)}


def test_a_plan_marked_whole_reads_the_directory_recursively(setting: Setting) -> None:
    (setting.root / "a/b/two").write_text("2")
    plan = ScanPlan()
    plan.subplan(b"a").is_recursive = True
    walk = setting.walk()
    walk.run(setting.fd, plan)
    walk.close()
    assert walk.changed_count == 1


def test_a_plan_for_missing_paths_changes_nothing(setting: Setting) -> None:
    walk = setting.walk()
    walk.run(setting.fd, setting.plan(x_y={b"z"}, one={b"below a file"}))
    walk.close()
    assert (walk.changed_count, bool(walk.learned_count)) == (0, False)


def test_a_failed_walk_closes_its_descriptors(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    (setting.root / "a/b/two").write_text("2")
    walk = setting.walk()

    def refuse(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("ortet.machines.capture.walk.compare_all", refuse)
    with pytest.raises(OSError, match="Input/output"):
        walk.run(setting.fd, None)
    walk.close()
    places = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    assert places.count(str(setting.root)) == 1
