"""Objects of a store whose packs lie in a real S3: read through a cache, written now or later."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.s3 import Proxy, fails

from ortet._util.codec import Hasher
from ortet.backends.object_storage.bucket import S3Bucket
from ortet.backends.sweep_epoch import EpochTracker
from ortet.errors import NotFound, Unavailable
from ortet.ids import Oid, SystemClock
from ortet.objects.base import Kind
from ortet.objects.remote.placement import open_remote_objects
from ortet.objects.store import PackedObjectStore

_ILL = [fails(503, "SlowDown")] * 1000


class Hosts:
    """Handles on one store, each with a disk of its own."""

    def __init__(self, url: str, directory: Path) -> None:
        self._url = url
        self._directory = directory
        self._opened: list[PackedObjectStore] = []

    def open(self, name: str, *, patience: float = 60.0, **options: Any) -> PackedObjectStore:
        opened = open_remote_objects(
            self._directory / name,
            S3Bucket(self._url, retry_seconds=patience),
            epochs=EpochTracker(lambda: 0),
            hasher=Hasher(None),
            clock=SystemClock(),
            **options,
        )
        self._opened.append(opened)
        return opened

    def close(self) -> None:
        for opened in self._opened:
            opened.close()


@pytest.fixture
def hosts(proxy: Proxy, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Hosts]:
    hosts = Hosts(f"s3://ortet/objects/{request.node.name}?endpoint={proxy.url}", tmp_path)
    yield hosts
    hosts.close()


def _put(store: PackedObjectStore, *contents: bytes) -> list[Oid]:
    with store.writing():
        oids = [store.put(Kind.BLOB, content) for content in contents]
        store.flush()
    return oids


def test_one_host_reads_objects_written_by_another_host(hosts: Hosts) -> None:
    contents = [os.urandom(100_000) for _ in range(30)]
    oids = _put(hosts.open("one"), *contents)
    other = hosts.open("two")
    assert dict(other.get_many(oids)) == dict(zip(oids, contents, strict=True))


def test_cached_objects_are_read_without_the_server(hosts: Hosts, proxy: Proxy) -> None:
    small, large = os.urandom(1000), [os.urandom(120_000) for _ in range(30)]
    writer = hosts.open("one")
    oids = [*_put(writer, small), *_put(writer, *large)]
    reader = hosts.open("two", patience=5.0)
    assert [reader.get(oid) for oid in oids] == [small, *large]
    reader.cache.clear()
    proxy.faults = list(_ILL)
    assert [reader.get(oid) for oid in oids] == [small, *large]


def test_damage_in_the_cache_is_fetched_again(hosts: Hosts, tmp_path: Path) -> None:
    contents = [os.urandom(120_000) for _ in range(30)]
    oids = _put(hosts.open("one"), *contents)
    reader = hosts.open("two")
    assert [reader.get(oid) for oid in oids] == contents
    kept = list((tmp_path / "two" / "local" / "kept").iterdir())
    assert len(kept) > 1
    for file in kept:
        file.write_bytes(b"x" * file.stat().st_size)
    reader.cache.clear()
    assert [reader.get(oid) for oid in oids] == contents


def test_the_cache_keeps_to_its_limit(hosts: Hosts, tmp_path: Path) -> None:
    contents = [os.urandom(120_000) for _ in range(40)]
    oids = _put(hosts.open("one"), *contents)
    reader = hosts.open("two", cache_bytes=1_000_000)
    for _ in range(2):
        assert [reader.get(oid) for oid in oids] == contents
        reader.cache.clear()
    reader.close()
    kept = list((tmp_path / "two" / "local" / "kept").iterdir())
    assert 0 < sum(file.stat().st_size for file in kept) <= 1_000_000


def test_a_cache_that_cannot_be_written_is_no_error(hosts: Hosts, tmp_path: Path) -> None:
    contents = [os.urandom(120_000) for _ in range(20)]
    small = os.urandom(500)
    writer = hosts.open("one")
    oids = [*_put(writer, *contents), *_put(writer, small)]
    reader = hosts.open("two")
    (tmp_path / "two" / "local" / "kept").rmdir()
    (tmp_path / "two" / "local" / "kept").write_bytes(b"")  # as if there were no room
    for _ in range(2):
        assert [reader.get(oid) for oid in oids] == [*contents, small]
        reader.cache.clear()


def test_local_durability_does_not_wait_for_the_bucket(hosts: Hosts, proxy: Proxy) -> None:
    writer = hosts.open("one", durable="local", patience=0.1)
    reader = hosts.open("two")
    proxy.faults = list(_ILL)
    content = os.urandom(1000)
    oids = _put(writer, content)
    writer.cache.clear()
    assert writer.get(oids[0]) == content
    assert writer.queued().objects == 1
    with pytest.raises(Unavailable) as caught:
        writer.wait_for_uploads(timeout=0.2)
    assert caught.value.kind == "not_uploaded_yet"
    proxy.faults = []
    writer.wait_for_uploads()
    assert writer.queued().objects == 0
    assert reader.get(oids[0]) == content


def test_remote_durability_waits_for_uploads_of_an_earlier_process(
    hosts: Hosts, proxy: Proxy
) -> None:
    first = hosts.open("one", durable="local", patience=0.1)
    proxy.faults = list(_ILL)
    content = os.urandom(1000)
    oids = _put(first, content)
    first.close()
    proxy.faults = []
    second = hosts.open("one")
    assert second.get(oids[0]) == content
    oids += _put(second, b"more")
    assert second.queued().objects == 0
    reader = hosts.open("two")
    assert [reader.get(oid) for oid in oids] == [content, b"more"]


def test_an_object_that_was_not_flushed_is_not_stored(hosts: Hosts) -> None:
    writer = hosts.open("one")
    with writer.writing():
        oid = writer.put(Kind.BLOB, b"never flushed")
    writer.close()
    with pytest.raises(NotFound):
        hosts.open("two").get(oid)
