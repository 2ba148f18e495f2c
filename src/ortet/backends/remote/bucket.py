"""The Bucket of a server over HTTP."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, cast

from ortet.backends.base import Bucket, BucketEntry
from ortet.backends.keys import check_key, check_prefix, check_range
from ortet.backends.remote.client import RemoteClient
from ortet.backends.remote.protocol import KeysRequest, PrefixRequest, RangesRequest, pack, unpack
from ortet.errors import Conflict, Invalid, NotFound, Unavailable

_PIECE = 8 << 20
"""The maximum size of an answer, which is held in memory."""


class HttpBucket(Bucket):
    """The write-once objects of a store behind a server, for clients with its token.

    If the answer to an upload was lost, the stored object is compared with the data.
    """

    def __init__(self, client: RemoteClient) -> None:
        self._client = client

    def put(self, key: str, data: bytes) -> None:
        try:
            self._client.call("PUT", f"/raw/bucket/{check_key(key)}", bytes(data))
        except Conflict as error:
            if error.kind != "exists" or not error.details.get("again"):
                raise
            if self.size(key) != len(data) or self.get(key) != data:
                raise

    def put_file(self, key: str, path: Path) -> None:
        check_key(key)
        try:
            with _open_regular_file(path) as file:
                self._put_file(key, file)
        except FileNotFoundError as error:
            raise NotFound("no_file", f"there is no file {path} to store: look at it") from error
        except OSError as error:
            raise Unavailable("no_access", f"cannot read {path} ({error}): see to it") from error
        path.unlink(missing_ok=True)

    def _put_file(self, key: str, file: BinaryIO) -> None:
        try:
            self._client.call("PUT", f"/raw/bucket/{key}", file)
        except Conflict as error:
            if error.kind != "exists" or not error.details.get("again"):
                raise
            if not self._is_same(key, file):
                raise

    def _is_same(self, key: str, file: BinaryIO) -> bool:
        file.seek(0)
        offset = 0
        while piece := file.read(_PIECE):
            if self.get(key, offset, len(piece)) != piece:
                return False
            offset += len(piece)
        return self.size(key) == offset

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        check_range(start, length)
        check_key(key)
        if length is not None and length <= _PIECE:
            return self._piece(key, start, length)
        pieces: list[bytes] = []
        left = length
        while left is None or left > 0:
            wanted = _PIECE if left is None else min(left, _PIECE)
            piece = self._piece(key, start, wanted)
            pieces.append(piece)
            if len(piece) < wanted:
                break
            start += wanted
            left = None if left is None else left - wanted
        return b"".join(pieces)

    def _piece(self, key: str, start: int, length: int) -> bytes:
        return self._client.call("GET", f"/raw/bucket/{key}?start={start}&length={length}").body

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        for start, length in ranges:
            check_range(start, length)
        if sum(length for _, length in ranges) > _PIECE:
            return super().get_ranges(check_key(key), ranges)
        asked = pack(RangesRequest(check_key(key), list(ranges)))
        return cast(list[bytes], unpack(list[bytes], self._post("ranges", asked)))

    def size(self, key: str) -> int:
        return cast(int, unpack(int, self._post("size", pack(KeysRequest([check_key(key)])))))

    def list(self, prefix: str = "") -> Iterator[BucketEntry]:
        listed = self._post("list", pack(PrefixRequest(check_prefix(prefix))))
        for line in listed.decode().splitlines():
            key, _, size = line.rpartition(" ")
            yield BucketEntry(key, int(size))

    def delete(self, keys: Sequence[str]) -> None:
        if keys:
            self._post("delete", pack(KeysRequest([check_key(key) for key in keys])))

    def close(self) -> None:
        self._client.close()

    def _post(self, verb: str, body: bytes) -> bytes:
        return self._client.call("POST", f"/raw/bucket/{verb}", body).body


def _open_regular_file(path: Path) -> BinaryIO:
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise Invalid("not_a_file", f"{path} is not a regular file: only those can be stored")
    return open(path, "rb")
