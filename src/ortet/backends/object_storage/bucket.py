"""Bucket in the cloud: S3 and what speaks like it, Google's and Azure's, through obstore."""
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

from ortet.backends.base import Bucket, Listing
from ortet.backends.errors import exists, no_key
from ortet.backends.keys import check_key, check_prefix, check_range
from ortet.backends.object_storage.retry import Absent, Beyond, Taken, attempt
from ortet.backends.object_storage.url import Address, address_of, open_store
from ortet.errors import Conflict, Invalid, NotFound, Unavailable, Unsupported

if TYPE_CHECKING:
    from obstore.store import ObjectStore

T = TypeVar("T")
Item = TypeVar("Item")
_Data = bytes | mmap.mmap

_NEAR = 64 << 10
"""Bytes between two ranges that cost less than another question."""
_MERGED = 8 << 20
_PIECE = 8 << 20
_BULK = 1 << 20
"""Bytes above which an upload gets its time by its size."""
_PACE = 128 << 10
"""Bytes a second that any line should carry."""
_READING = 3600.0
_NOTHING = "ready"
"""A key that nobody puts."""
_AT_ONCE = 16
"""Questions under way: a far server answers each after its time, and many in the same."""

_started: set[int] = set()
"""Processes in which obstore runs: its threads do not come along through fork(2)."""


class S3Bucket(Bucket):
    """Objects of one bucket below a prefix. Opening it asks nobody anything.

    A put is refused by the server itself where the key is taken (If-None-Match), however many hosts
    write at once. One whose answer was lost may have been done: what is there then is compared.
    `patience` is for how many seconds a failing call is repeated, `silence` how many the server may
    say nothing.
    """

    def __init__(self, url: str, *, patience: float = 30.0, silence: float = 20.0) -> None:
        self.address: Address = address_of(url)
        self._patience = patience
        self._silence = silence
        self._stores: dict[float, ObjectStore] = {}
        self._reader = self._store(_READING, silence)

    def put(self, key: str, data: bytes) -> None:
        self._create(check_key(key), bytes(data))

    def put_file(self, key: str, path: Path) -> None:
        """From the file as it lies: no part of it is read into memory."""
        check_key(key)
        try:
            with _opened(path) as file:
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
        longest = self._silence if size <= _BULK else self._silence + _rounded(size) / _PACE
        store = self._store(longest, longest)
        try:
            self._call(
                f"store {key!r}",
                lambda: obstore.put(store, self._at(key), data, mode="create", use_multipart=False),
            )
        except Taken as error:
            if not (error.again and self._is_same(key, data)):
                raise exists(key) from None
        except Absent:
            raise _lost(self.address) from None

    def _is_same(self, key: str, data: _Data) -> bool:
        import obstore

        try:
            found = self._call(
                f"look at {key!r}", lambda: obstore.head(self._reader, self._at(key))
            )
            if found["size"] != len(data):
                return False
            tag = (found["e_tag"] or "").strip('"')
            if tag == hashlib.md5(data, usedforsecurity=False).hexdigest():
                return True  # what S3 gives to what came in one piece, unless it is encrypted
            return all(
                self.get(key, at, _PIECE) == data[at : at + _PIECE]
                for at in range(0, len(data), _PIECE)
            )
        except (Absent, NotFound):
            return False

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        check_range(start, length)
        if length == 0:
            self.size(key)
            return b""
        return self._get(check_key(key), start, length)

    def _get(self, key: str, start: int, length: int | None) -> bytes:
        import obstore

        path = self._at(key)

        def read() -> bytes:
            if length is not None:
                ranged = obstore.get_range(self._reader, path, start=start, length=length)
                return bytes(ranged)
            found = obstore.get(self._reader, path, options={"range": {"offset": start}})
            return bytes(found.bytes())

        def whole() -> bytes:
            return bytes(obstore.get(self._reader, path).bytes())

        try:
            return self._call(f"read {key!r}", read if start or length is not None else whole)
        except Absent:
            raise no_key(key) from None
        except Beyond:
            return b""

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Those that lie close together in one question, all of them at once."""
        import obstore

        check_key(key)
        for start, length in ranges:
            check_range(start, length)
        wanted = _merged(ranges)
        if len(wanted) <= 1:
            found = [self.get(key, *span) for span in wanted]
        else:
            starts, lengths = [list(column) for column in zip(*wanted, strict=True)]
            try:
                answers = self._call(
                    f"read {key!r}",
                    lambda: obstore.get_ranges(
                        self._reader, self._at(key), starts=starts, lengths=lengths, coalesce=0
                    ),
                )
                found = [bytes(answer) for answer in answers]
            except Absent:
                raise no_key(key) from None
            except Beyond:
                found = [self._get(key, *span) for span in wanted]
        return [_part(wanted, found, span) for span in ranges]

    def get_all(self, keys: Sequence[str]) -> dict[str, bytes]:
        def get(key: str) -> bytes | None:
            with suppress(NotFound):
                return self.get(key)
            return None

        wanted = list(dict.fromkeys(keys))
        found = zip(wanted, _at_once(get, wanted), strict=True)
        return {key: data for key, data in found if data is not None}

    def put_all(self, objects: Mapping[str, bytes]) -> set[str]:
        def put(item: tuple[str, bytes]) -> bool:
            try:
                self.put(*item)
            except Conflict:
                return True
            return False

        taken = zip(objects, _at_once(put, objects.items()), strict=True)
        return {key for key, was in taken if was}

    def size(self, key: str) -> int:
        import obstore

        path = self._at(check_key(key))
        try:
            found = self._call(f"look at {key!r}", lambda: obstore.head(self._reader, path))
        except Absent:
            raise no_key(key) from None
        return found["size"]

    def list(self, prefix: str = "") -> Iterator[Listing]:
        import obstore

        begin = self.address.prefix + check_prefix(prefix)
        parent = begin.rpartition("/")[0]

        def read() -> list[Listing]:
            cut = len(self.address.prefix)
            return [
                Listing(found["path"][cut:], found["size"])
                for page in obstore.list(self._reader, parent or None)
                for found in page
                if found["path"].startswith(begin)
            ]

        try:
            listed = self._call("list it", read)
        except Absent:
            raise _lost(self.address) from None
        # Not every server that speaks S3 sorts "a-b" before "a/b".
        yield from sorted(listed, key=lambda found: found.key)

    def delete(self, keys: Sequence[str]) -> None:
        import obstore

        paths = list(dict.fromkeys([self._at(check_key(key)) for key in keys]))
        if not paths:
            return
        try:
            self._call("delete from it", lambda: obstore.delete(self._reader, paths))
        except Absent:  # where one that is not there is an error, and ends the batch
            for path in paths:
                with suppress(Absent):
                    self._call("delete from it", partial(obstore.delete, self._reader, path))

    def answers(self, seconds: float) -> None:
        import obstore

        store = self._store(seconds, seconds)
        _check_process(self.address)
        with suppress(Absent):
            # a read, and not a head: only an answer with words tells which is absent, key or bucket
            attempt(
                self.address,
                "look into it",
                lambda: obstore.get(store, self._at(_NOTHING)),
                patience=0.0,
            )

    def close(self) -> None:
        self._stores.clear()

    def _at(self, key: str) -> str:
        return self.address.prefix + key

    def _call(self, act: str, call: Callable[[], T]) -> T:
        _check_process(self.address)
        return attempt(self.address, act, call, patience=self._patience)

    def _store(self, longest: float, silence: float) -> ObjectStore:
        found = self._stores.get(longest)
        if found is None:
            found = open_store(self.address, silence=silence, longest=longest)
            self._stores[longest] = found
        return found


def _check_process(address: Address) -> None:
    pid = os.getpid()
    if pid not in _started:
        if _started:
            raise Unsupported(
                "forked",
                f"{address} was in use before this process was forked, and cannot be used in a "
                "child: start it anew (multiprocessing: spawn), or open the store only in it",
            )
        _started.add(pid)


def _at_once(call: Callable[[Item], T], items: Iterable[Item]) -> list[T]:
    """What each call gives, in order. When one fails, those that have not begun are not made."""
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(_AT_ONCE, "ortet-s3")
    try:
        return list(pool.map(call, items))
    finally:
        pool.shutdown(cancel_futures=True)


def _rounded(size: int) -> int:
    return 1 << size.bit_length()


def _merged(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """(start, length) of what to ask for, in order."""
    spans: list[tuple[int, int]] = []
    for start, length in sorted(set(ranges)):
        if not length:
            continue
        if spans:
            first, before = spans[-1]
            end = max(first + before, start + length)
            if start - (first + before) <= _NEAR and end - first <= max(_MERGED, before):
                spans[-1] = (first, end - first)
                continue
        spans.append((start, length))
    return spans


def _part(
    spans: Sequence[tuple[int, int]], found: Sequence[bytes], wanted: tuple[int, int]
) -> bytes:
    start, length = wanted
    for (first, size), data in zip(spans, found, strict=True):
        if first <= start and start + length <= first + size:
            return data[start - first : start - first + length]
    return b""


def _lost(address: Address) -> NotFound:
    name = f"{address.scheme}://{address.bucket}"
    return NotFound(
        "no_bucket", f"there is no bucket {name}: create it, or correct the address (bucket=)"
    )


def _opened(path: Path) -> BinaryIO:
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise Invalid("not_a_file", f"{path} is not a regular file: only those can be stored")
    return open(path, "rb")
