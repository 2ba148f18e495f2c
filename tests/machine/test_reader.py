"""Few files are read at once, many by threads; both find the same."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ortet.backend.memory import MemoryBucket
from ortet.codec import Hasher
from ortet.ids import Oid, SystemClock
from ortet.machine.reader import Job, Reader
from ortet.store.abc import Kind
from ortet.store.objects import LocalObjects


class Told(LocalObjects):
    """Knows which threads brought contents."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, MemoryBucket(), hasher=Hasher(), clock=SystemClock())
        self.threads: set[str] = set()

    def put(self, kind: Kind, data: bytes) -> Oid:
        self.threads.add(threading.current_thread().name)
        return super().put(kind, data)


@pytest.fixture
def objects(tmp_path: Path) -> Iterator[Told]:
    objects = Told(tmp_path / "store")
    yield objects
    objects.close()


@pytest.fixture
def here(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "files").mkdir()
    for number in range(300):
        (tmp_path / "files" / f"f{number}").write_text(f"content {number}")
    fd = os.open(tmp_path / "files", os.O_RDONLY)
    yield fd
    os.close(fd)


def jobs(fd: int, numbers: range) -> list[Job]:
    return [
        Job(f"f{n}", b"f%d" % n, os.stat(f"f{n}", dir_fd=fd), b"files/f%d" % n) for n in numbers
    ]


def test_few_files_are_read_at_once(objects: Told, here: int) -> None:
    reader = Reader(objects)
    (wait,) = reader.read(here, jobs(here, range(10)))
    assert objects.threads == {threading.current_thread().name}
    assert [outcome.job.name for outcome in wait()] == [f"f{n}" for n in range(10)]
    reader.close()


def test_many_files_are_read_by_threads(objects: Told, here: int) -> None:
    reader = Reader(objects)
    pending = reader.read(here, jobs(here, range(300)))
    outcomes = [outcome for wait in pending for outcome in wait()]
    assert [outcome.job.name for outcome in outcomes] == [f"f{n}" for n in range(300)]
    assert all(outcome.found and not outcome.unreadable for outcome in outcomes)
    assert threading.current_thread().name not in objects.threads
    reader.close()


def test_what_is_gone_is_an_outcome(objects: Told, here: int, tmp_path: Path) -> None:
    reader = Reader(objects)
    work = jobs(here, range(2))
    (tmp_path / "files" / "f1").unlink()
    (wait,) = reader.read(here, work)
    first, second = wait()
    assert first.found is not None and second.found is None and not second.unreadable
    reader.close()


def test_descriptors_are_given_back_when_it_is_closed_early(
    objects: Told, here: int, tmp_path: Path
) -> None:
    reader = Reader(objects)
    reader.read(here, jobs(here, range(300)))
    reader.close()
    open_now = [os.readlink(f"/proc/self/fd/{here}")]
    for name in os.listdir("/proc/self/fd"):
        if int(name) != here and os.path.realpath(f"/proc/self/fd/{name}") == open_now[0]:
            open_now.append(name)
    assert open_now == [str(tmp_path / "files")]
