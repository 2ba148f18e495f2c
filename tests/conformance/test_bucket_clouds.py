"""The bucket in Azure and in Google's cloud through the shipped suite, on their emulators."""

from __future__ import annotations

from functools import partial
from uuid import uuid4

import pytest
from tests.fixtures.clouds import Cloud

from ortet.backends.object_storage.bucket import S3Bucket
from ortet.testing.bucket import SharedBucketTests
from ortet.testing.processes import BucketOpener


class TestCloudBucket(SharedBucketTests):
    @pytest.fixture
    def opener(self, cloud: Cloud) -> BucketOpener:
        return partial(S3Bucket, cloud.url(f"{uuid4().hex}/Deep"))
