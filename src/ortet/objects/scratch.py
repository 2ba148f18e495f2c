"""An in-memory object store for dry runs.

It is a module of its own because only checks before a restore load it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ortet.ids import Oid
from ortet.objects.base import Kind, ObjectStore


class DryRunObjectStore(ObjectStore):
    """Reads from `base` and writes nothing to it. New objects stay in memory.

    Blobs are only hashed. A blob that was put here can be read only if `base` has it. A comparison
    needs only its hash, and a whole workspace would not fit into memory.
    """

    def __init__(self, base: ObjectStore) -> None:
        self.hasher = base.hasher
        self._base = base
        self._objects: dict[Oid, bytes] = {}

    def put(self, kind: Kind, data: bytes) -> Oid:
        oid = self.hasher.oid(data)
        if kind != Kind.BLOB:
            self._objects[oid] = bytes(data)
        return oid

    def get(self, oid: Oid) -> bytes:
        kept = self._objects.get(oid)
        return self._base.get(oid) if kept is None else kept

    def has(self, oid: Oid) -> bool:
        return oid in self._objects or self._base.has(oid)

    def get_many(self, oids: Iterable[Oid]) -> Iterator[tuple[Oid, bytes]]:
        wanted = dict.fromkeys(oids)
        yield from [(oid, self._objects[oid]) for oid in wanted if oid in self._objects]
        yield from self._base.get_many(oid for oid in wanted if oid not in self._objects)
