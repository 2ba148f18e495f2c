"""The cache of decoded frames."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from ortet.errors import Unsupported
from ortet.ids import Oid
from ortet.objects.base import Kind
from ortet.objects.source import FrameCache, FrameSource, ObjectLocation, kind_of


class Counted(FrameSource):
    """A source of frames that are all their own offset, and that counts how often it is asked."""

    def __init__(self) -> None:
        self.id = self.key = "x"
        self.end = 0
        self.loads = 0

    def load(self, offset: int) -> bytes:
        self.loads += 1
        return b"%08d" % offset * 128

    def __len__(self) -> int:
        return 0

    def read(self, offset: int, length: int) -> bytes:
        return b""

    def find(self, oid: Oid) -> ObjectLocation | None:
        return None

    def iter_range(self, low: bytes, high: bytes) -> Iterator[tuple[Oid, int]]:
        return iter(())

    def locations(self) -> Iterator[tuple[Oid, ObjectLocation]]:
        return iter(())


def test_a_frame_is_decoded_once() -> None:
    cache, source = FrameCache(), Counted()
    for _ in range(5):
        assert cache.load(source, 3) == b"00000003" * 128
    assert source.loads == 1
    cache.clear()
    cache.load(source, 3)
    assert source.loads == 2


def test_the_least_recently_used_goes_first() -> None:
    cache, source = FrameCache(limit=4 * 1024), Counted()
    for offset in (1, 2, 3, 4, 1, 5):  # 1 was used since, 2 goes
        cache.load(source, offset)
    assert source.loads == 5
    cache.load(source, 1)
    assert source.loads == 5
    cache.load(source, 2)
    assert source.loads == 6


def test_a_frame_larger_than_the_cache_is_not_cached() -> None:
    cache, source = FrameCache(limit=100), Counted()
    cache.load(source, 1)
    cache.load(source, 1)
    assert source.loads == 2


def test_the_cache_limit_holds_among_threads() -> None:
    cache, source = FrameCache(limit=20 * 1024), Counted()

    def work(seed: int) -> None:
        for turn in range(3000):
            offset = turn * 7919 * seed % 97
            assert cache.load(source, offset) == b"%08d" % offset * 128

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache._bytes == sum(map(len, cache._frames.values())) <= 20 * 1024


def test_an_unknown_kind_asks_for_an_upgrade() -> None:
    assert kind_of(7) is Kind.COMMIT
    with pytest.raises(Unsupported):
        kind_of(200)
