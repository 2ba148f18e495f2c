"""One name becomes an Entry, whatever it is and whatever happens to it meanwhile."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ortet._util.codec import Hasher, decode
from ortet.backends.local.memory import MemoryBucket
from ortet.history.records import TreeEntry
from ortet.ids import Oid, SystemClock
from ortet.machines.base import Loss
from ortet.machines.capture.entry import (
    MAX_READ_ATTEMPTS,
    ReadJob,
    Unreadable,
    capture_entry,
    capture_with_stat,
    read_file_entry,
)
from ortet.objects.base import Kind, ObjectStore
from ortet.objects.blobs import read_file
from ortet.objects.store import PackedObjectStore


class Kept(ObjectStore):
    """In memory; `meddle` is called at every put of content, as if somebody worked in the files."""

    def __init__(self) -> None:
        self.hasher = Hasher()
        self.held: dict[Oid, bytes] = {}
        self.meddle: Callable[[], object] = lambda: None

    def put(self, kind: Kind, data: bytes) -> Oid:
        oid = self.hasher.oid(data)
        self.held[oid] = bytes(data)
        if kind == Kind.BLOB:
            self.meddle()
        return oid

    def get(self, oid: Oid) -> bytes:
        return self.held[oid]

    def has(self, oid: Oid) -> bool:
        return oid in self.held


class Place:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.objects = Kept()
        self.losses: list[Loss] = []
        self.fd = os.open(path, os.O_RDONLY)

    def stat(self, name: bytes) -> os.stat_result:
        return os.stat(name, dir_fd=self.fd, follow_symlinks=False)

    def take(self, name: bytes, st: os.stat_result | None = None) -> TreeEntry | None:
        return capture_entry(
            self.objects,
            self.fd,
            name,
            st or self.stat(name),
            path=b"sub/" + name,
            losses=self.losses,
        )

    def got(self, name: bytes, st: os.stat_result | None = None) -> TreeEntry:
        entry = self.take(name, st)
        assert entry is not None
        return entry

    def content(self, entry: TreeEntry) -> bytes:
        return b"".join(read_file(self.objects, entry))

    def xattrs(self, entry: TreeEntry) -> dict[bytes, bytes]:
        if not entry.xattrs:
            return {}
        return dict(decode(list[tuple[bytes, bytes]], self.objects.get(Oid(entry.xattrs))))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    os.close(place.fd)


@contextmanager
def nobody() -> Iterator[None]:
    """Root may read everything; this process is somebody else for a while."""
    os.setegid(65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@pytest.mark.root
@pytest.mark.parametrize("size", [0, 1, 131072, 131073, 700_000])
def test_a_file_is_captured_with_content_owner_mode_and_mtime(place: Place, size: int) -> None:
    data = os.urandom(size)
    (place.path / "f").write_bytes(data)
    (place.path / "f").chmod(0o4741)
    os.chown(place.path / "f", 12, 34)
    (place.path / "f").chmod(0o4741)
    os.utime(place.path / "f", ns=(0, -1_500_000_001))
    entry = place.got(b"f")
    assert place.content(entry) == data
    assert (entry.name, entry.mode, entry.size) == (b"f", stat.S_IFREG | 0o4741, size)
    assert (entry.uid, entry.gid, entry.mtime) == (12, 34, -1_500_000_001)
    assert (entry.xattrs, entry.holes, entry.rdev, entry.cid) == (b"", b"", 0, b"")
    assert bool(entry.data) == bool(size)
    assert place.losses == []


def test_links_are_not_followed(place: Place) -> None:
    os.symlink(b"\xff/no where", os.fsencode(place.path) + b"/li\xfenk")  # noqa: PTH211
    entry = place.got(b"li\xfenk")
    assert (entry.is_link, entry.data, entry.size) == (True, b"\xff/no where", 0)


def test_a_fifo_is_not_opened(place: Place) -> None:
    os.mkfifo(place.path / "pipe", 0o600)
    assert stat.S_ISFIFO(place.got(b"pipe").mode)
    keeper = os.open(place.path / "pipe", os.O_RDWR | os.O_NONBLOCK)
    os.write(keeper, b"for somebody else")
    place.got(b"pipe")
    assert os.read(keeper, 100) == b"for somebody else"
    os.close(keeper)


@pytest.mark.root
def test_devices_and_sockets_are_captured_with_their_type_and_number(place: Place) -> None:
    os.mknod(place.path / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mknod(place.path / "sock", stat.S_IFSOCK | 0o700)
    assert place.got(b"null").rdev == os.makedev(1, 3)
    assert stat.S_ISSOCK(place.got(b"sock").mode)
    assert place.got(b"sock").rdev == 0


def test_captured_holes_are_the_unwritten_ranges(place: Place) -> None:
    with (place.path / "f").open("wb") as file:
        file.truncate(3 << 20)
        file.seek(1 << 20)
        file.write(b"x" * 4096)
    entry = place.got(b"f")
    holes = decode(list[tuple[int, int]], place.objects.get(Oid(entry.holes)))
    assert holes == [(0, 1 << 20), ((1 << 20) + 4096, (2 << 20) - 4096)]
    assert place.content(entry) == (place.path / "f").read_bytes()


def test_a_file_without_holes_has_none(place: Place) -> None:
    (place.path / "f").write_bytes(b"\0" * (1 << 20))
    assert place.got(b"f").holes == b""


@pytest.mark.root
def test_xattrs_but_not_those_of_this_host(place: Place) -> None:
    file = place.path / "f"
    file.write_text("x")
    os.setxattr(file, "user.b", b"\0\xff")
    os.setxattr(file, "user.a", b"")
    os.setxattr(file, "user.overlay.opaque", b"y")
    os.setxattr(file, "trusted.overlay.metacopy", b"y")
    os.setxattr(file, "trusted.mine", b"t")
    assert place.xattrs(place.got(b"f")) == {
        b"trusted.mine": b"t",
        b"user.a": b"",
        b"user.b": b"\0\xff",
    }


@pytest.mark.root
def test_xattrs_of_symlinks_and_fifos_are_captured(place: Place) -> None:
    (place.path / "link").symlink_to("nowhere")
    os.mkfifo(place.path / "pipe")
    os.setxattr(place.path / "link", "trusted.mine", b"l", follow_symlinks=False)
    os.setxattr(place.path / "pipe", "trusted.mine", b"p")
    assert place.xattrs(place.got(b"link")) == {b"trusted.mine": b"l"}
    assert place.xattrs(place.got(b"pipe")) == {b"trusted.mine": b"p"}


def test_a_file_deleted_before_it_is_opened_is_skipped_without_a_loss(place: Place) -> None:
    (place.path / "f").write_text("x")
    st = place.stat(b"f")
    (place.path / "f").unlink()
    assert place.take(b"f", st) is None
    assert place.losses == []


@pytest.mark.parametrize("kind", ["link", "fifo", "dir"])
def test_a_file_replaced_before_it_is_opened_is_captured_as_its_new_type(
    place: Place, kind: str, tmp_path: Path
) -> None:
    secret = tmp_path.parent / "secret"
    secret.write_text("not ours")
    (place.path / "f").write_text("x")
    st = place.stat(b"f")
    (place.path / "f").unlink()
    if kind == "link":
        (place.path / "f").symlink_to(secret)
        assert place.got(b"f", st).data == os.fsencode(secret)
    elif kind == "fifo":
        os.mkfifo(place.path / "f")
        assert stat.S_ISFIFO(place.got(b"f", st).mode)
    else:
        (place.path / "f").mkdir()
        assert place.take(b"f", st) is None
    assert place.objects.hasher.oid(b"not ours") not in place.objects.held


def test_a_file_written_while_it_is_read_is_read_again(place: Place) -> None:
    file = place.path / "f"
    file.write_text("before")

    def once() -> None:
        place.objects.meddle = lambda: None
        file.write_text("after, and longer")

    place.objects.meddle = once
    entry = place.got(b"f")
    assert place.content(entry) == b"after, and longer"
    assert entry.mtime == file.stat().st_mtime_ns
    assert place.losses == []


def test_a_file_that_keeps_growing_is_a_loss_with_its_size(place: Place) -> None:
    file = place.path / "f"
    file.write_text("line 0\n")
    count = 0

    def grow() -> None:
        nonlocal count
        count += 1
        with file.open("a") as out:
            out.write(f"line {count}\n")

    place.objects.meddle = grow
    entry = place.got(b"f")
    assert count == MAX_READ_ATTEMPTS
    content = place.content(entry)
    assert len(content) == entry.size
    assert file.read_bytes().startswith(content)
    assert [(loss.path, loss.what) for loss in place.losses] == [("sub/f", "changing")]


def test_a_file_truncated_during_every_read_is_reported_as_changing(place: Place) -> None:
    file = place.path / "f"
    file.write_bytes(b"x" * 1000)
    place.objects.meddle = lambda: os.truncate(file, file.stat().st_size // 2)
    with pytest.raises(Unreadable) as caught:
        capture_with_stat(place.objects, place.fd, b"f", place.stat(b"f"), path=b"f", losses=[])
    assert caught.value.loss.what == "changing"


@pytest.mark.root
def test_a_file_we_may_not_read(place: Place) -> None:
    place.path.chmod(0o755)
    (place.path / "f").write_text("secret")
    (place.path / "f").chmod(0o600)
    with nobody():
        assert place.take(b"f") is None
    (loss,) = place.losses
    assert (loss.path, loss.what) == ("sub/f", "unreadable")
    assert "Permission denied" in loss.why


@pytest.mark.root
def test_a_readable_file_of_another_owner_is_captured(place: Place) -> None:
    """Only an owner may open without moving atime; others open it as anybody would."""
    place.path.chmod(0o755)
    (place.path / "f").write_text("public")
    (place.path / "f").chmod(0o644)
    with nobody():
        assert place.content(place.got(b"f")) == b"public"


def test_reading_does_not_change_the_atime(place: Place) -> None:
    file = place.path / "f"
    file.write_text("x")
    os.utime(file, ns=(1, 2))
    place.got(b"f")
    assert file.stat().st_atime_ns == 1


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
