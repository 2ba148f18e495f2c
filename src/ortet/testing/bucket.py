"""The contract of Bucket as tests.

    class TestMine(BucketTests):
        @pytest.fixture
        def bucket(self) -> Bucket: return MyBucket()

Use `SharedBucketTests` for a bucket that several processes can open. Its fixture is `opener`, a
picklable function without arguments. Each call of it opens the same bucket.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ortet.backends.base import Bucket, BucketEntry
from ortet.errors import Conflict, Invalid, NotFound
from ortet.testing.processes import BucketOpener, run_in_processes, run_in_threads, try_put

GOOD_KEYS = ["a", "a/b", "b/0a.pack", "..a", "a/..b/c", "-", "_", ".x", "a/b.c-d_e", "x" * 200]
BAD_KEYS = [
    "",
    "/",
    "/a",
    "a/",
    "a//b",
    ".",
    "..",
    "a/..",
    "../a",
    "a/../b",
    "a/./b",
    "A",
    "a b",
    "a\\b",
    "a\0b",
    "a\n",
    "ä",
    "~new",
    "x" * 201,
    "/".join(["x" * 100] * 10),
]


class BucketTests:
    """Tests of one bucket. Supply the fixture `bucket`, which must be empty."""

    @pytest.mark.parametrize("key", GOOD_KEYS)
    def test_put_then_get_returns_the_same_bytes(self, bucket: Bucket, key: str) -> None:
        bucket.put(key, b"some bytes")
        assert bucket.get(key) == b"some bytes"
        assert bucket.size(key) == 10
        assert list(bucket.list()) == [BucketEntry(key, 10)]

    def test_an_empty_object_is_stored_and_read(self, bucket: Bucket) -> None:
        bucket.put("empty", b"")
        assert bucket.get("empty") == b""
        assert bucket.size("empty") == 0

    def test_a_large_object_is_stored_and_read_in_ranges(self, bucket: Bucket) -> None:
        data = bytes(range(256)) * 20_000
        bucket.put("large", data)
        assert bucket.get("large") == data
        assert bucket.get("large", 3_000_000, 300) == data[3_000_000:3_000_300]

    def test_a_second_put_to_a_key_is_refused(self, bucket: Bucket) -> None:
        bucket.put("a/b", b"first")
        with pytest.raises(Conflict) as caught:
            bucket.put("a/b", b"second")
        assert caught.value.kind == "exists"
        assert bucket.get("a/b") == b"first"

    def test_one_of_many_threads_creates_a_key(self, bucket: Bucket) -> None:
        def put(data: bytes) -> bytes | None:
            try:
                bucket.put("race", data)
                return data
            except Conflict:
                return None

        created = run_in_threads(put, [(bytes([n]) * 100_000,) for n in range(8)])
        winners = [data for data in created if data]
        assert winners == [bucket.get("race")]

    def test_put_file_consumes_the_file(self, bucket: Bucket, tmp_path: Path) -> None:
        source = tmp_path / "source"
        source.write_bytes(b"from a file")
        bucket.put_file("a/b", source)
        assert bucket.get("a/b") == b"from a file"
        assert not source.exists()

    def test_put_file_to_a_taken_key_keeps_the_file(self, bucket: Bucket, tmp_path: Path) -> None:
        source = tmp_path / "source"
        source.write_bytes(b"second")
        bucket.put("a", b"first")
        with pytest.raises(Conflict) as caught:
            bucket.put_file("a", source)
        assert caught.value.kind == "exists"
        assert source.read_bytes() == b"second"
        assert bucket.get("a") == b"first"

    @pytest.mark.parametrize(
        ("start", "length", "expected"),
        [
            (0, None, b"0123456789"),
            (4, None, b"456789"),
            (10, None, b""),
            (99, None, b""),
            (0, 4, b"0123"),
            (3, 4, b"3456"),
            (8, 4, b"89"),
            (10, 1, b""),
            (99, 9, b""),
            (5, 0, b""),
            (0, 10**15, b"0123456789"),
        ],
    )
    def test_ranges_are_short_at_the_end(
        self, bucket: Bucket, start: int, length: int | None, expected: bytes
    ) -> None:
        bucket.put("digits", b"0123456789")
        assert bucket.get("digits", start, length) == expected
        if length is not None:
            assert bucket.get_ranges("digits", [(start, length)]) == [expected]

    def test_get_ranges_returns_ranges_in_the_requested_order(self, bucket: Bucket) -> None:
        bucket.put("digits", b"0123456789")
        ranges = [(8, 9), (0, 2), (1, 2), (0, 2)]
        assert bucket.get_ranges("digits", ranges) == [b"89", b"01", b"12", b"01"]
        assert bucket.get_ranges("digits", []) == []

    @pytest.mark.parametrize(("start", "length"), [(-1, 1), (0, -1), (-5, None)])
    def test_negative_ranges_are_invalid(
        self, bucket: Bucket, start: int, length: int | None
    ) -> None:
        bucket.put("digits", b"0123456789")
        with pytest.raises(Invalid) as caught:
            bucket.get("digits", start, length)
        assert caught.value.kind == "bad_range"
        if length is not None:
            with pytest.raises(Invalid):
                bucket.get_ranges("digits", [(0, 1), (start, length)])

    def test_reading_a_missing_key_raises_not_found(self, bucket: Bucket) -> None:
        bucket.put("a/b", b"")
        for key in ("a", "b", "a/b/c", "a/c"):
            for read in (bucket.get, bucket.size):
                with pytest.raises(NotFound) as caught:
                    read(key)
                assert caught.value.kind == "no_key"
            with pytest.raises(NotFound):
                bucket.get_ranges(key, [(0, 1)])

    def test_answers_returns_for_a_working_bucket(self, bucket: Bucket) -> None:
        bucket.check_reachable(60.0)

    def test_put_all_and_get_all_handle_many_objects(self, bucket: Bucket) -> None:
        objects = {f"many/{n}": b"%d" % n * n for n in range(40)}
        bucket.put("many/7", b"first")
        assert bucket.put_all(objects) == {"many/7"}
        assert bucket.put_all(objects) == set(objects)
        objects["many/7"] = b"first"
        assert bucket.get_all([*objects, "many/none", "many/7"]) == objects
        assert bucket.get_all([]) == {}
        assert bucket.put_all({}) == set()

    @pytest.mark.parametrize("key", BAD_KEYS)
    def test_every_verb_refuses_invalid_keys(
        self, bucket: Bucket, tmp_path: Path, key: str
    ) -> None:
        source = tmp_path / "source"
        source.write_bytes(b"")
        for verb in (
            lambda: bucket.put(key, b""),
            lambda: bucket.put_file(key, source),
            lambda: bucket.get(key),
            lambda: bucket.get_ranges(key, [(0, 1)]),
            lambda: bucket.get_all([key]),
            lambda: bucket.put_all({key: b""}),
            lambda: bucket.size(key),
            lambda: bucket.delete([key]),
        ):
            with pytest.raises(Invalid) as caught:
                verb()
            assert caught.value.kind == "bad_key"
        assert source.exists()

    def test_listing_is_in_key_order(self, bucket: Bucket) -> None:
        # "-" and "." sort before "/", digits and letters after it
        keys = ["a-b", "a.b", "a/b", "a/b.c/d", "a/b0", "a/c/d/e", "a0", "ab", "b/a", "c"]
        for key in reversed(keys):
            bucket.put(key, key.encode())
        assert list(bucket.list()) == [BucketEntry(key, len(key)) for key in keys]

    def test_list_returns_the_keys_with_a_prefix(self, bucket: Bucket) -> None:
        for key in ("a/x", "a/xy", "a/z/x", "ab/x", "b"):
            bucket.put(key, b"")

        def listed(prefix: str) -> list[str]:
            return [found.key for found in bucket.list(prefix)]

        assert listed("a") == ["a/x", "a/xy", "a/z/x", "ab/x"]
        assert listed("a/") == ["a/x", "a/xy", "a/z/x"]
        assert listed("a/x") == ["a/x", "a/xy"]
        assert listed("a/z/") == ["a/z/x"]
        assert listed("b") == ["b"]
        assert listed("b/") == []
        assert listed("nothing/here") == []

    @pytest.mark.parametrize("prefix", ["/", "../", "a/../", "a//", "A", "~"])
    def test_an_invalid_prefix_is_refused(self, bucket: Bucket, prefix: str) -> None:
        with pytest.raises(Invalid) as caught:
            list(bucket.list(prefix))
        assert caught.value.kind == "bad_key"

    def test_delete_removes_keys_and_ignores_missing_ones(self, bucket: Bucket) -> None:
        for key in ("a/b", "a/c", "d"):
            bucket.put(key, b"")
        bucket.delete(["a/b", "d", "never/there", "a/b"])
        assert [found.key for found in bucket.list()] == ["a/c"]
        with pytest.raises(NotFound):
            bucket.get("a/b")
        bucket.put("a/b", b"again")
        assert bucket.get("a/b") == b"again"
        bucket.delete([])

    def test_local_path_returns_the_object_file_or_none(self, bucket: Bucket) -> None:
        bucket.put("a/b", b"bytes")
        path = bucket.local_path("a/b")
        assert path is None or path.read_bytes() == b"bytes"
        assert bucket.local_path("a/c") is None


class SharedBucketTests(BucketTests):
    """Tests of a bucket in several processes. Supply the fixture `opener`; see the module."""

    @pytest.fixture
    def bucket(self, opener: BucketOpener) -> Bucket:
        return opener()

    def test_another_handle_sees_changes_at_once(
        self, bucket: Bucket, opener: BucketOpener
    ) -> None:
        other = opener()
        bucket.put("a", b"bytes")
        assert other.get("a") == b"bytes"
        other.delete(["a"])
        assert list(bucket.list()) == []

    def test_one_of_many_processes_creates_a_key(
        self, bucket: Bucket, opener: BucketOpener
    ) -> None:
        contents = [bytes([n]) * 50_000 for n in range(4)]
        created = run_in_processes(try_put, [(opener, "deep/race", data) for data in contents])
        assert created.count(True) == 1
        assert bucket.get("deep/race") == contents[created.index(True)]
        assert len(list(bucket.list())) == 1
