"""Routes of a store's bucket: small things in memory, large ones by way of the disk."""

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

from ortet.backends.base import Listing
from ortet.backends.keys import check_key, check_range
from ortet.backends.remote.protocol import AGAIN, KIND, Keys, Prefix, Ranges, pack
from ortet.errors import Conflict, Invalid, NotFound, OrtetError
from ortet.objects.tail import storage_error
from ortet.server.raw_store.rawaccess import (
    Grant,
    answering,
    body_of,
    ending,
    failed,
    parsed,
    pieces_of,
)
from ortet.server.raw_store.rawview import View

_SMALL = 1 << 20
"""Bytes of an upload that are kept in memory."""
_PIECE = 8 << 20
"""Bytes of an answer at most."""
_LINES = 1000
_STALE = 24 * 3600


def bucket_routes(access: Grant, slowest: float) -> list[Route]:
    raw = _Bucket(access, slowest)
    return [
        Route("/raw/bucket/{verb}", raw.ask, methods=["POST"]),
        Route("/raw/bucket/{key:path}", raw.get, methods=["GET"]),
        Route("/raw/bucket/{key:path}", raw.put, methods=["PUT"]),
    ]


class _Bucket:
    def __init__(self, access: Grant, slowest: float) -> None:
        self._access = access
        self._slowest = slowest

    def _view(self, request: Request, scope: str) -> View:
        access = self._access(request, scope)
        return View(access.bucket, access.objects)

    async def get(self, request: Request) -> Response:
        def work() -> Response:
            view = self._view(request, "read")
            key = check_key(request.path_params["key"])
            start, length = _number(request, "start", 0), _number(request, "length", _PIECE)
            check_range(start, length)
            data = view.get(key, start, min(length, _PIECE))
            return Response(data, media_type="application/octet-stream")

        return await answering(work)

    async def ask(self, request: Request) -> Response:
        try:
            body = await body_of(request, self._access, self._slowest)
        except OrtetError as error:
            return failed(error)
        verbs = {"size": self._size, "list": self._list, "ranges": self._ranges}
        verb = request.path_params["verb"]

        def work() -> Response:
            view = self._view(request, "write" if verb == "delete" else "read")
            if verb == "delete":
                view.delete(parsed(Keys, body).keys)
                return Response(pack(None), media_type=KIND)
            if verb not in verbs:
                raise NotFound("no_method", f"a bucket has no {verb!r}: upgrade the server")
            return verbs[verb](view, body)

        return await answering(work)

    def _size(self, view: View, body: bytes) -> Response:
        keys = parsed(Keys, body).keys
        if len(keys) != 1:
            raise Invalid("bad_call", "a size is that of one key: give one")
        return Response(pack(view.size(keys[0])), media_type=KIND)

    def _ranges(self, view: View, body: bytes) -> Response:
        asked = parsed(Ranges, body)
        for start, length in asked.ranges:
            check_range(start, length)
        if sum(length for _, length in asked.ranges) > _PIECE:
            raise Invalid("bad_range", f"give at most {_PIECE} bytes of ranges at once")
        view.size(asked.key)  # which says that it is not there, if there is no range
        found = [view.get(asked.key, start, length) for start, length in asked.ranges]
        return Response(pack(found), media_type=KIND)

    def _list(self, view: View, body: bytes) -> Response:
        found = view.list(parsed(Prefix, body).prefix)
        first = list(islice(found, _LINES))  # before the answer begins: it may be an error
        return StreamingResponse(_lines(first, found), media_type="text/plain")

    async def put(self, request: Request) -> Response:
        again = request.headers.get(AGAIN) == "1"
        upload = _Upload(request, self._access)
        try:
            await upload.receive(self._slowest)
        except OrtetError as error:
            await run_sync(upload.discard)
            return failed(error)
        return await answering(partial(upload.store, again))


class _Upload:
    """Bytes on their way into the bucket."""

    def __init__(self, request: Request, access: Grant) -> None:
        self._request = request
        self._grant = access
        self._file: BinaryIO | None = None
        self._path: Path | None = None
        self._pieces: list[bytes] = []
        self._held = 0

    async def receive(self, slowest: float) -> None:
        try:
            await run_sync(self._open)  # before a byte is taken
        except OrtetError as error:
            raise ending(self._request, error) from None
        async for piece in pieces_of(self._request, slowest):
            self._pieces.append(piece)
            self._held += len(piece)
            if self._held >= _SMALL:
                await run_sync(self._spill)

    def _open(self) -> View:
        access = self._grant(self._request, "write")
        check_key(self._request.path_params["key"])
        self._place = access.objects.root.local / "uploads"
        self._space = access.objects.space
        return View(access.bucket, access.objects)

    def _spill(self) -> None:
        self._space.check(self._held)
        try:
            if self._file is None:
                self._place.mkdir(exist_ok=True)
                self._path = self._place / os.urandom(16).hex()
                self._file = open(self._path, "xb")  # noqa: SIM115 - closed by discard
            self._file.writelines(self._pieces)
        except OSError as error:
            raise storage_error(error, "receiving an upload") from error
        self._pieces, self._held = [], 0

    def store(self, again: bool) -> Response:
        key = self._request.path_params["key"]
        try:
            view = self._open()  # anew: its token may have been revoked while it came
            if self._file is None or self._path is None:
                view.put(key, b"".join(self._pieces))
            else:
                self._spill()
                self._file.close()
                view.put_file(key, self._path)
        except Conflict as error:
            error.details["again"] = again
            raise
        finally:
            self.discard()
        return Response(pack(None), media_type=KIND)

    def discard(self) -> None:
        if self._file is not None and self._path is not None:
            self._file.close()
            self._path.unlink(missing_ok=True)


def drop_stale_uploads(local: Path, now: float) -> None:
    """What a killed server was receiving."""
    place = local / "uploads"
    if place.is_dir():
        for entry in os.scandir(place):
            if entry.stat().st_mtime < now - _STALE:
                Path(entry.path).unlink(missing_ok=True)


def _lines(first: list[Listing], rest: Iterator[Listing]) -> Iterator[bytes]:
    listed = chain(first, rest)
    while page := list(islice(listed, _LINES)):
        yield "".join([f"{item.key} {item.size}\n" for item in page]).encode()


def _number(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name, str(default))
    try:
        return int(text)
    except ValueError:
        raise Invalid("bad_range", f"{name}={text[:20]!r}: give a number") from None
