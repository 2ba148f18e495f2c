"""Opens a bucket by its URL. Reads no environment itself; the cloud libraries do.

A module of its own, so that callers need not import every kind of bucket.
"""
# ruff: noqa: PLC0415 - one kind of bucket must not load what the other needs

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from ortet.backends.base import Bucket
from ortet.backends.object_storage.url import BUCKET_SCHEMES
from ortet.errors import Invalid


def open_bucket(url: str) -> Bucket:
    """Open the bucket at s3://…, gs://…, az://… or file:///PATH. Raise Invalid("bad_url")."""
    scheme = url.partition("://")[0].lower()
    if scheme in BUCKET_SCHEMES:
        from ortet.backends.object_storage.bucket import S3Bucket

        return S3Bucket(url)
    parts = urlsplit(url)
    if scheme != "file" or parts.netloc not in ("", "localhost") or len(parts.path) < 2:
        raise Invalid(
            "bad_url",
            "bucket= names no bucket: write s3://BUCKET/PREFIX, gs://…, az://… or file:///PATH",
        )
    if parts.query or parts.fragment or "\0" in unquote(parts.path):
        raise Invalid("bad_url", "bucket=file:///PATH takes nothing behind the path")
    from ortet.backends.local.bucket import FileBucket

    place = Path(unquote(parts.path, errors="surrogateescape"))
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    return FileBucket(place)
