"""The contract of an object store, and the types that its callers need."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from typing import Protocol

import msgspec

from ortet._util.codec import Hasher
from ortet.ids import Oid


class Kind(IntEnum):
    """The type of an object. Values are stored: only append new ones.

    The kind is a hint, stored beside the object in its pack. Prefix search, sweep and statistics
    use it. The position of the reference that names an object decides how the object is decoded.
    """

    BLOB = 1
    BLOCKS = 2
    TREE = 3
    META = 4
    IMAGE = 5
    STATE = 6
    COMMIT = 7
    JOURNAL = 8
    SEGMENT = 9
    BODIES = 10
    FOLD = 11
    MAP = 12
    PROCESSES = 13
    PAGES = 14
    MEMORY = 15


class ObjectRef(msgspec.Struct, frozen=True):
    """A reference from one object to another, with the kind that its position requires."""

    oid: Oid
    kind: Kind


ReferenceParser = Callable[[Kind, bytes], Iterable[ObjectRef]]
"""Lists the references inside an object.

`history` supplies it: the store does not decode records.
"""


class ContentScanner(Protocol):
    """Searches content for secrets before it is stored, and raises Refused if it finds one."""

    def file(self, fd: int, size: int, path: bytes) -> None: ...

    def data(self, data: bytes, where: str | Callable[[], str], remedy: str = "") -> None: ...

    def text(self, text: str, where: str, remedy: str = "") -> None: ...

    def plain_name(self, fd: int, size: int) -> str: ...


class ObjectStore(ABC):
    """A store of write-once objects named by the hash of their bytes. Thread-safe."""

    hasher: Hasher
    scanner: ContentScanner | None = None
    """Scans external content (files, events, process memory). Callers use it before they store."""

    @abstractmethod
    def put(self, kind: Kind, data: bytes) -> Oid:
        """Store an object unless it is stored already, and return its id.

        The object is readable at once and durable after `flush`.
        """

    def put_new(self, kind: Kind, data: bytes) -> Oid:
        """Store an object that is almost certainly new, and return its id.

        The store may skip the search for an existing copy and store the object twice.
        """
        return self.put(kind, data)

    @abstractmethod
    def get(self, oid: Oid) -> bytes:
        """Return the bytes of an object, checked against their checksum.

        Raises:
            NotFound: kind "no_object": the store does not have the object.
            Corrupt: every copy of the object is damaged.
        """

    @abstractmethod
    def has(self, oid: Oid) -> bool: ...

    def replacement_of(self, oid: Oid) -> Oid:
        """Return the id of the object that replaces an erased object, otherwise `oid` itself."""
        return oid

    def get_many(self, oids: Iterable[Oid]) -> Iterator[tuple[Oid, bytes]]:
        """Yield each distinct object once, in the order that is fastest to read."""
        for oid in dict.fromkeys(oids):
            yield oid, self.get(oid)


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
        data = self._objects.get(oid)
        return self._base.get(oid) if data is None else data

    def has(self, oid: Oid) -> bool:
        return oid in self._objects or self._base.has(oid)

    def get_many(self, oids: Iterable[Oid]) -> Iterator[tuple[Oid, bytes]]:
        wanted = dict.fromkeys(oids)
        yield from [(oid, self._objects[oid]) for oid in wanted if oid in self._objects]
        yield from self._base.get_many(oid for oid in wanted if oid not in self._objects)
