"""What inotify tells, and what happens when it cannot."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ortet.machines.base import ChangeNotice
from ortet.machines.capture.frames import DirtyPaths
from ortet.machines.capture.inotify import InotifyWatch, is_local_filesystem


class Setting:
    def __init__(self, root: Path) -> None:
        self.root = root
        watch = InotifyWatch.open(root)
        assert watch is not None
        self.watch = watch

    def add(self, *paths: str) -> None:
        for path in paths:
            fd = os.open(self.root / path, os.O_RDONLY | os.O_DIRECTORY)
            self.watch.add(fd, path.encode())
            os.close(fd)

    def add_file(self, path: str, *, linked: bool) -> None:
        fd = os.open((self.root / path).parent, os.O_RDONLY | os.O_DIRECTORY)
        self.watch.add_file(fd, path.encode(), linked=linked)
        os.close(fd)

    def drain(self) -> DirtyPaths:
        dirty = self.watch.drain()
        assert dirty is not None
        return dirty

    def names(self) -> dict[bytes, set[bytes] | None]:
        return self.drain().names


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "f").write_text("f")
    (tmp_path / "a" / "g").write_text("g")
    setting = Setting(tmp_path)
    setting.add("", "a", "a/b")
    yield setting
    setting.watch.close()


def test_reading_files_reports_no_change(setting: Setting) -> None:
    (setting.root / "f").read_text()
    os.listdir(setting.root / "a")
    assert setting.names() == {}


def test_every_change_names_its_directory_and_itself(setting: Setting) -> None:
    (setting.root / "f").write_text("changed")
    assert setting.names() == {b"": {b"f"}}
    (setting.root / "a" / "g").chmod(0o600)
    assert setting.names() == {b"a": {b"g"}}
    os.utime(setting.root / "a" / "g", ns=(0, 1))
    assert setting.names() == {b"a": {b"g"}}
    os.setxattr(setting.root / "a" / "g", "user.x", b"1")
    assert setting.names() == {b"a": {b"g"}}
    (setting.root / "a" / "g").rename(setting.root / "a" / "b" / "h")
    assert setting.names() == {b"a": {b"g"}, b"a/b": {b"h"}}
    (setting.root / "a" / "b" / "h").unlink()
    assert setting.names() == {b"a/b": {b"h"}}
    (setting.root / "link").symlink_to("f")
    assert setting.names() == {b"": {b"link"}}
    with (setting.root / "f").open("ab", buffering=0) as file:
        file.write(b"unclosed")
        assert setting.names() == {b"": {b"f"}}


def test_a_directory_that_changes_itself(setting: Setting) -> None:
    (setting.root / "a").chmod(0o700)
    assert setting.names() == {b"": {b"a"}}
    os.utime(setting.root, ns=(0, 1))
    assert setting.names() == {b"": set()}


def test_a_file_name_that_is_not_utf8_is_reported(setting: Setting) -> None:
    Path(os.fsdecode(os.fsencode(setting.root) + b"/\xff\n")).write_text("x")
    assert setting.names() == {b"": {b"\xff\n"}}


def test_a_new_directory_is_reported_as_whole(setting: Setting) -> None:
    (setting.root / "new").mkdir()
    (setting.root / "new" / "unseen").write_text("x")
    dirty = setting.drain()
    assert (dirty.names, dirty.whole) == ({b"": {b"new"}}, {b"new"})
    (setting.root / "new").rename(setting.root / "a" / "moved")
    dirty = setting.drain()
    assert dirty.whole == {b"a/moved"}
    assert dirty.names == {b"": {b"new"}, b"a": {b"moved"}}


def test_a_moved_directory_is_known_by_its_new_path(setting: Setting) -> None:
    (setting.root / "a").rename(setting.root / "z")
    setting.drain()
    setting.add("z", "z/b")
    setting.watch.remove(b"a")
    (setting.root / "z" / "b" / "x").write_text("x")
    assert setting.names() == {b"z/b": {b"x"}}
    (setting.root / "z" / "g").unlink()
    assert setting.names() == {b"z": {b"g"}}


def test_a_dropped_directory_is_silent(setting: Setting) -> None:
    setting.watch.remove(b"a")
    (setting.root / "a" / "b" / "x").write_text("x")
    (setting.root / "a" / "x").write_text("x")
    assert setting.names() == {}


def test_a_directory_removed_and_made_again_is_reported_whole(setting: Setting) -> None:
    shutil.rmtree(setting.root / "a")
    (setting.root / "a").mkdir()
    dirty = setting.drain()
    assert b"a" in dirty.whole
    setting.add("a")
    (setting.root / "a" / "x").write_text("x")
    assert setting.names() == {b"a": {b"x"}}


def test_a_file_with_another_name_is_watched_itself(setting: Setting, tmp_path: Path) -> None:
    outside = tmp_path.parent / "outside-name"
    os.link(setting.root / "a" / "g", outside)
    setting.add_file("a/g", linked=True)
    setting.drain()
    with outside.open("a") as file:
        file.write("by the other name")
    assert setting.names() == {b"a": {b"g"}}
    outside.unlink()


def test_a_file_closed_without_a_write_since_the_last_drain_is_reported_as_closed(
    setting: Setting,
) -> None:
    with (setting.root / "f").open("ab", buffering=0) as file:
        file.write(b"x")
        assert setting.drain().closed == set()
    assert setting.drain().closed == {b"f"}
    (setting.root / "f").write_bytes(b"written and closed")
    assert setting.drain().closed == set()


def test_a_new_link_of_a_file_is_reported_if_files_are_watched(
    setting: Setting, tmp_path: Path
) -> None:
    outside = tmp_path.parent / "later-name"
    setting.add_file("a/g", linked=False)
    os.link(setting.root / "a" / "g", outside)
    assert setting.names() == {}
    setting.watch.watch_files = True
    setting.add_file("a/g", linked=False)
    outside.unlink()
    assert setting.names() == {b"a": {b"g"}}
    os.link(setting.root / "a" / "g", outside)
    assert setting.names() == {b"a": {b"g"}}
    outside.unlink()


def test_no_more_files_are_watched_than_a_quarter_of_the_limit(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    limit = tmp_path.parent / "limit"
    limit.write_text("7\n")
    monkeypatch.setattr("ortet.machines.capture.inotify._WATCH_LIMIT_FILE", str(limit))
    watch = InotifyWatch.open(setting.root)
    assert watch is not None
    watch.watch_files = True
    fd = os.open(setting.root, os.O_RDONLY)
    for name in ("f", "g"):
        (setting.root / name).touch()
        watch.add_file(fd, name.encode(), linked=False)
    os.close(fd)
    watch.drain()
    outside = tmp_path.parent / "limited-name"
    for name, heard in (("f", {b"": {b"f"}}), ("g", {})):
        os.link(setting.root / name, outside)
        dirty = watch.drain()
        assert dirty is not None and dirty.names == heard
        outside.unlink()
        watch.drain()
    assert watch.broken_reason == ""
    watch.close()


def test_a_queue_overflow_means_that_everything_may_have_changed(setting: Setting) -> None:
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    for _ in range(limit // 2 + 10):
        os.utime(setting.root / "f")
        os.utime(setting.root / "a" / "g")
    assert setting.watch.drain() is None


def test_a_moved_root_means_that_everything_may_have_changed(
    setting: Setting, tmp_path: Path
) -> None:
    tmp_path.rename(tmp_path.parent / "elsewhere")
    assert setting.watch.drain() is None
    (tmp_path.parent / "elsewhere").rename(tmp_path)


def test_a_failed_inotify_watch_marks_the_watch_as_broken(tmp_path: Path) -> None:
    class Full:
        def inotify_add_watch(self, *_: object) -> int:
            ctypes.set_errno(28)
            return -1

    fd = os.open(tmp_path, os.O_RDONLY)
    watch = InotifyWatch(os.dup(fd), Full())  # type: ignore[arg-type]
    watch.add(fd, b"")
    os.close(fd)
    assert watch.broken_reason == "No space left on device"
    watch.close()


def test_only_local_file_systems_are_watched(tmp_path: Path) -> None:
    assert is_local_filesystem(tmp_path)
    assert not is_local_filesystem(Path("/proc"))
    assert not is_local_filesystem(Path("/")), "proc and others are mounted below it"
    assert InotifyWatch.open(Path("/proc/self")) is None


def test_a_child_does_not_take_its_parents_events(setting: Setting) -> None:
    (setting.root / "f").write_text("changed")
    child = os.fork()
    if child == 0:
        os._exit(0 if setting.watch.drain() is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert setting.names() == {b"": {b"f"}}


class TestListening:
    """What is heard early is not lost: the next look is told of it, too."""

    def hear(self, setting: Setting, *ignored: bytes) -> ChangeNotice:
        return setting.watch.wait_for_changes(0, -1, lambda path, _: path in ignored)

    def test_listen_returns_no_news_without_a_change(self, setting: Setting) -> None:
        assert self.hear(setting) == ChangeNotice()

    def test_listen_reports_a_change_once_and_drain_still_returns_its_name(
        self, setting: Setting
    ) -> None:
        (setting.root / "f").write_text("new")
        assert self.hear(setting) == ChangeNotice(changed=True)
        assert self.hear(setting) == ChangeNotice()
        (setting.root / "a" / "g").write_text("new")
        (setting.root / "h").write_text("new")
        assert self.hear(setting) == ChangeNotice(changed=True)
        (setting.root / "i").write_text("new")
        assert setting.names() == {b"": {b"f", b"h", b"i"}, b"a": {b"g"}}
        assert setting.names() == {}

    def test_listen_reports_a_new_directory_as_fresh(self, setting: Setting) -> None:
        (setting.root / "new").mkdir()
        assert self.hear(setting) == ChangeNotice(changed=True, fresh=True)
        (setting.root / "f").write_text("new")
        assert self.hear(setting) == ChangeNotice(changed=True)
        assert setting.drain().whole == {b"new"}

    def test_listen_reports_no_news_for_ignored_names(self, setting: Setting) -> None:
        (setting.root / "log").write_text("new")
        (setting.root / "out").mkdir()
        assert self.hear(setting, b"log", b"out") == ChangeNotice()
        assert setting.names() == {b"": {b"log", b"out"}}  # the rules may be others by then

    def test_listen_returns_when_its_wake_descriptor_is_readable(self, setting: Setting) -> None:
        read, write = os.pipe()
        os.write(write, b"x")
        assert setting.watch.wait_for_changes(-1, read, lambda *_: False) == ChangeNotice()
        os.close(read)
        os.close(write)

    def test_listen_reports_a_replaced_root_as_fresh_and_changed(self, setting: Setting) -> None:
        shutil.rmtree(setting.root)
        setting.root.mkdir()
        assert self.hear(setting) == ChangeNotice(changed=True, fresh=True)
        assert setting.watch.drain() is None

    def test_lost_inotify_events_are_reported_as_a_full_change(self, setting: Setting) -> None:
        most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
        files = [(setting.root / name).open("wb", buffering=0) for name in "fh"]
        for number in range(most + 10):
            files[number % 2].write(b"x")
        for file in files:
            file.close()
        (setting.root / "unheard").write_text("")
        assert self.hear(setting) == ChangeNotice(changed=True, fresh=True)
        assert setting.watch.drain() is None
