"""Writes that send no event, or leave the stat as it was: every commit has the bytes on disk."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.fixtures.editor import PAGE, Editor

from ortet._util.codec import Hasher, decode
from ortet.backends.local.bucket import FileBucket
from ortet.history.records import Image
from ortet.history.tree.tree import Trees
from ortet.ids import SystemClock
from ortet.machines.base import MachineSpec
from ortet.machines.folder import FolderEngine, FolderMachine
from ortet.objects.blobs import read_file
from ortet.objects.store import PackedObjectStore

SOAK = int(os.environ.get("ORTET_SOAK", "1"))
FILES = 6


class Room:
    """A workspace of a machine that stays open, a place outside of it, and another process."""

    def __init__(self, root: Path, place: Path, *, watch: bool) -> None:
        self.root, self.outside = root / "work", root / "outside"
        self.root.mkdir(parents=True)
        self.outside.mkdir()
        for number in range(FILES):
            self.path(number).write_bytes(b"-" * 2 * PAGE)
        (place / "home").mkdir()
        self.objects = PackedObjectStore(
            place / "store",
            FileBucket(place / "store" / "bucket"),
            hasher=Hasher(),
            clock=SystemClock(),
        )
        self.trees = Trees(self.objects)
        self._home, self._watch = place / "home", watch
        self.editor = Editor()
        self.machine = self.open()
        self.commit()
        self.commit()

    def path(self, number: int) -> Path:
        return self.root / f"f{number}"

    def open(self) -> FolderMachine:
        engine = FolderEngine(self.objects, self.trees, SystemClock(), watch=self._watch)
        return engine.open(MachineSpec(id="m", home=self._home, path=self.root))

    def reopen(self) -> None:
        """As another process does: with the index that was saved."""
        self.machine.close()
        self.machine = self.open()

    def commit(self) -> dict[str, bytes]:
        """Return the content of every file in a new commit."""
        with self.objects.writing():
            oid = self.machine.snapshot()
            self.objects.flush()
            self.machine.mark_committed(oid)
        image = decode(Image, self.objects.get(oid))
        return {
            os.fsdecode(path): b"".join(read_file(self.objects, entry))
            for path, entry in self.trees.walk(image.root)
            if entry.is_file
        }

    def missed(self) -> list[str]:
        """Commit, and return the files whose bytes are others than those on disk."""
        stored = self.commit()
        there = {path.name: path.read_bytes() for path in self.root.iterdir()}
        return sorted(name for name in stored | there if stored.get(name) != there.get(name))

    def close(self) -> None:
        self.editor.close()
        self.machine.close()
        self.objects.close()


@pytest.fixture(params=["disk", "memory"])
def file_system(request: pytest.FixtureRequest, place: Path) -> Iterator[Path]:
    if request.param == "disk":
        yield place / "root"
        return
    root = Path("/dev/shm") / place.name
    yield root
    for path in sorted(root.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    root.rmdir()


@pytest.fixture(params=["watch", "scan"])
def room(request: pytest.FixtureRequest, file_system: Path, place: Path) -> Iterator[Room]:
    room = Room(file_system, place, watch=request.param == "watch")
    yield room
    room.close()


@pytest.mark.parametrize("sync", [False, True], ids=["store", "msync"])
def test_stores_of_another_process_through_memory_are_in_every_commit(
    room: Room, sync: bool
) -> None:
    room.editor.map(room.path(1))
    assert room.missed() == []
    for number in range(4):
        room.editor.store(room.path(1), number % 2 * PAGE, b"store %d" % number, sync=sync)
        assert room.missed() == []
        assert room.missed() == []
    room.editor.store(room.path(1), 0, b"the last", sync=sync)
    room.editor.unmap(room.path(1))
    assert room.missed() == []


def test_stores_of_a_killed_process_are_in_the_commit(room: Room) -> None:
    room.editor.map(room.path(1))
    room.editor.store(room.path(1), 0, b"one")
    assert room.missed() == []
    room.editor.store(room.path(1), 0, b"two")
    room.editor.kill()
    assert room.missed() == []
    room.editor = Editor()


def test_a_file_that_was_unmapped_and_is_still_open_is_compared_when_it_is_closed(
    room: Room,
) -> None:
    room.editor.map(room.path(1), keep_open=True)
    room.editor.store(room.path(1), 0, b"one")
    room.editor.unmap(room.path(1))
    room.commit()  # a watched machine may miss it: the guide says so
    room.editor.kill()
    assert room.missed() == []
    room.editor = Editor()


def test_a_commit_sees_writes_by_a_name_outside_of_the_workspace(room: Room) -> None:
    other = room.outside / "other"
    os.link(room.path(1), other)
    assert room.missed() == []
    with other.open("r+b", buffering=0) as file:
        file.write(b"one")
        assert room.missed() == []
        file.write(b"two")
        assert room.missed() == []
    room.editor.map(other)
    room.editor.store(other, 0, b"three")
    assert room.missed() == []
    other.unlink()
    room.editor.store(other, 0, b"four")
    assert room.missed() == []


def test_a_link_that_is_gone_before_the_commit_was_a_way_to_write(room: Room) -> None:
    other = room.outside / "other"
    os.link(room.path(1), other)
    other.write_bytes(b"by another name")
    other.unlink()
    assert room.missed() == []


def test_a_moved_directory_keeps_the_watches_of_its_files(room: Room) -> None:
    (room.root / "a").mkdir()
    room.path(1).rename(room.root / "a" / "f1")
    room.commit()
    (room.root / "a").rename(room.root / "b")
    room.commit()
    other = room.outside / "other"
    os.link(room.root / "b" / "f1", other)
    other.write_bytes(b"by another name")
    assert room.commit()["b/f1"] == b"by another name"


def test_all_names_of_a_mapped_file_are_in_the_commit(room: Room) -> None:
    os.link(room.path(1), room.root / "second")
    room.commit()
    room.editor.map(room.path(1))
    for text in (b"one", b"two", b"six"):
        room.editor.store(room.path(1), 0, text)
        assert room.missed() == []


def test_a_mapped_file_that_is_renamed_or_removed_is_no_longer_looked_for(room: Room) -> None:
    room.editor.map(room.path(1))
    room.editor.map(room.path(2))
    room.editor.store(room.path(1), 0, b"one")
    room.editor.store(room.path(2), 0, b"two")
    assert room.missed() == []
    room.path(1).rename(room.root / "other")
    room.path(2).unlink()
    room.editor.store(room.path(1), 0, b"three")
    assert room.missed() == []
    room.editor.unmap(room.path(1))
    assert room.missed() == []
    index = room.machine._index
    assert index is not None
    room.machine.snapshot()
    assert index.mapped <= {b"other"}, "another file may have the number of this one"


class Campaign:
    """Random edits of random files, each followed by a commit."""

    def __init__(self, room: Room, seed: int) -> None:
        self.room = room
        self.dice = random.Random(seed)
        self.mapped: set[Path] = set()
        self.links: list[Path] = []
        self.edits: list[Callable[[Path], object]] = [
            self.store,
            self.store,
            self.store_and_unmap,
            self.store_and_kill,
            self.write_by_link,
            self.write_by_link,
            self.store_by_link,
            self.link_and_back,
            self.keep_stat,
            self.rename_over,
            self.rewrite,
        ]

    def step(self) -> str:
        edit, path = self.dice.choice(self.edits), self.room.path(self.dice.randrange(FILES))
        edit(path)
        return f"{edit.__name__} {path.name}"

    def text(self) -> bytes:
        return self.dice.randbytes(8)

    def place(self) -> int:
        return self.dice.randrange(2 * PAGE - 8)

    def content(self) -> bytes:
        return self.dice.randbytes(2 * PAGE)

    def store(self, path: Path) -> None:
        self.room.editor.map(path)
        self.mapped.add(path)
        self.room.editor.store(path, self.place(), self.text(), sync=self.dice.random() < 0.5)

    def store_and_unmap(self, path: Path) -> None:
        self.store(path)
        self.room.editor.unmap(path)
        self.mapped.discard(path)

    def store_and_kill(self, path: Path) -> None:
        self.store(path)
        self.room.editor.kill()
        self.mapped.clear()
        self.room.editor = Editor()

    def link(self, path: Path) -> Path:
        link = self.room.outside / f"{len(self.links)}"
        os.link(path, link)
        self.links.append(link)
        return link

    def write_by_link(self, path: Path) -> None:
        link = self.dice.choice(self.links) if self.links and self.dice.random() < 0.7 else None
        with (link or self.link(path)).open("r+b") as file:
            file.seek(self.place())
            file.write(self.text())

    def store_by_link(self, path: Path) -> None:
        self.store(self.link(path))

    def link_and_back(self, path: Path) -> None:
        link = self.room.outside / "back"
        os.link(path, link)
        with link.open("r+b") as file:
            file.write(self.text())
        link.unlink()

    def keep_stat(self, path: Path) -> None:
        was = path.stat()
        with path.open("r+b") as file:
            file.seek(self.place())
            file.write(self.text())
        os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))

    def rename_over(self, path: Path) -> None:
        was, new = path.stat(), self.room.outside / "new"
        new.write_bytes(self.content())
        os.utime(new, ns=(was.st_atime_ns, was.st_mtime_ns))
        new.rename(path)

    def rewrite(self, path: Path) -> None:
        path.write_bytes(self.content())


@pytest.mark.soak
def test_no_commit_misses_a_change(room: Room) -> None:
    """2 000 edits in a soak, 500 for each way to look at each file system."""
    campaign = Campaign(room, seed=19)
    for number in range(50 * SOAK):
        edit = campaign.step()
        assert room.missed() == [], f"edit {number}: {edit}"
        if number % 20 == 19:
            room.reopen()
            room.commit()
