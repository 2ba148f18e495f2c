"""One entry at one name: everything applied, or a Loss."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures import forked

from ortet._util.codec import encode
from ortet.errors import Corrupt
from ortet.history.records import TreeEntry
from ortet.machines.restore.write_entry import EntryWriter, NamedTarget, OpenTarget, write_all
from ortet.objects.base import Kind
from ortet.objects.blobs import put_bytes, read_file

pytestmark = pytest.mark.root

FILE, LINK, DIR = stat.S_IFREG, stat.S_IFLNK, stat.S_IFDIR


@pytest.fixture
def at(place: Path) -> Iterator[int]:
    fd = os.open(place, os.O_RDONLY)
    yield fd
    os.close(fd)


def _file(shop: Any, data: bytes, **more: Any) -> TreeEntry:
    fields = {"name": b"f", "mode": FILE | 0o644, "mtime": 5, "size": len(data)}
    return TreeEntry(**{**fields, "data": put_bytes(shop.objects, data), **more})


def _write(shop: Any, at: int, entry: TreeEntry, name: bytes = b"f") -> EntryWriter:
    writer = EntryWriter(shop.objects)
    data = read_file(shop.objects, entry)
    writer.write_file(at, name, entry=entry, data=data, path=b"dir/" + name)
    return writer


def test_a_file_gets_content_owner_mode_xattrs_and_time(shop: Any, place: Path, at: int) -> None:
    xattrs = shop.objects.put(Kind.META, encode([(b"user.a", b"1"), (b"user.b", b"\0\xff")]))
    entry = _file(shop, b"x" * 300_000, mode=FILE | 0o6551, mtime=-7, uid=12, gid=34, xattrs=xattrs)
    writer = _write(shop, at, entry)
    now = os.stat(place / "f")
    assert (now.st_mode, now.st_uid, now.st_gid) == (FILE | 0o6551, 12, 34)
    assert now.st_mtime_ns == -7
    assert (place / "f").read_bytes() == b"x" * 300_000
    assert {n: os.getxattr(place / "f", n) for n in os.listxattr(place / "f")} == {
        "user.a": b"1",
        "user.b": b"\0\xff",
    }
    assert writer.losses == []


def test_write_file_returns_the_stat_of_the_written_file(shop: Any, place: Path, at: int) -> None:
    entry = _file(shop, b"x", uid=7)
    found = EntryWriter(shop.objects).write_file(at, b"f", entry=entry, data=[b"x"], path=b"f")
    assert found == os.stat(place / "f")


@pytest.mark.parametrize("moment", [0, -1, 1, -(2**31) * 10**9, 15_000_000_000 * 10**9 + 1])
def test_every_mtime_the_file_system_can_hold_is_applied(
    shop: Any, place: Path, at: int, moment: int
) -> None:
    writer = _write(shop, at, _file(shop, b"x", mtime=moment))
    assert os.stat(place / "f").st_mtime_ns == moment
    assert writer.losses == []


def test_a_time_beyond_the_file_system_is_a_loss(shop: Any, place: Path, at: int) -> None:
    writer = _write(shop, at, _file(shop, b"x", mtime=2**64 - 1))  # ext4 ends in 2446
    now = os.stat(place / "f").st_mtime_ns
    assert [(loss.path, loss.what) for loss in writer.losses] == [("dir/f", "mtime")]
    assert str(now) in writer.losses[0].why


def test_holes_stay_unallocated(shop: Any, place: Path, at: int) -> None:
    content = bytes(1 << 20) + b"a" * 4096 + bytes(1 << 20) + b"b" * 4096
    gaps = [(0, 1 << 20), ((1 << 20) + 4096, 1 << 20)]
    holes = shop.objects.put(Kind.META, encode(gaps))
    writer = _write(shop, at, _file(shop, content, holes=holes))
    assert (place / "f").read_bytes() == content
    assert os.stat(place / "f").st_blocks * 512 <= 3 * 4096
    assert writer.losses == []


def test_a_file_of_a_terabyte_hole_is_quick(shop: Any, place: Path, at: int) -> None:
    with (place / "from").open("wb") as file:
        file.truncate(1 << 40)
        file.seek((1 << 40) - 5)
        file.write(b"end")
    image = shop.freeze(place)
    entry = shop.trees.resolve(image.root, b"from")
    writer = EntryWriter(shop.objects)
    writer.write_file(at, b"to", entry=entry, data=(), path=b"to")
    with (place / "to").open("rb") as file:
        file.seek((1 << 40) - 5)
        assert file.read() == b"end\0\0"
    assert writer.losses == []


@pytest.mark.parametrize("gaps", [[(0, 10)], [(0, 2), (1, 1)], [(2, 1), (0, 1)], [(1, -1)]])
def test_impossible_holes_are_corrupt(shop: Any, at: int, gaps: list[tuple[int, int]]) -> None:
    holes = shop.objects.put(Kind.META, encode(gaps))
    with pytest.raises(Corrupt):
        _write(shop, at, _file(shop, b"abc", holes=holes))


def test_content_of_another_size_is_corrupt(shop: Any, at: int) -> None:
    with pytest.raises(Corrupt):
        _write(shop, at, _file(shop, b"abc", size=2))
    with pytest.raises(Corrupt) as error:
        EntryWriter(shop.objects).write_file(
            at, b"g", entry=_file(shop, b""), data=[b"more"], path=b"g"
        )
    assert error.value.kind == "bad_entry"


def test_writer_never_overwrites_a_name_or_follows_a_symlink(
    shop: Any, place: Path, at: int
) -> None:
    (place / "outside").write_text("safe")
    (place / "f").symlink_to("outside")
    (place / "g").symlink_to("missing")
    for name in (b"f", b"g", b"outside"):
        with pytest.raises(FileExistsError):
            _write(shop, at, _file(shop, b"evil"), name)
    assert (place / "outside").read_text() == "safe"
    assert not (place / "missing").exists()
    for name in (b"../f", b"..", b"a/b"):
        with pytest.raises(Corrupt):
            _write(shop, at, _file(shop, b"evil"), name)
        with pytest.raises(Corrupt):
            entry = TreeEntry(name, LINK | 0o777, 0, data=b"/")
            EntryWriter(shop.objects).write_special(at, name, entry=entry, path=name)


def test_symlinks_fifos_sockets_and_devices_get_all_their_metadata(
    shop: Any, place: Path, at: int
) -> None:
    writer = EntryWriter(shop.objects)
    entries = [
        TreeEntry(b"link", LINK | 0o777, -5, uid=3, gid=4, data=b"\xff/../nowhere"),
        TreeEntry(b"fifo", stat.S_IFIFO | 0o4640, 10, uid=3, gid=4),
        TreeEntry(b"sock", stat.S_IFSOCK | 0o777, 11),
        TreeEntry(b"char", stat.S_IFCHR | 0o666, 12, rdev=os.makedev(1, 5)),
        TreeEntry(b"block", stat.S_IFBLK | 0o600, 13, rdev=os.makedev(7, 99)),
    ]
    for entry in entries:
        writer.write_special(at, entry.name, entry=entry, path=entry.name)
        now = os.stat(entry.name, dir_fd=at, follow_symlinks=False)
        assert (now.st_mode, now.st_mtime_ns) == (entry.mode, entry.mtime)
        assert (now.st_uid, now.st_gid, now.st_rdev) == (entry.uid, entry.gid, entry.rdev)
    assert os.readlink(b"link", dir_fd=at) == b"\xff/../nowhere"
    assert writer.losses == []
    with pytest.raises(Corrupt):
        writer.write_special(at, b"odd", entry=TreeEntry(b"odd", 0o644, 0), path=b"odd")


def test_settle_removes_xattrs_and_acls_that_the_entry_does_not_have(
    shop: Any, place: Path, at: int
) -> None:
    target = place / "f"
    target.write_text("x")
    os.setxattr(target, "user.old", b"1")
    os.setxattr(target, "user.same", b"1")
    subprocess.run(["setfacl", "-m", "u:12:rwx", str(target)], check=True)
    xattrs = shop.objects.put(Kind.META, encode([(b"user.new", b"2"), (b"user.same", b"1")]))
    entry = TreeEntry(b"f", FILE | 0o604, 77, xattrs=xattrs)
    writer = EntryWriter(shop.objects)
    writer.apply_metadata(NamedTarget(at, b"f"), entry, path=b"f", fresh=False)
    assert {n: os.getxattr(target, n) for n in os.listxattr(target)} == {
        "user.new": b"2",
        "user.same": b"1",
    }
    assert os.stat(target).st_mode == FILE | 0o604
    assert writer.losses == []


def test_capabilities_and_set_id_bits_outlive_the_change_of_owner(
    shop: Any, place: Path, at: int
) -> None:
    (place / "from").write_text("x")
    subprocess.run(["setcap", "cap_net_raw+ep", str(place / "from")], check=True)
    capability = os.getxattr(place / "from", "security.capability")
    xattrs = shop.objects.put(Kind.META, encode([(b"security.capability", capability)]))
    entry = _file(shop, b"x", mode=FILE | 0o6755, uid=9, gid=9, xattrs=xattrs)
    assert _write(shop, at, entry).losses == []
    assert os.getxattr(place / "f", "security.capability") == capability
    assert os.stat(place / "f").st_mode == FILE | 0o6755


def test_without_privilege_each_failed_attribute_is_reported_as_a_loss(
    shop: Any, place: Path
) -> None:
    # owner, capability and device cannot be had; content, mode, ACL, user xattr and time can
    code = f"""
import os, stat, subprocess
from ortet.backends.local.memory import MemoryBucket
from ortet._util.codec import Hasher, encode
from ortet.history.records import TreeEntry
from ortet.machines.restore.write_entry import EntryWriter
from ortet.objects.base import Kind, ObjectStore
class Some(ObjectStore):
    hasher = Hasher()
    def __init__(self): self.held = {{}}
    def put(self, kind, data):
        oid = self.hasher.oid(data); self.held[oid] = data; return oid
    def get(self, oid): return self.held[oid]
    def has(self, oid): return oid in self.held
objects = Some()
os.setgroups([555]); os.setgid(65534); os.setuid(65534)
at = os.open({str(place)!r}, os.O_RDONLY)
writer = EntryWriter(objects)
xattrs = objects.put(Kind.META, encode([
    (b"security.capability", bytes.fromhex("0100000200200000000000000000000000000000")),
    (b"user.kept", b"v")]))
def file(name, **more):
    fields = dict(name=name, mode=stat.S_IFREG | 0o4444, mtime=3, uid=0, gid=0, size=1)
    entry = TreeEntry(**{{**fields, **more}})
    writer.write_file(at, name, entry=entry, data=[b"x"], path=name)
file(b"root-owned", xattrs=xattrs)
file(b"own", uid=65534, gid=65534, xattrs=b"", mode=stat.S_IFREG | 0o6750)
file(b"own-group", uid=65534, gid=555)
node = TreeEntry(b"dev", stat.S_IFCHR | 0o666, 0, rdev=os.makedev(1, 3))
assert writer.write_special(at, b"dev", entry=node, path=b"dev") is None
for loss in writer.losses: print(loss.path, loss.what, sep="|")
"""
    done = forked.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        "root-owned|xattr",
        "root-owned|owner",
        "root-owned|mode",
        "dev|device",
    ]
    now = os.stat(place / "root-owned")
    assert (now.st_uid, now.st_mode, now.st_mtime_ns) == (65534, FILE | 0o444, 3)
    assert os.getxattr(place / "root-owned", "user.kept") == b"v"
    assert os.stat(place / "own").st_mode == FILE | 0o6750
    assert os.stat(place / "own-group").st_gid == 555
    assert not (place / "dev").exists()


def test_a_file_system_without_xattrs_is_a_loss(shop: Any, place: Path) -> None:
    (place / "m").mkdir()
    subprocess.run(["mount", "-t", "ramfs", "none", str(place / "m")], check=True)
    try:
        xattrs = shop.objects.put(Kind.META, encode([(b"user.a", b"1")]))
        fd = os.open(place / "m", os.O_RDONLY)
        try:
            writer = _write(shop, fd, _file(shop, b"x", xattrs=xattrs))
        finally:
            os.close(fd)
        assert [loss.what for loss in writer.losses] == ["xattr"]
        assert "user.a" in writer.losses[0].why
    finally:
        subprocess.run(["umount", str(place / "m")], check=True)


def test_write_all_writes_every_byte_at_the_given_offset(place: Path) -> None:
    read, write = os.pipe()
    os.set_blocking(read, False)
    assert write_all(write, b"abc") == 3
    assert os.read(read, 10) == b"abc"
    os.close(read)
    os.close(write)
    with (place / "f").open("wb") as file:
        assert write_all(file.fileno(), memoryview(b"abc"), offset=5) == 3
    assert (place / "f").read_bytes() == b"\0\0\0\0\0abc"


def test_a_directory_is_settled_by_its_descriptor(shop: Any, place: Path) -> None:
    (place / "d").mkdir()
    fd = os.open(place / "d", os.O_RDONLY)
    entry = TreeEntry(b"d", DIR | 0o3711, -12, uid=5, gid=6)
    writer = EntryWriter(shop.objects)
    assert writer.apply_metadata(OpenTarget(fd), entry, path=b"d") == os.stat(place / "d")
    os.close(fd)
    now = os.stat(place / "d")
    assert (now.st_mode, now.st_mtime_ns, now.st_uid, now.st_gid) == (DIR | 0o3711, -12, 5, 6)
    assert writer.losses == []
