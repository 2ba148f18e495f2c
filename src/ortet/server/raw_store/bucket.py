"""Routes for the bucket of a store. Large uploads are buffered on disk, small ones in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO

from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from ortet.backends.base import BucketEntry
from ortet.backends.keys import check_key, check_range
from ortet.backends.remote.protocol import (
    CONTENT_TYPE,
    RETRY_HEADER,
    KeysRequest,
    PrefixRequest,
    RangesRequest,
    pack,
)
from ortet.errors import Conflict, Invalid, NotFound, OrtetError
from ortet.objects.tail import storage_error
from ortet.server.raw_store.rawaccess import (
    Grant,
    body_chunks,
    close_connection_after,
    parse_call,
    raw_error_response,
    read_call_body,
    respond_in_thread,
)
from ortet.server.raw_store.rawview import RawBucketView

_MEMORY_BUFFER_BYTES = 1 << 20
"""Size up to which an upload is kept in memory."""
_MAX_RESPONSE_BYTES = 8 << 20
"""Maximum size of a response."""
_LINES_PER_CHUNK = 1000
_STALE_UPLOAD_SECONDS = 24 * 3600


def bucket_routes(grant: Grant, timeout: float) -> list[Route]:
    """Return the routes below /raw/bucket."""
    raw = _RawBucketRoutes(grant, timeout)
    return [
        Route("/raw/bucket/{verb}", raw.call, methods=["POST"]),
        Route("/raw/bucket/{key:path}", raw.get, methods=["GET"]),
        Route("/raw/bucket/{key:path}", raw.put, methods=["PUT"]),
    ]


class _RawBucketRoutes:
    def __init__(self, grant: Grant, timeout: float) -> None:
        self._grant = grant
        self._timeout = timeout

    def _view(self, request: Request, scope: str) -> RawBucketView:
        access = self._grant(request, scope)
        return RawBucketView(access.bucket, access.objects)

    async def get(self, request: Request) -> Response:
        def work() -> Response:
            view = self._view(request, "read")
            key = check_key(request.path_params["key"])
            start, length = (
                _number(request, "start", 0),
                _number(request, "length", _MAX_RESPONSE_BYTES),
            )
            check_range(start, length)
            data = view.get(key, start, min(length, _MAX_RESPONSE_BYTES))
            return Response(data, media_type="application/octet-stream")

        return await respond_in_thread(work)

    async def call(self, request: Request) -> Response:
        try:
            body = await read_call_body(request, self._grant, self._timeout)
        except OrtetError as error:
            return raw_error_response(error)
        verbs = {"size": self._size, "list": self._list, "ranges": self._ranges}
        verb = request.path_params["verb"]

        def work() -> Response:
            view = self._view(request, "write" if verb == "delete" else "read")
            if verb == "delete":
                view.delete(parse_call(KeysRequest, body).keys)
                return Response(pack(None), media_type=CONTENT_TYPE)
            if verb not in verbs:
                raise NotFound("no_method", f"a bucket has no {verb!r}: upgrade the server")
            return verbs[verb](view, body)

        return await respond_in_thread(work)

    def _size(self, view: RawBucketView, body: bytes) -> Response:
        keys = parse_call(KeysRequest, body).keys
        if len(keys) != 1:
            raise Invalid("bad_call", "a size is that of one key: give one")
        return Response(pack(view.size(keys[0])), media_type=CONTENT_TYPE)

    def _ranges(self, view: RawBucketView, body: bytes) -> Response:
        asked = parse_call(RangesRequest, body)
        for start, length in asked.ranges:
            check_range(start, length)
        if sum(length for _, length in asked.ranges) > _MAX_RESPONSE_BYTES:
            raise Invalid(
                "bad_range", f"give at most {_MAX_RESPONSE_BYTES} bytes of ranges at once"
            )
        view.size(asked.key)  # raises NotFound if the key does not exist, even without ranges
        found = [view.get(asked.key, start, length) for start, length in asked.ranges]
        return Response(pack(found), media_type=CONTENT_TYPE)

    def _list(self, view: RawBucketView, body: bytes) -> Response:
        found = view.list(parse_call(PrefixRequest, body).prefix)
        first = list(
            islice(found, _LINES_PER_CHUNK)
        )  # read before the response starts, so that an error can be reported
        return StreamingResponse(_lines(first, found), media_type="text/plain")

    async def put(self, request: Request) -> Response:
        again = request.headers.get(RETRY_HEADER) == "1"
        upload = _RawUpload(request, self._grant)
        try:
            await upload.receive(self._timeout)
        except OrtetError as error:
            await run_sync(upload.discard)
            return raw_error_response(error)
        return await respond_in_thread(partial(upload.store, again))


class _RawUpload:
    """An upload into the bucket."""

    def __init__(self, request: Request, grant: Grant) -> None:
        self._request = request
        self._grant = grant
        self._file: BinaryIO | None = None
        self._path: Path | None = None
        self._chunks: list[bytes] = []
        self._buffered_bytes = 0

    async def receive(self, timeout: float) -> None:
        try:
            await run_sync(self._open)  # before a byte is read
        except OrtetError as error:
            raise close_connection_after(self._request, error) from None
        async for piece in body_chunks(self._request, timeout):
            self._chunks.append(piece)
            self._buffered_bytes += len(piece)
            if self._buffered_bytes >= _MEMORY_BUFFER_BYTES:
                await run_sync(self._spill)

    def _open(self) -> RawBucketView:
        access = self._grant(self._request, "write")
        check_key(self._request.path_params["key"])
        self._directory = access.objects.layout.local / "uploads"
        self._space = access.objects.space
        return RawBucketView(access.bucket, access.objects)

    def _spill(self) -> None:
        self._space.check(self._buffered_bytes)
        try:
            if self._file is None:
                self._directory.mkdir(exist_ok=True)
                self._path = self._directory / os.urandom(16).hex()
                self._file = open(self._path, "xb")  # noqa: SIM115 - closed by discard
            self._file.writelines(self._chunks)
        except OSError as error:
            raise storage_error(error, "receiving an upload") from error
        self._chunks, self._buffered_bytes = [], 0

    def store(self, is_retry: bool) -> Response:
        key = self._request.path_params["key"]
        try:
            view = self._open()  # check again: the token may have been revoked during the upload
            if self._file is None or self._path is None:
                view.put(key, b"".join(self._chunks))
            else:
                self._spill()
                self._file.close()
                view.put_file(key, self._path)
        except Conflict as error:
            error.details["again"] = is_retry
            raise
        finally:
            self.discard()
        return Response(pack(None), media_type=CONTENT_TYPE)

    def discard(self) -> None:
        if self._file is not None and self._path is not None:
            self._file.close()
            self._path.unlink(missing_ok=True)


def drop_stale_uploads(local: Path, now: float) -> None:
    """Delete partial uploads that a killed server left behind."""
    place = local / "uploads"
    if place.is_dir():
        for entry in os.scandir(place):
            if entry.stat().st_mtime < now - _STALE_UPLOAD_SECONDS:
                Path(entry.path).unlink(missing_ok=True)


def _lines(first: list[BucketEntry], rest: Iterator[BucketEntry]) -> Iterator[bytes]:
    listed = chain(first, rest)
    while page := list(islice(listed, _LINES_PER_CHUNK)):
        yield "".join([f"{item.key} {item.size}\n" for item in page]).encode()


def _number(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name, str(default))
    try:
        return int(text)
    except ValueError:
        raise Invalid("bad_range", f"{name}={text[:20]!r}: give a number") from None
