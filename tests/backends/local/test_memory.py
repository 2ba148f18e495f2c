"""What MemoryBucket promises beside the contract."""

from __future__ import annotations

from ortet.backends.local.memory import MemoryBucket, ProcessCache
from ortet.testing.clock import ManualClock

KIB = 1024


def test_a_listing_is_not_changed_by_a_later_delete() -> None:
    bucket = MemoryBucket()
    for key in ("a", "b", "c"):
        bucket.put(key, b"")
    seen = []
    for found in bucket.list():
        bucket.delete(["b"])
        seen.append(found.key)
    assert seen == ["a", "b", "c"]


def test_the_least_recently_used_value_is_evicted_first() -> None:
    cache = ProcessCache(ManualClock(), limit=4 * KIB)
    for key in ("a", "b", "c"):
        cache.put(key, bytes(KIB))
    assert cache.get("a") is not None
    cache.put("d", bytes(KIB))
    assert cache.get("b") is None
    assert all(cache.get(key) is not None for key in ("a", "c", "d"))


def test_the_cache_size_never_exceeds_its_limit() -> None:
    cache = ProcessCache(ManualClock(), limit=100 * KIB)
    for n in range(10_000):
        cache.put(f"key/{n}", bytes(n % 300))
        assert cache.size <= 100 * KIB
    assert cache.get("key/9999") is not None


def test_a_value_larger_than_the_cache_evicts_nothing() -> None:
    cache = ProcessCache(ManualClock(), limit=4 * KIB)
    cache.put("small", b"value")
    cache.put("large", bytes(4 * KIB))
    assert cache.get("large") is None
    assert cache.get("small") == b"value"


def test_expired_and_cleared_values_free_their_size() -> None:
    clock = ManualClock()
    cache = ProcessCache(clock)
    for n in range(100):
        cache.put(f"key/{n}", bytes(n), ttl_ns=n + 1)
        cache.put(f"key/{n}", bytes(2 * n), ttl_ns=n + 1)
    clock.advance(1000)
    assert [cache.get(f"key/{n}") for n in range(100)] == [None] * 100
    assert cache.size == 0
    cache.put("key", b"value")
    cache.clear()
    assert cache.size == 0
