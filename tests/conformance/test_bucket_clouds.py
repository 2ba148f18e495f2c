"""The bucket in Azure and in Google's cloud through the shipped suite, on their emulators."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
from tests.cloud_servers import Cloud

from ortet.backend.s3 import S3Bucket
from ortet.testing.bucket import SharedBucketTests
from ortet.testing.processes import BucketOpener


class TestCloudBucket(SharedBucketTests):
    numbers = itertools.count()

    @pytest.fixture
    def opener(self, cloud: Cloud) -> BucketOpener:
        return partial(S3Bucket, cloud.url(f"p{next(self.numbers)}/Deep"))
