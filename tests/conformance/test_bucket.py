"""Every bucket through the shipped suite."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from ortet.backends.base import Bucket
from ortet.backends.local.bucket import FileBucket
from ortet.backends.local.memory import MemoryBucket
from ortet.testing.bucket import BucketTests, SharedBucketTests
from ortet.testing.processes import BucketOpener


class TestMemoryBucket(BucketTests):
    @pytest.fixture
    def bucket(self) -> Bucket:
        return MemoryBucket()


class TestFileBucket(SharedBucketTests):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> BucketOpener:
        return partial(FileBucket, tmp_path / "bucket")
