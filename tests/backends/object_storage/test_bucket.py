"""The bucket in S3 behind a proxy that fails: what is repeated, what is told, what is compared."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.fixtures.s3 import (
    SECRET,
    Proxy,
    breaks_off,
    fails,
    loses_answer,
    loses_request,
    passes,
    set_environ,
    stalls,
)

from ortet.backends.buckets import open_bucket
from ortet.backends.local.bucket import FileBucket
from ortet.backends.object_storage.bucket import S3Bucket
from ortet.backends.object_storage.url import parse_bucket_url
from ortet.errors import Conflict, Invalid, NotFound, OrtetError, Refused, Unavailable, Unsupported


@pytest.fixture
def bucket(proxy: Proxy, request: pytest.FixtureRequest) -> S3Bucket:
    prefix = "".join(letter for letter in request.node.name if letter.isalnum())
    return S3Bucket(f"s3://ortet/{prefix}?endpoint={proxy.url}", retry_seconds=60.0)


def test_a_put_retried_after_a_lost_answer_is_no_conflict(bucket: S3Bucket, proxy: Proxy) -> None:
    proxy.faults = [loses_answer]
    bucket.put("a", b"ours")
    assert bucket.get("a") == b"ours"
    assert proxy.seen.count("PUT") == 2


def test_a_put_file_retried_after_a_lost_answer_is_no_conflict(
    bucket: S3Bucket, proxy: Proxy, tmp_path: Path
) -> None:
    content = os.urandom(3 << 20)
    source = tmp_path / "pack"
    source.write_bytes(content)
    proxy.faults = [loses_answer, loses_answer]
    bucket.put_file("a", source)
    assert bucket.get("a") == content
    assert not source.exists()


def test_a_put_retried_after_a_lost_request_conflicts_with_another_writer(
    bucket: S3Bucket, proxy: Proxy
) -> None:
    bucket.put("a", b"theirs")
    proxy.faults = [loses_request]
    with pytest.raises(Conflict) as caught:
        bucket.put("a", b"ours!!")
    assert caught.value.kind == "exists"
    assert bucket.get("a") == b"theirs"


def test_the_same_bytes_put_twice_are_a_conflict(bucket: S3Bucket) -> None:
    bucket.put("a", b"same")
    with pytest.raises(Conflict):
        bucket.put("a", b"same")


@pytest.mark.parametrize(
    "fault",
    [fails(500, "InternalError"), fails(503, "SlowDown"), fails(409, "ConditionalRequestConflict")],
)
def test_requests_are_retried_after_server_errors(
    bucket: S3Bucket, proxy: Proxy, fault: object
) -> None:
    proxy.faults = [fault, fault]  # type: ignore[list-item]
    bucket.put("a", b"bytes")
    proxy.faults = [fault]  # type: ignore[list-item]
    assert bucket.get("a") == b"bytes"
    proxy.faults = [fault]  # type: ignore[list-item]
    assert bucket.get_ranges("a", [(0, 2), (2, 2)]) == [b"by", b"te"]
    proxy.faults = [fault]  # type: ignore[list-item]
    assert bucket.size("a") == 5
    proxy.faults = [fault]  # type: ignore[list-item]
    assert [found.key for found in bucket.list()] == ["a"]
    proxy.faults = [fault]  # type: ignore[list-item]
    bucket.delete(["a"])
    assert list(bucket.list()) == []


def test_requests_are_retried_after_broken_connections(bucket: S3Bucket, proxy: Proxy) -> None:
    data = os.urandom(300_000)
    proxy.faults = [loses_request]
    bucket.put("a", data)
    proxy.faults = [loses_request, breaks_off]
    assert bucket.get("a") == data
    proxy.faults = [breaks_off]
    assert bucket.get("a", 1000, 200_000) == data[1000:201_000]
    proxy.faults = [loses_answer]
    bucket.delete(["a"])
    with pytest.raises(NotFound):
        bucket.get("a")


def test_a_stalled_read_is_retried(proxy: Proxy) -> None:
    data = os.urandom(300_000)
    bucket = S3Bucket(
        f"s3://ortet/stall?endpoint={proxy.url}", retry_seconds=60.0, read_timeout=2.0
    )
    bucket.put("a", data)
    proxy.faults = [stalls]
    assert bucket.get("a") == data


def test_a_server_that_keeps_failing_is_unavailable(proxy: Proxy) -> None:
    bucket = S3Bucket(f"s3://ortet/ill?endpoint={proxy.url}", retry_seconds=0.5)
    proxy.faults = [fails(503, "SlowDown")] * 50
    for verb in (
        lambda: bucket.put("a", b""),
        lambda: bucket.get("a"),
        lambda: bucket.size("a"),
        lambda: list(bucket.list()),
        lambda: bucket.delete(["a"]),
    ):
        with pytest.raises(Unavailable) as caught:
            verb()
        assert caught.value.kind == "bucket_unavailable"
        assert "s3://ortet" in str(caught.value)
        assert "repeat" in str(caught.value)


@pytest.mark.s3  # no server, but the package that speaks to one
def test_an_unreachable_endpoint_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    set_environ(monkeypatch)
    bucket = S3Bucket("s3://ortet/x?endpoint=http://127.0.0.1:1", retry_seconds=0.2)
    with pytest.raises(Unavailable):
        bucket.get("a")


def test_wrong_credentials_are_refused_and_not_repeated(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-and-secret")
    bucket = S3Bucket(f"s3://ortet/x?endpoint={proxy.url}", retry_seconds=60.0)
    for verb in (
        lambda: bucket.put("a", b""),
        lambda: bucket.get("a"),
        lambda: bucket.size("a"),
        lambda: list(bucket.list()),
        lambda: bucket.delete(["a"]),
    ):
        proxy.seen.clear()
        with pytest.raises(Refused) as caught:
            verb()
        assert caught.value.kind == "no_access"
        assert "s3://ortet" in str(caught.value)
        assert "AWS_SECRET_ACCESS_KEY" in str(caught.value)
        assert len(proxy.seen) == 1
        _check_no_secret(caught.value)


def test_a_missing_bucket_is_reported(proxy: Proxy) -> None:
    bucket = S3Bucket(f"s3://not-there?endpoint={proxy.url}", retry_seconds=60.0)
    for verb in (
        lambda: bucket.put("a", b""),
        lambda: bucket.get("a"),
        lambda: list(bucket.list()),
        lambda: bucket.delete(["a"]),
    ):
        with pytest.raises(NotFound) as caught:
            verb()
        assert caught.value.kind == "no_bucket"
        assert "s3://not-there" in str(caught.value)


def test_answers_sends_one_request_without_retry(bucket: S3Bucket, proxy: Proxy) -> None:
    bucket.check_reachable(60.0)
    proxy.faults = [fails(503, "SlowDown")]
    with pytest.raises(Unavailable) as caught:
        bucket.check_reachable(60.0)
    assert caught.value.kind == "bucket_unavailable"
    assert proxy.seen == ["GET", "GET"]
    with pytest.raises(NotFound) as gone:
        S3Bucket(f"s3://nobodys/x?endpoint={proxy.url}").check_reachable(60.0)
    assert gone.value.kind == "no_bucket"


def test_close_ranges_are_read_by_one_request(bucket: S3Bucket, proxy: Proxy) -> None:
    data = os.urandom(1 << 20)
    bucket.put("a", data)
    ranges = [(number * 5000, 1000) for number in range(20)]
    proxy.seen.clear()
    assert bucket.get_ranges("a", ranges) == [data[at : at + size] for at, size in ranges]
    assert proxy.seen == ["GET"]
    far = [(0, 10), (900_000, 10), (1 << 20, 5), (5 << 20, 5)]
    assert bucket.get_ranges("a", far) == [data[:10], data[900_000:900_010], b"", b""]
    with pytest.raises(NotFound):
        bucket.get_ranges("b", [(0, 1), (900_000, 1)])


def test_a_large_file_is_uploaded_in_parts_and_never_overwritten(
    bucket: S3Bucket, proxy: Proxy, tmp_path: Path
) -> None:
    data = os.urandom(1 << 20) * 20
    source = tmp_path / "pack"
    source.write_bytes(data)
    proxy.faults = [passes, fails(500, "InternalError")]
    bucket.put_file("a", source)
    assert bucket.size("a") == len(data)
    again = tmp_path / "again"
    again.write_bytes(data)
    with pytest.raises(Conflict):
        bucket.put_file("a", again)
    assert again.exists()


def test_put_file_of_a_missing_file_or_directory_is_refused(
    bucket: S3Bucket, tmp_path: Path
) -> None:
    with pytest.raises(NotFound):
        bucket.put_file("a", tmp_path / "nothing")
    with pytest.raises(Invalid):
        bucket.put_file("a", tmp_path)


def test_a_forked_child_is_told_to_start_anew(bucket: S3Bucket) -> None:
    bucket.put("a", b"")
    child = os.fork()
    if not child:
        try:
            bucket.get("a")
        except Unsupported as error:
            os._exit(0 if error.kind == "forked" else 2)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(
    "url",
    [
        "s3://",
        "s3:///prefix",
        "s3://b/../x",
        "s3://b/a//b",
        "s3://b/a b",
        "s3://b?what=1",
        "s3://b:80/x",
        "s3://b/x#y",
        "s3://b?endpoint=ftp://x",
        "s3://b?endpoint=http://name:word@x",
        "s3://name:hush@b/x",
        "s3://b?secret_access_key=hush",
        "gs://b?region=x",
        "az://b?endpoint=ftp://x",
        "http://x",
        "file://host/x",
        "file:///x?y=1",
        "",
    ],
)
def test_invalid_bucket_addresses_are_refused(url: str) -> None:
    with pytest.raises(Invalid) as caught:
        open_bucket(url)
    assert caught.value.kind == "bad_url"
    assert "hush" not in str(caught.value)
    assert "word" not in str(caught.value)


def test_bucket_addresses_are_parsed_with_their_options(tmp_path: Path) -> None:
    found = parse_bucket_url("S3://bucket/One/two/?endpoint=https://h:1&region=r")
    assert (found.bucket, found.prefix, found.endpoint, found.region) == (
        "bucket",
        "One/two/",
        "https://h:1",
        "r",
    )
    assert str(found) == "s3://bucket/One/two"
    assert parse_bucket_url("az://box?account=me").account == "me"
    assert isinstance(open_bucket(f"file://{tmp_path}/a%20b"), FileBucket)
    assert (tmp_path / "a b").is_dir()


def test_without_obstore_the_error_names_the_extra_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "obstore.store", None)
    with pytest.raises(Unsupported) as caught:
        open_bucket("s3://bucket")
    assert 'pip install "ortet[s3]"' in str(caught.value)


def _check_no_secret(error: OrtetError) -> None:
    told: BaseException | None = error
    while told is not None:
        assert "wrong-and-secret" not in repr(told)
        assert SECRET not in repr(told)
        told = told.__cause__
