"""What FileBucket does on real disks: moves, copies, syncs, fills, dies."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fixtures import forked

from ortet.backends.local.bucket import FileBucket
from ortet.errors import Conflict, Invalid, NotFound, Unavailable
from ortet.testing.processes import run_in_threads

pytestmark = pytest.mark.disk("1m")

WRITER = """
import itertools, sys
from pathlib import Path
from ortet.backends.local.bucket import FileBucket
bucket = FileBucket(Path(sys.argv[1]))
for n in itertools.count():
    bucket.put(f"part/{n}", bytes([n % 256]) * 300_000)
    print(n, flush=True)
"""

PUTTER = """
import sys
from pathlib import Path
from ortet.backends.local.bucket import FileBucket
FileBucket(Path(sys.argv[1])).put("packs/one", b"bytes of one")
"""


@pytest.fixture
def bucket(tmp_path: Path) -> FileBucket:
    return FileBucket(tmp_path / "bucket")


def leftovers(root: Path) -> list[str]:
    return sorted(os.listdir(root / "~new"))


def test_put_file_moves_without_copying(bucket: FileBucket, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"bytes")
    inode = source.stat().st_ino
    bucket.put_file("a/b", source)
    assert (tmp_path / "bucket/a/b").stat().st_ino == inode
    assert bucket.local_path("a/b") == tmp_path / "bucket/a/b"


def test_put_file_from_another_file_system_copies_the_file(
    bucket: FileBucket, small_disk: Path
) -> None:
    source = small_disk / "source"
    source.write_bytes(b"x" * 300_000)
    bucket.put_file("a", source)
    assert bucket.get("a") == b"x" * 300_000
    assert not source.exists()


def test_put_file_from_another_file_system_to_a_taken_key_is_refused(
    bucket: FileBucket, small_disk: Path, tmp_path: Path
) -> None:
    source = small_disk / "source"
    source.write_bytes(b"second")
    bucket.put("a", b"first")
    with pytest.raises(Conflict):
        bucket.put_file("a", source)
    assert source.read_bytes() == b"second"
    assert leftovers(tmp_path / "bucket") == []


def test_reads_of_a_missing_bucket_directory_raise_not_found(tmp_path: Path) -> None:
    bucket = FileBucket(tmp_path / "mounted")
    bucket.check_reachable(1.0)
    (tmp_path / "mounted").rename(tmp_path / "elsewhere")
    with pytest.raises(NotFound):
        bucket.check_reachable(1.0)


def test_only_regular_files_can_be_put(bucket: FileBucket, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"")
    (tmp_path / "link").symlink_to(target)
    os.mkfifo(tmp_path / "fifo")
    for name in ("link", "fifo", "bucket"):
        with pytest.raises(Invalid) as caught:
            bucket.put_file("a", tmp_path / name)
        assert caught.value.kind == "not_a_file"
    with pytest.raises(NotFound) as missing:
        bucket.put_file("a", tmp_path / "missing")
    assert missing.value.kind == "no_file"


def test_a_key_below_another_key_is_refused(bucket: FileBucket) -> None:
    bucket.put("a", b"")
    bucket.put("b/c", b"")
    for key in ("a/b", "a/b/c", "b"):
        with pytest.raises(Conflict) as caught:
            bucket.put(key, b"")
        assert caught.value.kind == "exists"
    assert [found.key for found in bucket.list()] == ["a", "b/c"]


def test_file_is_synced_before_its_name_and_the_directory_after(tmp_path: Path) -> None:
    trace, root = tmp_path / "trace", tmp_path / "bucket"
    calls = "trace=write,fsync,link,linkat,unlink,mkdir"
    subprocess.run(
        ["strace", "-f", "-y", "-o", trace, "-e", calls, sys.executable, "-c", PUTTER, root],
        check=True,
    )
    text = trace.read_text()
    order = [
        rf'mkdir\("{root}"',
        rf"fsync\(\d+<{tmp_path}>\)",
        rf'write\(\d+<{root}/~new/\w+>, "bytes of one"',
        rf"fsync\(\d+<{root}/~new/\w+>\)",
        rf'mkdir\("{root}/packs"',
        rf"fsync\(\d+<{root}>\)",
        rf'link\("{root}/~new/\w+", "{root}/packs/one"\)',
        rf"fsync\(\d+<{root}/packs>\)",
        rf'unlink\("{root}/~new/\w+"\)',
    ]
    at = 0
    for pattern in order:
        found = re.compile(pattern).search(text, at)
        assert found, f"{pattern} is not where it should be in\n{text}"
        at = found.end()


def test_a_put_on_a_full_disk_is_refused_and_leaves_nothing(small_disk: Path) -> None:
    bucket = FileBucket(small_disk / "bucket")
    bucket.put("first", b"x" * 500_000)
    with pytest.raises(Unavailable) as caught:
        bucket.put("second", b"y" * 800_000)
    assert caught.value.kind == "disk_full"
    assert [found.key for found in bucket.list()] == ["first"]
    assert leftovers(small_disk / "bucket") == []
    bucket.put("third", b"z" * 100_000)
    assert bucket.get("third") == b"z" * 100_000


def test_a_put_on_a_read_only_disk_is_refused(small_disk: Path) -> None:
    bucket = FileBucket(small_disk / "bucket")
    bucket.put("first", b"bytes")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(Unavailable) as caught:
        bucket.put("a", b"")
    assert caught.value.kind == "no_access"
    with pytest.raises(Unavailable) as caught:
        bucket.delete(["first"])
    assert caught.value.kind == "no_access"
    assert bucket.get("first") == b"bytes"


def test_leftovers_of_the_dead_are_removed_and_those_of_the_living_kept(tmp_path: Path) -> None:
    root = tmp_path / "bucket"
    FileBucket(root)
    (root / "~new/dead").write_bytes(b"half")
    with open(root / "~new/alive", "wb") as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        bucket = FileBucket(root)
        assert leftovers(root) == ["alive"]
        assert list(bucket.list()) == []


def test_killed_writers_leave_whole_objects(tmp_path: Path) -> None:
    root = tmp_path / "bucket"
    for _ in range(3):
        command = [sys.executable, "-c", WRITER, str(root)]
        with forked.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            said = [int(writer.stdout.readline()) for _ in range(5)]
            writer.send_signal(signal.SIGKILL)
            said += [int(line) for line in writer.stdout]
        bucket = FileBucket(root)
        assert leftovers(root) == []
        found = {listing.key: listing.size for listing in bucket.list()}
        assert {f"part/{n}" for n in said} <= set(found)
        for key, size in found.items():
            assert size == 300_000
            assert bucket.get(key) == bytes([int(key[5:]) % 256]) * 300_000
        bucket.delete(list(found))


def test_put_works_on_a_file_system_without_hard_links(
    bucket: FileBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)

    def put(data: bytes) -> bool:
        try:
            bucket.put("race", data)
            return True
        except Conflict:
            return False

    made = run_in_threads(put, [(bytes([n]),) for n in range(8)])
    assert made.count(True) == 1
    assert bucket.get("race") == bytes([made.index(True)])
    source = tmp_path / "source"
    source.write_bytes(b"bytes")
    bucket.put_file("file", source)
    assert bucket.get("file") == b"bytes"
    assert not source.exists()
    assert leftovers(tmp_path / "bucket") == []
    assert [found.key for found in bucket.list()] == ["file", "race"]
