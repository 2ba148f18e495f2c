"""Rules in a scan: what they leave out, and where they changed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ortet._util.codec import Hasher
from ortet.backends.local.memory import MemoryBucket
from ortet.history.tree.tree import Trees
from ortet.ids import SystemClock
from ortet.machines.capture.frames import DirectoryScan, ScanPlan, compare_all
from ortet.machines.capture.ignore_rules import IgnoreFilter, IgnoreRules
from ortet.machines.capture.stat_index import DirectoryNode, StatIndex
from ortet.objects.store import LocalObjectStore


class Setting:
    def __init__(self, root: Path) -> None:
        self.root = root / "root"
        self.root.mkdir()
        objects = LocalObjectStore(
            root / "store", MemoryBucket(), hasher=Hasher(), clock=SystemClock()
        )
        self.index = StatIndex(Trees(objects))
        self.rules = IgnoreRules()
        self.sieve = IgnoreFilter(self.index, self.rules)
        self.fd = os.open(self.root, os.O_RDONLY)

    def frame(self, node: DirectoryNode | None = None) -> DirectoryScan:
        return DirectoryScan(node or DirectoryNode(), b"", fd=self.fd, name="", plan=ScanPlan())


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    setting = Setting(tmp_path)
    yield setting
    os.close(setting.fd)


def test_an_ignore_file_is_read_with_its_directory(setting: Setting) -> None:
    (setting.root / ".ortetignore").write_text("x\nsize > 5B\n")
    frame = setting.frame()
    setting.sieve.apply(frame, compare_all(frame))
    assert frame.plan is None, "new rules: everything below is looked at"
    assert setting.sieve.is_left_out(frame, "x", 0o100644, size=1)
    assert not setting.sieve.is_left_out(frame, "y", 0o100644, size=5)
    assert setting.sieve.is_left_out(frame, "y", 0o100644, size=6)
    assert not setting.sieve.is_left_out(frame, "y", 0o040755, size=4096)
    ((name, (loss,)),) = setting.index.losses[b""].items()
    assert (name, loss.path, loss.what) == ("y", "y", "size")


def test_a_known_name_that_becomes_ignored_is_reported_as_gone(setting: Setting) -> None:
    node = DirectoryNode()
    for name in ("keep", "drop"):
        (setting.root / name).write_text(name)
        node.put(name, (0o100644, 1, 1, 1, 0, 0, 4, 0, 0))
    (setting.root / ".ortetignore").write_text("drop\n")
    frame = setting.frame(node)
    found = compare_all(frame)
    setting.sieve.apply(frame, found)
    assert found.removed == {"drop"}
    again = setting.frame(node)
    setting.sieve.apply(again, compare_all(again))
    assert again.plan is not None, "nothing new"


@pytest.mark.parametrize("kind", ["link", "directory", "fifo"])
def test_an_ignore_file_that_is_not_a_regular_file_is_not_read(setting: Setting, kind: str) -> None:
    place = setting.root / ".ortetignore"
    (setting.root / "other").write_text("*\n")
    if kind == "link":
        place.symlink_to("other")
    elif kind == "directory":
        place.mkdir()
    else:
        os.mkfifo(place)
    frame = setting.frame()
    setting.sieve.apply(frame, compare_all(frame))
    assert setting.rules.is_empty


def test_reload_knows_where_rules_changed(setting: Setting) -> None:
    (setting.root / "d").mkdir()
    (setting.root / ".ortetignore").write_text("x\n")
    (setting.root / "d" / ".ortetignore").write_text("y\n")
    top, below, beside = DirectoryNode(), DirectoryNode(), DirectoryNode()
    governed = [(b"", top), (b"d", below), (b"e", beside)]
    ruled = [b"", b"d"]
    assert setting.sieve.reload(setting.fd, ruled, governed) == [b"", b"d", b"e"]
    for path, node in governed:
        node.rules_digest = setting.rules.digest(path)
    assert setting.sieve.reload(setting.fd, ruled, governed) == []
    (setting.root / "d" / ".ortetignore").write_text("z\n")
    assert setting.sieve.reload(setting.fd, ruled, governed) == [b"d"]
    assert setting.sieve.reload(setting.fd, [b""], governed) == [b"d"], "its file is gone"
