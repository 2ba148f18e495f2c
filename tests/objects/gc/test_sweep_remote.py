"""A sweep of a real S3 bucket beside writers on other hosts: nothing that is committed is lost."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from tests.fixtures.s3 import set_environ

from ortet._util.codec import Hasher
from ortet.backends.object_storage.bucket import S3Bucket
from ortet.backends.sweep_epoch import EpochTracker
from ortet.errors import NotFound
from ortet.ids import Oid, SystemClock
from ortet.objects.base import Kind, ObjectRef, ReferenceParser
from ortet.objects.gc.sweep import SweepReport
from ortet.objects.gc.sweep_remote import sweep_remote
from ortet.objects.group import MERGE_MIN_TABLES
from ortet.objects.remote.placement import open_remote_objects
from ortet.objects.store import PackedObjectStore

Commit = Callable[[PackedObjectStore, str, Sequence[bytes]], Oid]


class Shared:
    """A catalog in a nutshell: heads, and the epoch that fences them."""

    def __init__(self, url: str, directory: Path, walk: ReferenceParser) -> None:
        self.url = url
        self.heads: set[Oid] = set()
        self.epoch = 0
        self.before_fence: Callable[[], None] = lambda: None
        self.after_fence: Callable[[], None] = lambda: None
        self._directory = directory
        self._walk = walk
        self._opened: list[PackedObjectStore] = []

    def open(self, name: str) -> PackedObjectStore:
        opened = open_remote_objects(
            self._directory / name,
            S3Bucket(self.url),
            epochs=EpochTracker(lambda: self.epoch),
            hasher=Hasher(None),
            clock=SystemClock(),
        )
        self._opened.append(opened)
        return opened

    def fence(self) -> int:
        self.before_fence()
        self.epoch += 1
        self.after_fence()
        return self.epoch

    def move(self, oid: Oid, epoch: int) -> bool:
        """A head, unless the store was swept since."""
        if epoch != self.epoch:
            return False
        self.heads.add(oid)
        return True

    def sweep(
        self, store: PackedObjectStore, grace: float = -60.0, *, dry_run: bool = False
    ) -> SweepReport:
        return sweep_remote(
            store,
            lambda: [ObjectRef(oid, Kind.COMMIT) for oid in self.heads],
            self._walk,
            fence=self.fence,
            clock=SystemClock(),
            grace=grace,
            min_garbage=0.0,
            dry_run=dry_run,
        )

    def close(self) -> None:
        for opened in self._opened:
            opened.close()


@pytest.fixture
def shared(
    s3: str,
    tmp_path: Path,
    walk: ReferenceParser,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[Shared]:
    set_environ(monkeypatch)
    shared = Shared(f"s3://ortet/swept/{request.node.name}?endpoint={s3}", tmp_path, walk)
    yield shared
    shared.close()


def _packs(shared: Shared) -> list[str]:
    return [found.key for found in S3Bucket(shared.url).list("packs/")]


def test_unreferenced_objects_past_the_grace_time_are_removed(
    shared: Shared, commit: Commit
) -> None:
    store, other = shared.open("one"), shared.open("two")
    blobs = [os.urandom(50_000) for _ in range(4)]
    shared.heads.add(commit(store, "kept", blobs[:2]))
    dead = commit(store, "dead", blobs[2:])
    for head in shared.heads:
        other.get(head)
    for dry_run in (True, False, False):  # all of it is too young
        report = shared.sweep(store, grace=3600.0, dry_run=dry_run)
        assert (report.packs_removed, report.removed, report.bytes_freed) == (0, 0, 0)
        assert report.kept == 8
    report = shared.sweep(store, dry_run=True)
    assert report.removed == 4
    assert shared.epoch == 0
    report = shared.sweep(store)
    assert report.removed == 4
    assert len(_packs(shared)) == 1
    for reader in (store, other, shared.open("three")):
        for head in shared.heads:
            reader.get(head)
        assert reader.get(reader.hasher.oid(blobs[0])) == blobs[0]
    with pytest.raises(NotFound):
        shared.open("four").get(dead)


def test_many_packs_are_fetched_at_once_with_few_descriptors(
    shared: Shared, commit: Commit, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = shared.open("one")
    blobs = [os.urandom(2000) for _ in range(3 * MERGE_MIN_TABLES)]
    for number, blob in enumerate(blobs):
        head = commit(writer, str(number), [blob])
        if number % 2:
            shared.heads.add(head)
    asked: list[int] = []
    get_all = S3Bucket.get_all

    def counted(bucket: S3Bucket, keys: Sequence[str]) -> dict[str, bytes]:
        asked.append(len(keys))
        return get_all(bucket, keys)

    monkeypatch.setattr(S3Bucket, "get_all", counted)
    store = shared.open("two")
    report = shared.sweep(store)
    assert asked[0] >= 2 * MERGE_MIN_TABLES
    assert report.packs_removed == len(blobs)
    assert report.packs_written == 1
    assert len(store.pack_set.tables) < MERGE_MIN_TABLES
    assert len(_held(store)) <= MERGE_MIN_TABLES
    _check(shared, blobs[1::2])
    assert len(_packs(shared)) == 1


def test_a_writer_that_begins_after_the_fence_stores_dying_objects_again(
    shared: Shared, commit: Commit
) -> None:
    store, writer = shared.open("one"), shared.open("two")
    blobs = [os.urandom(50_000) for _ in range(4)]
    commit(store, "dead", blobs)
    writer.pack_set.refresh()
    assert writer.has(writer.hasher.oid(blobs[0]))
    moved: list[bool] = []

    def meanwhile() -> None:
        assert writer.swept_since(0)
        with writer.writing() as epoch:
            assert not writer.has(writer.hasher.oid(blobs[0]))
            assert writer.get(writer.hasher.oid(blobs[0])) == blobs[0]  # it can be read yet
            moved.append(shared.move(commit(writer, "new", blobs), epoch))

    shared.after_fence = meanwhile
    shared.sweep(store)
    assert moved == [True]
    _check(shared, blobs)


def test_a_writer_that_relied_on_dying_objects_is_refused_and_retries(
    shared: Shared, commit: Commit
) -> None:
    store, writer = shared.open("one"), shared.open("two")
    blobs = [os.urandom(50_000) for _ in range(4)]
    commit(store, "dead", blobs)
    writer.pack_set.refresh()
    with writer.writing() as epoch:
        assert writer.has(writer.hasher.oid(blobs[0]))
        head = commit(writer, "new", blobs)
        shared.sweep(store)
        assert not shared.move(head, epoch)
    assert writer.swept_since(epoch)  # as the refusal tells it
    with writer.writing() as epoch:
        assert not writer.has(writer.hasher.oid(blobs[0]))
        assert shared.move(commit(writer, "new", blobs), epoch)
    _check(shared, blobs)


def test_a_head_moved_before_the_fence_keeps_its_objects(shared: Shared, commit: Commit) -> None:
    store, writer = shared.open("one"), shared.open("two")
    blobs = [os.urandom(50_000) for _ in range(4)]
    commit(store, "dead", blobs)
    writer.pack_set.refresh()
    with writer.writing() as epoch:
        head = commit(writer, "new", blobs)  # of which the blobs are in the dead pack only

        def meanwhile() -> None:
            assert shared.move(head, epoch)

        shared.before_fence = meanwhile
        shared.sweep(store)
    _check(shared, blobs)


def test_a_killed_sweep_is_completed_by_the_next_sweep(shared: Shared, commit: Commit) -> None:
    store = shared.open("one")
    blobs = [os.urandom(50_000) for _ in range(4)]
    shared.heads.add(commit(store, "kept", blobs[:2]))
    commit(store, "dead", blobs[2:])

    def killed() -> None:
        raise KeyboardInterrupt

    shared.before_fence = killed
    with pytest.raises(KeyboardInterrupt):
        shared.sweep(store)
    assert any(key.endswith(".gone") for key in _packs(shared))
    _check(shared, blobs[:2])
    shared.before_fence = lambda: None
    shared.sweep(shared.open("two"))
    assert not any(key.endswith(".gone") for key in _packs(shared))
    _check(shared, blobs[:2])


def _held(store: PackedObjectStore) -> list[str]:
    """Packs and indexes that are open."""
    held: list[str] = []
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            held.append(os.readlink(f"/proc/self/fd/{fd}"))
    places = (str(store.layout.local / "kept"), str(store.layout.index))
    return [path for path in held if path.startswith(places)]


def _check(shared: Shared, blobs: Sequence[bytes]) -> None:
    """From a host that has seen nothing."""
    reader = shared.open("fresh" + os.urandom(4).hex())
    for head in shared.heads:
        reader.get(head)
    for blob in blobs:
        assert reader.get(reader.hasher.oid(blob)) == blob
