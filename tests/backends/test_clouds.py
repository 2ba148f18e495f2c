"""The bucket in Azure and in Google's cloud: what is told of a failure is told in each one's own
words, and means the same."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from tests.fixtures.clouds import ACCOUNT_KEY, Cloud, google_account, google_environ
from tests.fixtures.s3 import breaks_off, fails, loses_answer, loses_request

from ortet.backends.object_storage.bucket import S3Bucket
from ortet.backends.object_storage.url import CREDENTIAL_VARIABLES
from ortet.errors import Conflict, NotFound, Refused, Unavailable


@pytest.fixture
def bucket(cloud: Cloud, request: pytest.FixtureRequest) -> S3Bucket:
    prefix = "".join(letter for letter in request.node.name if letter.isalnum())
    return S3Bucket(cloud.url(prefix), retry_seconds=60.0)


def test_a_put_retried_after_a_lost_answer_is_no_conflict(
    bucket: S3Bucket, cloud: Cloud, tmp_path: Path
) -> None:
    cloud.proxy.faults = [loses_answer]
    bucket.put("a", b"ours")
    assert bucket.get("a") == b"ours"
    assert cloud.proxy.seen.count("PUT") == 2
    content = os.urandom(3 << 20)
    (tmp_path / "pack").write_bytes(content)
    cloud.proxy.faults = [loses_answer, loses_answer]
    bucket.put_file("b", tmp_path / "pack")
    assert bucket.get("b") == content


def test_a_put_retried_after_a_lost_request_conflicts_with_another_writer(
    bucket: S3Bucket, cloud: Cloud
) -> None:
    bucket.put("a", b"theirs")
    cloud.proxy.faults = [loses_request]
    with pytest.raises(Conflict) as caught:
        bucket.put("a", b"ours!!")
    assert caught.value.kind == "exists"
    assert bucket.get("a") == b"theirs"


def test_requests_to_a_busy_server_are_retried(bucket: S3Bucket, cloud: Cloud) -> None:
    data = os.urandom(300_000)
    busy = fails(503, "ServerBusy")
    cloud.proxy.faults = [busy, busy, loses_request]
    bucket.put("a", data)
    cloud.proxy.faults = [busy, breaks_off]
    assert bucket.get("a") == data
    cloud.proxy.faults = [busy]
    assert [found.key for found in bucket.list()] == ["a"]
    cloud.proxy.faults = [busy, loses_answer]
    bucket.delete(["a"])
    assert list(bucket.list()) == []


def test_a_server_that_stays_busy_is_unavailable(cloud: Cloud) -> None:
    cloud.proxy.always = fails(503, "ServerBusy")
    with pytest.raises(Unavailable, match="503 ServerBusy") as caught:
        S3Bucket(cloud.url("busy"), retry_seconds=0.3).put("a", b"")
    assert caught.value.kind == "bucket_unavailable"


@pytest.mark.slow
def test_delete_of_more_keys_than_one_request_takes_succeeds(bucket: S3Bucket) -> None:
    keys = [f"k{number}" for number in range(260)]  # Azure takes 256
    assert not bucket.put_all(dict.fromkeys(keys[:-1], b"x"))
    bucket.delete(keys)  # the last of which is not there
    assert list(bucket.list()) == []


def test_a_missing_bucket_is_reported(cloud: Cloud) -> None:
    bucket = S3Bucket(cloud.url("p", box="nobody"), retry_seconds=0.3)
    acts: list[Callable[[], object]] = [lambda: bucket.put("a", b"")]
    if cloud.scheme == "az":  # the emulator of the other one answers 500
        acts.append(lambda: list(bucket.list()))
    for act in acts:
        with pytest.raises(NotFound, match=f"{cloud.scheme}://nobody: create it") as caught:
            act()
        assert caught.value.kind == "no_bucket"


@pytest.mark.parametrize("cloud", ["gs"], indirect=True)
@pytest.mark.parametrize("name", ["GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT"])
def test_the_account_can_be_read_from_a_file(
    cloud: Cloud, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = tmp_path / "account.json"
    account.write_text(google_account())
    monkeypatch.delenv("GOOGLE_SERVICE_ACCOUNT_KEY")
    monkeypatch.setenv(name, str(account))
    bucket = S3Bucket(cloud.url(f"file-{name}"), retry_seconds=0.3)
    bucket.put("a", b"bytes")
    assert bucket.get("a") == b"bytes"


def test_a_wrong_key_is_refused_and_not_shown(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = base64.b64encode(b"wrong").decode()
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", wrong)
    google_environ(monkeypatch, google_account(rsa.generate_private_key(65537, 2048)))
    bucket = S3Bucket(cloud.url("p"), retry_seconds=0.3)
    for act in (lambda: bucket.put("a", b""), lambda: list(bucket.list())):
        with pytest.raises(Refused) as caught:
            act()
        assert caught.value.kind == "no_access"
        assert CREDENTIAL_VARIABLES[cloud.scheme] in caught.value.message
        assert not any(secret in repr(caught.value) for secret in (wrong, ACCOUNT_KEY, "PRIVATE"))
