"""The contract of Cache as tests.

    class TestMine(CacheTests):
        @pytest.fixture
        def cache(self) -> Iterator[Cache]:
            cache = MyCache()
            yield cache
            cache.close()

        @pytest.fixture
        def elapse(self) -> Elapse: return time_passes   # lets nanoseconds pass for the cache

A cache may drop entries at any time. The tests still expect entries to be found: a cache of 16 MiB
without other users has no reason to drop them. Use `AbsentCacheTests` for a cache whose server
cannot be reached.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ortet.backends.base import Cache
from ortet.errors import Invalid
from ortet.testing.processes import run_in_threads

Elapse = Callable[[int], None]
"""Lets a number of nanoseconds pass for the cache."""

SECOND_NS = 1_000_000_000


class _CommonCacheTests:
    """Tests that hold whether the cache can be reached or not."""

    @pytest.mark.parametrize("key", ["", "a\0b", "\udc80"])
    def test_an_invalid_key_is_refused(self, cache: Cache, key: str) -> None:
        with pytest.raises(Invalid) as caught:
            cache.get(key)
        assert caught.value.kind == "bad_name"
        with pytest.raises(Invalid) as caught:
            cache.put(key, b"")
        assert caught.value.kind == "bad_name"
        if key:  # The empty prefix matches all keys.
            with pytest.raises(Invalid) as caught:
                cache.drop(key)
            assert caught.value.kind == "bad_name"

    @pytest.mark.parametrize("ttl_ns", [0, -1, 1.5, True])
    def test_an_invalid_ttl_is_refused(self, cache: Cache, ttl_ns: int) -> None:
        with pytest.raises(Invalid) as caught:
            cache.put("key", b"value", ttl_ns)
        assert caught.value.kind == "bad_ttl"

    def test_a_missing_key_returns_none(self, cache: Cache) -> None:
        assert cache.get("key") is None
        cache.drop("key")
        cache.clear()

    def test_close_after_use_is_no_error(self, cache: Cache) -> None:
        cache.put("key", b"value")
        cache.close()


class CacheTests(_CommonCacheTests):
    """Tests of a cache. Supply the fixtures `cache`, which must be empty, and `elapse`."""

    @pytest.mark.parametrize("key", ["a", "a/b:c", "späť/1", "記憶", "x" * 1000])
    def test_put_then_get_returns_the_same_bytes(self, cache: Cache, key: str) -> None:
        cache.put(key, b"some bytes")
        assert cache.get(key) == b"some bytes"
        assert cache.get(key) == b"some bytes"

    @pytest.mark.parametrize("value", [b"", b"\0\xff", bytes(range(256)) * 4000])
    def test_any_bytes_can_be_a_value(self, cache: Cache, value: bytes) -> None:
        cache.put("key", value)
        assert cache.get("key") == value

    def test_the_last_put_wins(self, cache: Cache) -> None:
        cache.put("key", b"first")
        cache.put("key", b"second")
        assert cache.get("key") == b"second"

    def test_different_keys_hold_different_values(self, cache: Cache) -> None:
        for n in range(100):
            cache.put(f"key/{n}", b"%d" % n)
        assert [cache.get(f"key/{n}") for n in range(100)] == [b"%d" % n for n in range(100)]
        assert cache.get("key") is None

    def test_a_value_expires_after_its_ttl(self, cache: Cache, elapse: Elapse) -> None:
        cache.put("short", b"value", 2 * SECOND_NS)
        cache.put("long", b"value", 3600 * SECOND_NS)
        cache.put("ever", b"value")
        elapse(SECOND_NS)
        assert cache.get("short") == b"value"
        elapse(SECOND_NS)
        assert cache.get("short") is None
        assert cache.get("long") == cache.get("ever") == b"value"

    def test_a_new_put_starts_a_new_ttl(self, cache: Cache, elapse: Elapse) -> None:
        cache.put("key", b"first", 2 * SECOND_NS)
        cache.put("key", b"second")
        elapse(3 * SECOND_NS)
        assert cache.get("key") == b"second"
        cache.put("key", b"third", 2 * SECOND_NS)
        elapse(3 * SECOND_NS)
        assert cache.get("key") is None

    def test_drop_removes_the_keys_with_a_prefix(self, cache: Cache) -> None:
        for key in ("a/1", "a/2", "ab", "b/a/1", "*", "a*", "[a]"):
            cache.put(key, b"value")
        cache.drop("a/")
        assert [cache.get(key) for key in ("a/1", "a/2")] == [None, None]
        assert cache.get("ab") == cache.get("b/a/1") == b"value"
        cache.drop("a*")  # a prefix, not a pattern
        assert cache.get("a*") is None
        assert cache.get("ab") == cache.get("*") == b"value"
        cache.drop("[")
        assert cache.get("[a]") is None

    def test_clear_removes_every_key(self, cache: Cache) -> None:
        for key in ("a", "b/c"):
            cache.put(key, b"value")
        cache.clear()
        assert cache.get("a") is cache.get("b/c") is None
        cache.put("a", b"again")
        assert cache.get("a") == b"again"

    def test_a_full_cache_returns_the_right_value_or_none(self, cache: Cache) -> None:
        """Any returned value is the one that was put."""
        for n in range(64):
            cache.put(f"large/{n}", bytes([n]) * (1 << 20))
        for n in range(64):
            assert cache.get(f"large/{n}") in (None, bytes([n]) * (1 << 20))

    def test_too_large_a_value_does_not_leave_the_old_one(self, cache: Cache) -> None:
        cache.put("key", b"old")
        cache.put("key", bytes(64 << 20))
        assert cache.get("key") in (None, bytes(64 << 20))

    def test_threads_see_whole_values(self, cache: Cache) -> None:
        values = {bytes([n]) * 10_000 for n in range(4)}

        def work(value: bytes) -> bool:
            whole = True
            for turn in range(200):
                cache.put("key", value)
                cache.put(f"own/{value[0]}/{turn}", value)
                got = cache.get("key")
                whole = whole and (got is None or got in values)
                if turn % 50 == 0:
                    cache.drop("own/")
            return whole

        assert run_in_threads(work, [(value,) for value in sorted(values)]) == [True] * 4


class AbsentCacheTests(_CommonCacheTests):
    """Tests of a cache whose server cannot be reached. Supply the fixture `cache`."""

    def test_an_absent_cache_always_returns_none(self, cache: Cache) -> None:
        cache.put("key", b"value")
        assert cache.get("key") is None
        cache.put("key", b"value", SECOND_NS)
        cache.drop("k")
        cache.clear()
        assert cache.get("key") is None
