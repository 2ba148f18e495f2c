"""Routes for the bucket of a store. Large uploads are buffered on disk, small ones in memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO

from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from ortet.backends.base import Bucket, BucketEntry
from ortet.backends.errors import no_key
from ortet.backends.keys import check_key, check_prefix, check_range
from ortet.backends.remote.protocol import (
    CONTENT_TYPE,
    RETRY_HEADER,
    KeysRequest,
    PrefixRequest,
    RangesRequest,
    pack,
)
from ortet.errors import Conflict, Corrupt, Invalid, NotFound, OrtetError, Refused, Unsupported
from ortet.objects import frame
from ortet.objects.group import GROUP_SUFFIX as GROUP
from ortet.objects.group import MERGE_MIN_TABLES
from ortet.objects.pack import LocalPackFile, Pack
from ortet.objects.store import PackedObjectStore
from ortet.objects.tail import TAIL_SUFFIX as TAIL
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

# The bucket of a store as remote hubs see it.
#
# Writers on the server's host keep new objects in tails outside the bucket, and indexes in local
# files. Both are shown as keys beside the packs.
#
#     packs/ID.pack   a pack of the bucket
#     packs/ID.tail   the open tail of a writer on the server's host; it grows until it is a pack
#     packs/ID.idx    the index of a pack, built on demand
#     packs/ID.grp    an index over several packs, so that a new client needs to read only few

PACKS = "packs/"
_PACK, _INDEX = ".pack", ".idx"


class RawBucketView:
    """Reads and writes for clients that are not trusted to keep the store intact.

    Uploads are verified, and packs cannot be deleted.
    """

    def __init__(self, bucket: Bucket, objects: PackedObjectStore) -> None:
        self._bucket = bucket
        self._objects = objects

    def list(self, prefix: str) -> Iterator[BucketEntry]:
        """Yield the keys with a prefix, including tails and group indexes."""
        check_prefix(prefix)
        if not prefix.startswith(PACKS):
            yield from self._bucket.list(prefix)
            return
        packs = self._objects.pack_set
        packs.refresh()
        self._merge()
        sizes: dict[str, int] = {}
        for tail in (*packs.own_tails, *packs.foreign_tails):
            end = tail.end
            tail.sync_foreign()  # make the listed bytes durable: readers rely on them
            if end:
                sizes[f"{PACKS}{tail.id}{TAIL}"] = end
        # List packs after tails: a tail that is sealed in between is then seen twice, not missed.
        sizes.update((item.key, item.size) for item in self._bucket.list(PACKS))
        for group in packs.groups():
            with contextlib.suppress(FileNotFoundError):
                sizes[f"{PACKS}{group.path.name}"] = group.path.stat().st_size
        yield from (
            BucketEntry(key, size) for key, size in sorted(sizes.items()) if key.startswith(prefix)
        )

    def _merge(self) -> None:
        """Merge small indexes.

        Each commit of a remote hub adds a pack, and a new client reads all indexes.
        """
        packs = self._objects.pack_set
        with contextlib.suppress(OrtetError, OSError):
            for _ in range(len(packs.tables)):
                if len(packs.tables) < MERGE_MIN_TABLES:
                    break
                packs.merge_tables()

    def size(self, key: str) -> int:
        path = self._local_file(check_key(key))
        if path is None:
            return self._bucket.size(key)
        with _translate_os_errors(key):
            return path.stat().st_size

    def get(self, key: str, start: int, length: int) -> bytes:
        path = self._local_file(check_key(key))
        if path is None:
            return self._bucket.get(key, start, length)
        with _translate_os_errors(key), open(path, "rb") as file:
            left = max(0, os.fstat(file.fileno()).st_size - start)
            return os.pread(file.fileno(), min(length, left), start)

    def put(self, key: str, data: bytes) -> None:
        """Store an object. A pack is verified first."""
        self._check_put(key, len(data))
        if key.startswith(PACKS):
            _check_pack(lambda at, size: data[at : at + size], len(data), self._objects)
        self._bucket.put(key, data)

    def put_file(self, key: str, path: Path) -> None:
        """Store the content of a file. A pack is verified first."""
        size = path.stat().st_size
        self._check_put(key, size)
        if key.startswith(PACKS):
            with open(path, "rb") as file:
                _check_pack(lambda at, n: os.pread(file.fileno(), n, at), size, self._objects)
        self._bucket.put_file(key, path)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete keys. Raises Refused for packs, which only garbage collection deletes."""
        for key in keys:
            if check_key(key).startswith(PACKS):
                raise Refused(
                    "pack_kept",
                    "only a sweep deletes packs, and it runs at the server: `ortet sweep` there",
                )
        self._bucket.delete(keys)

    def _check_put(self, key: str, size: int) -> None:
        if check_key(key).startswith(PACKS) and not key.endswith(_PACK):
            raise Refused("reserved_key", f"{key!r} is made by the server: choose another key")
        self._objects.space.check(size)

    def _local_file(self, key: str) -> Path | None:
        """Return the local file of a key that is not in the bucket, else None."""
        root = self._objects.layout
        name = key.removeprefix(PACKS)
        if name == key or "/" in name or name.endswith(_PACK):
            return None
        if name.endswith(TAIL):
            return root.tails / name
        if name.endswith(GROUP):
            return root.index / name
        if name.endswith(_INDEX):
            return self._index(key, name.removesuffix(_INDEX))
        return None

    def _index(self, key: str, id_: str) -> Path:
        pack_key = f"{PACKS}{id_}{_PACK}"
        try:
            size = self._bucket.size(pack_key)
        except NotFound:
            raise no_key(key) from None
        objects = self._objects
        pack = Pack(
            LocalPackFile(self._bucket, id_),
            id_,
            size=size,
            index_dir=objects.layout.index,
            key_id=objects.hasher.key_id,
        )
        pack.load_index()  # builds the index if it is missing or damaged
        return pack.index_path


@contextlib.contextmanager
def _translate_os_errors(key: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise no_key(key) from None
    except OSError as error:
        raise storage_error(error, f"reading {key}") from error


def _check_pack(read: frame.ReadAt, size: int, objects: PackedObjectStore) -> None:
    """Raise Invalid unless every object of the pack matches its id: others rely on them."""
    end = 0
    try:
        for lead in frame.scan(read, 0, size):
            if lead.header.key_id != objects.hasher.key_id:
                raise Invalid("bad_pack", "the pack was made with another key: give the store's")
            start = lead.offset + lead.header.payload_start
            payload = read(start, lead.header.stored)
            data = memoryview(frame.unpack(lead.header, payload, offset=lead.offset))
            position = 0
            for oid, _, length in lead.rows():
                if objects.hasher.oid(data[position : position + length]) != oid:
                    raise Invalid("bad_pack", f"object {oid.hex()} does not match its hash")
                position += length
            end = lead.offset + lead.header.size
    except (Corrupt, Unsupported) as error:
        raise Invalid("bad_pack", f"this is no pack ({error.message})") from error
    if end != size or not size:
        raise Invalid(
            "bad_pack", "the upload is not a pack, because it ends within a frame: send it again"
        )


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
            raise Invalid("bad_call", "a size needs one key: give one")
        return Response(pack(view.size(keys[0])), media_type=CONTENT_TYPE)

    def _ranges(self, view: RawBucketView, body: bytes) -> Response:
        call = parse_call(RangesRequest, body)
        for start, length in call.ranges:
            check_range(start, length)
        if sum(length for _, length in call.ranges) > _MAX_RESPONSE_BYTES:
            raise Invalid(
                "bad_range", f"give at most {_MAX_RESPONSE_BYTES} bytes of ranges at once"
            )
        view.size(call.key)  # raises NotFound if the key does not exist, even without ranges
        parts = [view.get(call.key, start, length) for start, length in call.ranges]
        return Response(pack(parts), media_type=CONTENT_TYPE)

    def _list(self, view: RawBucketView, body: bytes) -> Response:
        entries = view.list(parse_call(PrefixRequest, body).prefix)
        first = list(
            islice(entries, _LINES_PER_CHUNK)
        )  # read before the response starts, so that an error can be reported
        return StreamingResponse(_lines(first, entries), media_type="text/plain")

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
    directory = local / "uploads"
    if directory.is_dir():
        for entry in os.scandir(directory):
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
