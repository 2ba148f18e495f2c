"""Objects in a dict: the graph layer needs no disk to be tested."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ortet.codec import Hasher
from ortet.errors import NotFound
from ortet.graph.tree import Trees
from ortet.ids import Oid
from ortet.store.abc import Kind, Objects


class DictObjects(Objects):
    """Remembers what was read, so that a test can show what was not."""

    def __init__(self) -> None:
        self.hasher = Hasher()
        self.held: dict[Oid, tuple[Kind, bytes]] = {}
        self.reads: list[Oid] = []

    def put(self, kind: Kind, data: bytes) -> Oid:
        oid = self.hasher.oid(data)
        self.held[oid] = (kind, data)
        return oid

    def get(self, oid: Oid) -> bytes:
        self.reads.append(oid)
        if oid not in self.held:
            raise NotFound("no_object", f"{oid.hex()} is not in the dict: put it first")
        return self.held[oid][1]

    def has(self, oid: Oid) -> bool:
        return oid in self.held

    def find(self, prefix: str) -> list[tuple[Oid, Kind]]:
        return [(o, kind) for o, (kind, _) in self.held.items() if o.hex().startswith(prefix)]


@pytest.fixture
def objects() -> Objects:
    return DictObjects()


@pytest.fixture
def reads(objects: DictObjects) -> list[Oid]:
    """Ids read from `objects` so far."""
    return objects.reads


@pytest.fixture
def kinds(objects: DictObjects) -> Callable[[Oid], Kind]:
    """Which kind an object was put as."""
    return lambda oid: objects.held[oid][0]


@pytest.fixture
def find(objects: DictObjects) -> Callable[[str], list[tuple[Oid, Kind]]]:
    return objects.find


@pytest.fixture
def trees(objects: Objects) -> Trees:
    return Trees(objects)
