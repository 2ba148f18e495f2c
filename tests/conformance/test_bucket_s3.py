"""The bucket in S3 through the shipped suite, on a real server."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

import pytest
from tests.s3_server import make_bucket, s3_server, set_environ

from ortet.backend.s3 import S3Bucket
from ortet.testing.bucket import SharedBucketTests
from ortet.testing.processes import BucketOpener


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with s3_server(tmp_path_factory.mktemp("s3")) as address:
        make_bucket(address, "conformance")
        yield address


class TestS3Bucket(SharedBucketTests):
    numbers = itertools.count()

    @pytest.fixture
    def opener(self, server: str, monkeypatch: pytest.MonkeyPatch) -> BucketOpener:
        set_environ(monkeypatch)
        prefix = f"p{next(self.numbers)}/Deep"
        return partial(S3Bucket, f"s3://conformance/{prefix}?endpoint={server}")
