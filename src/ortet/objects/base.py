"""What the layers above need of a store of objects."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from pathlib import Path
from typing import Protocol

import msgspec

from ortet._util.codec import Hasher
from ortet.ids import Oid


class Kind(IntEnum):
    """What an object is. Append-only.

    A hint kept beside it in the pack, for prefix search, sweep and statistics; the truth is the
    position of the reference that names it.
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
    """A reference from one object to another, with the kind its position demands."""

    oid: Oid
    kind: Kind


ReferenceParser = Callable[[Kind, bytes], Iterable[ObjectRef]]
"""The references inside an object; the graph layer supplies it: the store knows no records."""


class ContentScanner(Protocol):
    """Looks for what must not be stored, and refuses."""

    def file(self, fd: int, size: int, path: bytes) -> None: ...

    def data(self, data: bytes, where: str | Callable[[], str], remedy: str = "") -> None: ...

    def text(self, text: str, where: str, remedy: str = "") -> None: ...

    def images(self, directory: Path, page: int, tell: Callable[[int], str]) -> None: ...


class ObjectStore(ABC):
    """Write-once objects named by the hash of their bytes. Safe to call from several threads."""

    hasher: Hasher
    scanner: ContentScanner | None = None
    """Whoever puts what was not made here (files, events, processes) has it searched before."""

    @abstractmethod
    def put(self, kind: Kind, data: bytes) -> Oid:
        """Store unless it is there already; readable at once, durable after `flush`."""

    def put_new(self, kind: Kind, data: bytes) -> Oid:
        """The same for what is almost surely new: it may be stored again rather than searched."""
        return self.put(kind, data)

    @abstractmethod
    def get(self, oid: Oid) -> bytes:
        """NotFound("no_object") or Corrupt; the bytes were checked against a checksum."""

    @abstractmethod
    def has(self, oid: Oid) -> bool: ...

    def replacement_of(self, oid: Oid) -> Oid:
        """What stands for an object that was erased; of any other, itself."""
        return oid

    def get_many(self, oids: Iterable[Oid]) -> Iterator[tuple[Oid, bytes]]:
        """Each distinct object once, in the order that reads fastest."""
        for oid in dict.fromkeys(oids):
            yield oid, self.get(oid)
