"""The Bucket in the cloud, through obstore: S3 and compatible services, Google and Azure."""
# ruff: noqa: PLC0415 - obstore is an extra, and slow to load

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from ortet.backends.base import Bucket, BucketEntry
from ortet.backends.errors import key_exists, no_key
from ortet.backends.keys import check_key, check_prefix, check_range
from ortet.backends.object_storage.retry import KeyAbsent, KeyTaken, RangeBeyondEnd, call_with_retry
from ortet.backends.object_storage.url import BucketAddress, open_object_store, parse_bucket_url
from ortet.errors import Conflict, Invalid, NotFound, Unavailable, Unsupported

if TYPE_CHECKING:
    from obstore.store import ObjectStore

T = TypeVar("T")
Item = TypeVar("Item")
_Data = bytes | mmap.mmap

_MERGE_GAP_BYTES = 64 << 10
"""Reading a gap of up to this size costs less than another request."""
_MAX_MERGED_BYTES = 8 << 20
_PIECE = 8 << 20
_LARGE_UPLOAD_BYTES = 1 << 20
"""Larger uploads get a time limit that depends on their size."""
_MIN_BYTES_PER_SECOND = 128 << 10
"""The assumed minimum speed of a connection."""
_READ_TIMEOUT_SECONDS = 3600.0
_PROBE_KEY = "ready"
"""A key that is never written. Reading it checks that the bucket answers."""
_MAX_CONCURRENT_CALLS = 16
"""The maximum number of concurrent requests, which hide the latency of a distant server."""

_started_pids: set[int] = set()
"""Processes that have used obstore. Its threads do not survive fork(2)."""


class S3Bucket(Bucket):
    """The objects of one bucket below a prefix. Opening it sends no request.

    The server itself refuses a put if the key is taken (If-None-Match), however many hosts write at
    once. If the answer to a put was lost, the stored object is compared with the data.

    Args:
        url: The URL of the bucket.
        retry_seconds: How long a failing call is retried.
        read_timeout: How long the server may send nothing.
    """

    def __init__(
        self, url: str, *, retry_seconds: float = 30.0, read_timeout: float = 20.0
    ) -> None:
        self.address: BucketAddress = parse_bucket_url(url)
        self._retry_seconds = retry_seconds
        self._read_timeout = read_timeout
        self._stores: dict[float, ObjectStore] = {}
        self._reader = self._open_store(_READ_TIMEOUT_SECONDS, read_timeout)

    def put(self, key: str, data: bytes) -> None:
        self._create(check_key(key), bytes(data))

    def put_file(self, key: str, path: Path) -> None:
        """Upload a mapped file; it is not read into memory as a whole."""
        check_key(key)
        try:
            with _open_regular_file(path) as file:
                size = os.fstat(file.fileno()).st_size
                if not size:
                    self._create(key, b"")
                else:
                    self._create(key, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))
        except FileNotFoundError as error:
            raise NotFound("no_file", f"there is no file {path} to store: look at it") from error
        except OSError as error:
            raise Unavailable("no_access", f"cannot read {path} ({error}): see to it") from error
        path.unlink(missing_ok=True)

    def _create(self, key: str, data: _Data) -> None:
        import obstore

        size = len(data)
        longest = (
            self._read_timeout
            if size <= _LARGE_UPLOAD_BYTES
            else self._read_timeout + _next_power_of_two(size) / _MIN_BYTES_PER_SECOND
        )
        store = self._open_store(longest, longest)
        try:
            self._call(
                f"store {key!r}",
                lambda: obstore.put(
                    store, self._object_path(key), data, mode="create", use_multipart=False
                ),
            )
        except KeyTaken as error:
            if not (error.is_retry and self._is_same(key, data)):
                raise key_exists(key) from None
        except KeyAbsent:
            raise _no_bucket(self.address) from None

    def _is_same(self, key: str, data: _Data) -> bool:
        import obstore

        try:
            stored = self._call(
                f"look at {key!r}", lambda: obstore.head(self._reader, self._object_path(key))
            )
            if stored["size"] != len(data):
                return False
            tag = (stored["e_tag"] or "").strip('"')
            if tag == hashlib.md5(data, usedforsecurity=False).hexdigest():
                # S3 uses this tag for an unencrypted object that was uploaded in one part
                return True
            return all(
                self.get(key, at, _PIECE) == data[at : at + _PIECE]
                for at in range(0, len(data), _PIECE)
            )
        except (KeyAbsent, NotFound):
            return False

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        check_range(start, length)
        if length == 0:
            self.size(key)
            return b""
        return self._get(check_key(key), start, length)

    def _get(self, key: str, start: int, length: int | None) -> bytes:
        import obstore

        path = self._object_path(key)

        def read() -> bytes:
            if length is not None:
                ranged = obstore.get_range(self._reader, path, start=start, length=length)
                return bytes(ranged)
            response = obstore.get(self._reader, path, options={"range": {"offset": start}})
            return bytes(response.bytes())

        def whole() -> bytes:
            return bytes(obstore.get(self._reader, path).bytes())

        try:
            return self._call(f"read {key!r}", read if start or length is not None else whole)
        except KeyAbsent:
            raise no_key(key) from None
        except RangeBeyondEnd:
            return b""

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read ranges. Ranges close together are merged, and all requests run concurrently."""
        import obstore

        check_key(key)
        for start, length in ranges:
            check_range(start, length)
        wanted = _merge_ranges(ranges)
        if len(wanted) <= 1:
            contents = [self.get(key, *span) for span in wanted]
        else:
            starts, lengths = [list(column) for column in zip(*wanted, strict=True)]
            try:
                answers = self._call(
                    f"read {key!r}",
                    lambda: obstore.get_ranges(
                        self._reader,
                        self._object_path(key),
                        starts=starts,
                        lengths=lengths,
                        coalesce=0,
                    ),
                )
                contents = [bytes(answer) for answer in answers]
            except KeyAbsent:
                raise no_key(key) from None
            except RangeBeyondEnd:
                contents = [self._get(key, *span) for span in wanted]
        return [_extract_range(wanted, contents, span) for span in ranges]

    def get_all(self, keys: Sequence[str]) -> dict[str, bytes]:
        def get(key: str) -> bytes | None:
            with suppress(NotFound):
                return self.get(key)
            return None

        wanted = list(dict.fromkeys(keys))
        contents = zip(wanted, _map_concurrently(get, wanted), strict=True)
        return {key: data for key, data in contents if data is not None}

    def put_all(self, objects: Mapping[str, bytes]) -> set[str]:
        def put(item: tuple[str, bytes]) -> bool:
            try:
                self.put(*item)
            except Conflict:
                return True
            return False

        taken = zip(objects, _map_concurrently(put, objects.items()), strict=True)
        return {key for key, was in taken if was}

    def size(self, key: str) -> int:
        import obstore

        path = self._object_path(check_key(key))
        try:
            metadata = self._call(f"look at {key!r}", lambda: obstore.head(self._reader, path))
        except KeyAbsent:
            raise no_key(key) from None
        return metadata["size"]

    def list(self, prefix: str = "") -> Iterator[BucketEntry]:
        import obstore

        begin = self.address.prefix + check_prefix(prefix)
        parent = begin.rpartition("/")[0]

        def read() -> list[BucketEntry]:
            cut = len(self.address.prefix)
            return [
                BucketEntry(found["path"][cut:], found["size"])
                for page in obstore.list(self._reader, parent or None)
                for found in page
                if found["path"].startswith(begin)
            ]

        try:
            listed = self._call("list it", read)
        except KeyAbsent:
            raise _no_bucket(self.address) from None
        # Not every S3-compatible server sorts "a-b" before "a/b".
        yield from sorted(listed, key=lambda found: found.key)

    def delete(self, keys: Sequence[str]) -> None:
        import obstore

        paths = list(dict.fromkeys([self._object_path(check_key(key)) for key in keys]))
        if not paths:
            return
        try:
            self._call("delete from it", lambda: obstore.delete(self._reader, paths))
        except KeyAbsent:  # for some servers a missing key is an error, which ends the batch
            for path in paths:
                with suppress(KeyAbsent):
                    self._call("delete from it", partial(obstore.delete, self._reader, path))

    def check_reachable(self, seconds: float) -> None:
        import obstore

        store = self._open_store(seconds, seconds)
        _check_process(self.address)
        with suppress(KeyAbsent):
            # GET and not HEAD: only an error body tells if the key or the bucket is missing
            call_with_retry(
                self.address,
                "look into it",
                lambda: obstore.get(store, self._object_path(_PROBE_KEY)),
                retry_seconds=0.0,
            )

    def close(self) -> None:
        self._stores.clear()

    def _object_path(self, key: str) -> str:
        return self.address.prefix + key

    def _call(self, act: str, call: Callable[[], T]) -> T:
        _check_process(self.address)
        return call_with_retry(self.address, act, call, retry_seconds=self._retry_seconds)

    def _open_store(self, timeout: float, read_timeout: float) -> ObjectStore:
        store = self._stores.get(timeout)
        if store is None:
            store = open_object_store(self.address, read_timeout=read_timeout, timeout=timeout)
            self._stores[timeout] = store
        return store


def _check_process(address: BucketAddress) -> None:
    pid = os.getpid()
    if pid not in _started_pids:
        if _started_pids:
            raise Unsupported(
                "forked",
                f"{address} was in use before this process was forked, and cannot be used in a "
                "child: start it anew (multiprocessing: spawn), or open the store only in it",
            )
        _started_pids.add(pid)


def _map_concurrently(call: Callable[[Item], T], items: Iterable[Item]) -> list[T]:
    """Return the results of all calls, in order.

    If one fails, calls not yet started are cancelled.
    """
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(_MAX_CONCURRENT_CALLS, "ortet-s3")
    try:
        return list(pool.map(call, items))
    finally:
        pool.shutdown(cancel_futures=True)


def _next_power_of_two(size: int) -> int:
    return 1 << size.bit_length()


def _merge_ranges(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the (start, length) ranges to request, sorted, with neighbours merged."""
    spans: list[tuple[int, int]] = []
    for start, length in sorted(set(ranges)):
        if not length:
            continue
        if spans:
            first, before = spans[-1]
            end = max(first + before, start + length)
            if start - (first + before) <= _MERGE_GAP_BYTES and end - first <= max(
                _MAX_MERGED_BYTES, before
            ):
                spans[-1] = (first, end - first)
                continue
        spans.append((start, length))
    return spans


def _extract_range(
    spans: Sequence[tuple[int, int]], contents: Sequence[bytes], wanted: tuple[int, int]
) -> bytes:
    start, length = wanted
    for (first, size), data in zip(spans, contents, strict=True):
        if first <= start and start + length <= first + size:
            return data[start - first : start - first + length]
    return b""


def _no_bucket(address: BucketAddress) -> NotFound:
    name = f"{address.scheme}://{address.bucket}"
    return NotFound(
        "no_bucket", f"there is no bucket {name}: create it, or correct the address (bucket=)"
    )


def _open_regular_file(path: Path) -> BinaryIO:
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise Invalid("not_a_file", f"{path} is not a regular file: only those can be stored")
    return open(path, "rb")
