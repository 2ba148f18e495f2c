"""The bucket in S3 through the shipped suite, on a real server."""

from __future__ import annotations

from functools import partial
from uuid import uuid4

import pytest
from tests.fixtures.s3 import set_environ

from ortet.backends.object_storage.bucket import S3Bucket
from ortet.testing.bucket import SharedBucketTests
from ortet.testing.processes import BucketOpener


class TestS3Bucket(SharedBucketTests):
    @pytest.fixture
    def opener(self, s3: str, monkeypatch: pytest.MonkeyPatch) -> BucketOpener:
        set_environ(monkeypatch)
        prefix = f"{uuid4().hex}/Deep"
        return partial(S3Bucket, f"s3://ortet/{prefix}?endpoint={s3}")
