"""The queue in front of a bucket that is far: durable here at once, there in the background."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest
from tests.fixtures import forked
from tests.fixtures.s3 import set_environ
from tests.fixtures.waiting import WAIT, eventually

from ortet.backends.base import Bucket, Catalog
from ortet.backends.local.bucket import FileBucket
from ortet.backends.object_storage.bucket import S3Bucket
from ortet.backends.object_storage.pending_uploads import PendingUploadTable, list_pending_uploads
from ortet.backends.object_storage.upload_queue import QueuedBucket
from ortet.backends.sqlite.catalog import SqliteCatalog
from ortet.errors import Conflict, Unavailable
from ortet.ids import SystemClock
from ortet.testing.bucket import SharedBucketTests
from ortet.testing.processes import BucketOpener


def open_queued(directory: Path) -> QueuedBucket:
    return QueuedBucket(FileBucket(directory / "far"), directory / "queue")


class Closed(FileBucket):
    """One that cannot be reached until it is opened."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.open = threading.Event()

    def put_file(self, key: str, path: Path) -> None:
        self._check()
        super().put_file(key, path)

    def size(self, key: str) -> int:
        self._check()
        return super().size(key)

    def _check(self) -> None:
        if not self.open.is_set():
            raise Unavailable("bucket_unavailable", "it is closed: wait")


class Slow(FileBucket):
    """One whose uploads begin, and end only when they may."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.begun, self.may_end = threading.Event(), threading.Event()

    def put_file(self, key: str, path: Path) -> None:
        self.begun.set()
        assert self.may_end.wait(WAIT)
        super().put_file(key, path)


class TestQueuedBucket(SharedBucketTests):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> BucketOpener:
        return partial(open_queued, tmp_path)

    @pytest.fixture
    def bucket(self, opener: BucketOpener) -> Iterator[Bucket]:
        bucket = opener()
        yield bucket
        bucket.close()


def test_queued_objects_are_uploaded(tmp_path: Path) -> None:
    bucket = open_queued(tmp_path)
    source = tmp_path / "source"
    source.write_bytes(b"from a file")
    bucket.put("packs/a", b"bytes")
    bucket.put_file("packs/b", source)
    bucket.wait_uploaded()
    far = FileBucket(tmp_path / "far")
    assert far.get("packs/a") == b"bytes"
    assert far.get("packs/b") == b"from a file"
    assert bucket.backlog().objects == 0
    assert bucket.get("packs/a") == b"bytes"
    bucket.close()


def test_queued_objects_are_readable_and_reported_before_the_upload(tmp_path: Path) -> None:
    far = Closed(tmp_path / "far")
    bucket = QueuedBucket(far, tmp_path / "queue")
    bucket.put("a", b"bytes")
    assert bucket.get("a", 1, 2) == b"yt"
    assert bucket.get_ranges("a", [(0, 1)]) == [b"b"]
    assert bucket.size("a") == 5
    assert [found.key for found in bucket.list()] == ["a"]
    with pytest.raises(Conflict):
        bucket.put("a", b"others")
    with pytest.raises(Unavailable) as caught:
        bucket.wait_uploaded(timeout=0.0)
    assert caught.value.kind == "not_uploaded_yet"
    eventually(lambda: bool(bucket.backlog().trouble))
    assert (bucket.backlog().objects, bucket.backlog().bytes) == (1, 5)
    assert "it is closed" in bucket.backlog().trouble
    far.open.set()
    bucket.wait_uploaded()
    assert bucket.backlog() == type(bucket.backlog())(0, 0)
    assert far.get("a") == b"bytes"
    bucket.close()


def test_an_upload_never_overwrites_an_object_of_another_host(tmp_path: Path) -> None:
    far = Closed(tmp_path / "far")
    bucket = QueuedBucket(far, tmp_path / "queue")
    bucket.put("a", b"ours")
    bucket.put("b", b"same")
    others = FileBucket(tmp_path / "far")
    others.put("a", b"theirs")
    others.put("b", b"same")
    far.open.set()
    eventually(lambda: bucket.backlog().objects == 1)
    with pytest.raises(Unavailable) as caught:
        bucket.wait_uploaded()
    assert "another host" in str(caught.value)
    assert others.get("a") == b"theirs"
    bucket.close()


def is_told(catalog: Catalog, commit: str) -> bool:
    return commit in list_pending_uploads(catalog)["key"].commits


def test_commits_are_announced_during_an_upload(tmp_path: Path) -> None:
    far = Slow(tmp_path / "far")
    with closing(SqliteCatalog(tmp_path / "catalog.db")) as catalog:
        owed = PendingUploadTable(catalog, "key", name="host", clock=SystemClock())
        bucket = QueuedBucket(far, tmp_path / "queue", pending_uploads=owed)
        bucket.put("packs/a", b"bytes")
        assert far.begun.wait(WAIT)
        for commits in (["ab" * 32], ["cd" * 32, "ef" * 32]):
            bucket.record_commits(commits)
            eventually(partial(is_told, catalog, commits[-1]))
        assert list_pending_uploads(catalog)["key"].commits == ["ab" * 32, "cd" * 32, "ef" * 32]
        far.may_end.set()
        bucket.wait_uploaded()
        eventually(lambda: not list_pending_uploads(catalog))
        bucket.close()


def test_with_a_full_queue_disk_objects_are_uploaded_directly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = open_queued(tmp_path)

    def full(*_: object) -> None:
        raise Unavailable("no_space", "the disk is full: make room")

    monkeypatch.setattr(bucket._local, "put", full)
    bucket.put("a", b"bytes")
    assert FileBucket(tmp_path / "far").get("a") == b"bytes"
    bucket.close()


_CHILD = """
import sys, time
from pathlib import Path
from ortet.backends.object_storage.bucket import S3Bucket
from ortet.backends.object_storage.upload_queue import QueuedBucket
bucket = QueuedBucket(S3Bucket(sys.argv[1], retry_seconds=0.2), Path(sys.argv[2]))
for number in range(3):
    bucket.put(f"packs/{number}", bytes([number]) * 100_000)
print("put", flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_a_killed_process_leaves_its_uploads_to_the_next(
    tmp_path: Path, s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_environ(monkeypatch)
    prefix = f"s3://ortet/{uuid4().hex}?endpoint="
    argv = [sys.executable, "-c", _CHILD, f"{prefix}http://127.0.0.1:1", str(tmp_path / "queue")]
    child = forked.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"put\n"
    finally:
        child.kill()
        child.communicate()
    bucket = QueuedBucket(S3Bucket(prefix + s3), tmp_path / "queue")
    bucket.wait_uploaded()
    bucket.close()
    far = S3Bucket(prefix + s3)
    assert [found.size for found in far.list("packs/")] == [100_000] * 3
    assert far.get("packs/2", 99_990) == b"\2" * 10


def test_two_processes_share_a_queue(tmp_path: Path) -> None:
    buckets = [open_queued(tmp_path) for _ in range(3)]
    for number, bucket in enumerate(buckets):
        bucket.put(f"a{number}", os.urandom(10))
    for bucket in buckets:
        bucket.wait_uploaded()
    assert len(list(FileBucket(tmp_path / "far").list())) == 3
    for bucket in buckets:
        bucket.close()
