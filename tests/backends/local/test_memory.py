"""What MemoryBucket promises beside the contract."""

from __future__ import annotations

from ortet.backends.local.memory import MemoryBucket


def test_a_listing_stands_while_the_bucket_changes() -> None:
    bucket = MemoryBucket()
    for key in ("a", "b", "c"):
        bucket.put(key, b"")
    seen = []
    for found in bucket.list():
        bucket.delete(["b"])
        seen.append(found.key)
    assert seen == ["a", "b", "c"]
