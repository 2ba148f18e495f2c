"""The bucket of a store as remote hubs see it.

Writers on the server's host keep new objects in tails outside the bucket, and indexes in local
files. Both are shown as keys beside the packs.

    packs/ID.pack   a pack of the bucket
    packs/ID.tail   the open tail of a writer on the server's host; it grows until it is a pack
    packs/ID.idx    the index of a pack, built on demand
    packs/ID.grp    an index over several packs, so that a new client needs to read only few
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from ortet.backends.base import Bucket, BucketEntry
from ortet.backends.errors import no_key
from ortet.backends.keys import check_key, check_prefix
from ortet.errors import Corrupt, Invalid, NotFound, OrtetError, Refused, Unsupported
from ortet.objects import frame
from ortet.objects.group import GROUP_SUFFIX as GROUP
from ortet.objects.group import MERGE_MIN_TABLES
from ortet.objects.pack import Pack
from ortet.objects.store import LocalObjectStore
from ortet.objects.tail import TAIL_SUFFIX as TAIL
from ortet.objects.tail import storage_error

PACKS = "packs/"
_PACK, _INDEX = ".pack", ".idx"


class RawBucketView:
    """Reads and writes for clients that are not trusted to keep the store intact.

    Uploads are verified, and packs cannot be deleted.
    """

    def __init__(self, bucket: Bucket, objects: LocalObjectStore) -> None:
        self._bucket = bucket
        self._objects = objects

    def list(self, prefix: str) -> Iterator[BucketEntry]:
        """Yield the keys with a prefix, including tails and group indexes."""
        check_prefix(prefix)
        if not prefix.startswith(PACKS):
            yield from self._bucket.list(prefix)
            return
        shelf = self._objects.pack_set
        shelf.refresh()
        self._merge()
        found: dict[str, int] = {}
        for tail in (*shelf.own_tails, *shelf.foreign_tails):
            end = tail.end
            tail.sync_foreign()  # make the listed bytes durable: readers rely on them
            if end:
                found[f"{PACKS}{tail.id}{TAIL}"] = end
        # List packs after tails: a tail that is sealed in between is then seen twice, not missed.
        found.update((item.key, item.size) for item in self._bucket.list(PACKS))
        for group in shelf.groups():
            with contextlib.suppress(FileNotFoundError):
                found[f"{PACKS}{group.path.name}"] = group.path.stat().st_size
        yield from (
            BucketEntry(key, size) for key, size in sorted(found.items()) if key.startswith(prefix)
        )

    def _merge(self) -> None:
        """Merge small indexes.

        Each commit of a remote hub adds a pack, and a new client reads all indexes.
        """
        shelf = self._objects.pack_set
        with contextlib.suppress(OrtetError, OSError):
            for _ in range(len(shelf.tables)):
                if len(shelf.tables) < MERGE_MIN_TABLES:
                    break
                shelf.merge_tables()

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
            self._bucket,
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


def _check_pack(read: frame.ReadAt, size: int, objects: LocalObjectStore) -> None:
    """Raise Invalid unless every object of the pack matches its id: others rely on them."""
    end = 0
    try:
        for lead in frame.scan(read, 0, size):
            if lead.header.key_id != objects.hasher.key_id:
                raise Invalid("bad_pack", "the pack was made with another key: give the store's")
            start = lead.offset + lead.header.payload_start
            payload = read(start, lead.header.stored)
            data = memoryview(frame.unpack(lead.header, payload, offset=lead.offset))
            at = 0
            for oid, _, length in lead.rows():
                if objects.hasher.oid(data[at : at + length]) != oid:
                    raise Invalid("bad_pack", f"object {oid.hex()} does not match its hash")
                at += length
            end = lead.offset + lead.header.size
    except (Corrupt, Unsupported) as error:
        raise Invalid("bad_pack", f"this is no pack ({error.message})") from error
    if end != size or not size:
        raise Invalid("bad_pack", "this is no pack: it ends within a frame; send it again")
