"""The quick look finds every change that a listing would find."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ortet._util.codec import Hasher
from ortet.backends.local.memory import MemoryBucket
from ortet.history.tree.tree import Trees
from ortet.ids import Oid, SystemClock
from ortet.machines.capture.ignore_rules import IgnoreFilter, IgnoreRules
from ortet.machines.capture.quick_check import NamesByDirectory, find_changed_names
from ortet.machines.capture.scanner import scan
from ortet.machines.capture.stat_index import StatIndex
from ortet.objects.store import LocalObjectStore


class Setting:
    def __init__(self, place: Path, saved: bool) -> None:
        self.root = place / "root"
        (self.root / "a" / "b").mkdir(parents=True)
        for name in ("top", "a/one", "a/b/two"):
            (self.root / name).write_text(name)
        objects = LocalObjectStore(
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


def test_rules_that_changed_mean_all_below(setting: Setting) -> None:
    node = setting.index.find(b"a")
    assert node is not None
    node.rules_digest = b"other rules"
    assert setting.look() == {b"a": {b".ortetignore"}}
