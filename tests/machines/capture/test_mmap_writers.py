"""Stores through memory: what the kernel tells of them, and how a scan sees them all the same."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ortet._util.codec import Hasher, decode
from ortet.backends.local.bucket import FileBucket
from ortet.history.records import Image
from ortet.history.tree.tree import Trees
from ortet.ids import SystemClock
from ortet.machines.base import MachineSpec
from ortet.machines.capture.mmap_writers import mapped_inodes, tracks_mmap_writes
from ortet.machines.folder import FolderEngine
from ortet.objects.blobs import read_file
from ortet.objects.store import PackedObjectStore


class Mapped:
    """A file of two pages, stored to through memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(b"-" * 2 * mmap.PAGESIZE)
        with path.open("r+b") as file:
            self.memory = mmap.mmap(file.fileno(), 0)

    def store(self, text: bytes) -> None:
        self.memory[: len(text)] = text


@pytest.fixture(params=["disk", "memory"])
def root(request: pytest.FixtureRequest, place: Path) -> Iterator[Path]:
    if request.param == "disk":
        (place / "root").mkdir()
        yield place / "root"
        return
    root = Path("/dev/shm") / place.name
    root.mkdir()
    yield root
    for path in root.iterdir():
        path.unlink()
    root.rmdir()


@pytest.fixture
def mapped(root: Path) -> Iterator[Mapped]:
    mapped = Mapped(root / "f")
    yield mapped
    mapped.memory.close()


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others may have mapped a file that has the same number on another filesystem."""
    real = os.listdir

    def listdir(path: str = ".") -> list[str]:
        return [str(os.getpid())] if path == "/proc" else real(path)

    monkeypatch.setattr(os, "listdir", listdir)


class Reader:
    """A machine on `root`, and what it froze of the file."""

    def __init__(self, root: Path, place: Path, watch: bool) -> None:
        store = place / "store"
        self.objects = PackedObjectStore(
            store, FileBucket(store / "bucket"), hasher=Hasher(), clock=SystemClock()
        )
        self.trees = Trees(self.objects)
        engine = FolderEngine(self.objects, self.trees, SystemClock(), watch=watch)
        (place / "home").mkdir()
        self.machine = engine.open(MachineSpec(id="m", home=place / "home", path=root))

    def frozen(self) -> bytes:
        image = decode(Image, self.objects.get(self.machine.snapshot()))
        entry = self.trees.resolve(image.root, b"f")
        assert entry is not None
        return b"".join(read_file(self.objects, entry)).rstrip(b"-")


@pytest.fixture(params=["watch", "scan"])
def reader(request: pytest.FixtureRequest, root: Path, place: Path) -> Iterator[Reader]:
    reader = Reader(root, place, request.param == "watch")
    yield reader
    reader.machine.close()
    reader.objects.close()


def test_a_scan_sees_every_write_through_a_memory_mapping(reader: Reader, mapped: Mapped) -> None:
    """The first moves the file's times, the next to the same page do not."""
    assert reader.frozen() == b""
    for number in range(5):
        mapped.store(b"store %d" % number)
        assert reader.frozen() == b"store %d" % number
        assert reader.frozen() == b"store %d" % number


def test_writes_through_a_mapping_are_seen_after_a_restart(
    root: Path, place: Path, mapped: Mapped
) -> None:
    reader = Reader(root, place, False)
    reader.frozen()
    mapped.store(b"before")
    image = reader.machine.snapshot()
    reader.objects.flush()
    reader.machine.mark_committed(image)
    reader.machine.close()
    mapped.store(b"after ")
    engine = FolderEngine(reader.objects, reader.trees, SystemClock(), watch=False)
    reader.machine = engine.open(MachineSpec(id="m", home=place / "home", path=root))
    assert reader.frozen() == b"after "
    reader.objects.close()


@pytest.mark.usefixtures("alone")
def test_an_ended_mapping_is_forgotten(reader: Reader, mapped: Mapped) -> None:
    reader.frozen()
    mapped.store(b"x")
    reader.frozen()
    index = reader.machine._index
    assert index is not None and index.mapped == {b"f"}
    mapped.store(b"y")
    mapped.memory.close()
    os.utime(mapped.path)
    assert reader.frozen() == b"y"
    assert index.mapped == set()


@pytest.mark.usefixtures("alone")
def test_mapped_inodes_lists_a_file_while_it_is_mapped(mapped: Mapped) -> None:
    inode = mapped.path.stat().st_ino
    assert inode in mapped_inodes()
    mapped.memory.close()
    assert inode not in mapped_inodes()


def test_moves_mtime_is_true_for_disks_and_false_for_shared_memory(place: Path) -> None:
    assert tracks_mmap_writes(place.stat().st_dev)
    assert not tracks_mmap_writes(Path("/dev/shm").stat().st_dev)
