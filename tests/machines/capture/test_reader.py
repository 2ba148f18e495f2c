"""What is read of a name, and what is said when it cannot be."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ortet._util.codec import Hasher
from ortet.backends.local.memory import MemoryBucket
from ortet.ids import Oid, SystemClock
from ortet.machines.capture.reader import ReadJob, read_file_entry
from ortet.objects.store import PackedObjectStore


@pytest.fixture
def objects(tmp_path: Path) -> Iterator[PackedObjectStore]:
    objects = PackedObjectStore(
        tmp_path / "store", MemoryBucket(), hasher=Hasher(), clock=SystemClock()
    )
    yield objects
    objects.close()


@pytest.fixture
def here(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "files").mkdir()
    fd = os.open(tmp_path / "files", os.O_RDONLY)
    yield fd
    os.close(fd)


def job(fd: int, name: str) -> ReadJob:
    raw = os.fsencode(name)
    return ReadJob(name, raw, os.stat(name, dir_fd=fd, follow_symlinks=False), b"files/" + raw)


def test_content_is_stored(objects: PackedObjectStore, here: int, tmp_path: Path) -> None:
    (tmp_path / "files/f").write_text("content")
    outcome = read_file_entry(objects, here, job(here, "f"))
    assert outcome.captured is not None
    entry, st = outcome.captured
    assert objects.get(Oid(entry.data)) == b"content"
    assert (entry.name, entry.size, st.st_size) == (b"f", 7, 7)
    assert not outcome.unreadable
    assert outcome.losses == []


def test_a_deleted_file_is_an_outcome_without_an_error(
    objects: PackedObjectStore, here: int, tmp_path: Path
) -> None:
    (tmp_path / "files/f").write_text("content")
    work = job(here, "f")
    (tmp_path / "files/f").unlink()
    outcome = read_file_entry(objects, here, work)
    assert outcome.captured is None
    assert not outcome.unreadable


def test_a_file_without_read_permission_is_reported_as_unreadable(
    objects: PackedObjectStore, here: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "files/f").write_text("content")
    work = job(here, "f")

    def closed(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("ortet.machines.capture.entry.os.open", closed)
    outcome = read_file_entry(objects, here, work)
    monkeypatch.undo()
    assert (outcome.captured, outcome.unreadable) == (None, True)
    assert [loss.what for loss in outcome.losses] == ["unreadable"]
