"""Fixtures of the engine suites: an object store, a first image, and a harness for machines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ortet._util.codec import Hasher, decode, encode
from ortet.backends.local.bucket import FileBucket
from ortet.history.records import Image, TreeEntry
from ortet.history.tree.tree import Trees
from ortet.ids import Oid, SystemClock
from ortet.machines.base import Engine, Machine, MachineSpec
from ortet.machines.capture.ignore_rules import IgnoreRules
from ortet.machines.capture.scanner import scan
from ortet.machines.capture.stat_index import StatIndex
from ortet.objects.base import Kind
from ortet.objects.blobs import read_file
from ortet.objects.store import LocalObjectStore


class EngineHarness:
    """Opens machines from the first image and reads images back."""

    def __init__(
        self, engine: Engine, objects: LocalObjectStore, trees: Trees, *, root: Path
    ) -> None:
        self.engine = engine
        self.objects = objects
        self.trees = trees
        self.root = root
        self._opened: list[Machine] = []
        self._count = 0

    def spec(self, image: Oid | None, path: Path | None = None) -> MachineSpec:
        """Return the spec of a new machine and create its home."""
        self._count += 1
        home = self.root / "machines" / f"m{self._count}"
        home.mkdir(parents=True)
        return MachineSpec(id=home.name, home=home, path=path or self.root / "proj", image=image)

    def open(self, spec: MachineSpec) -> Machine:
        machine = self.engine.open(spec)
        self._opened.append(machine)
        return machine

    def adopt(self, machines: list[Machine]) -> list[Machine]:
        """Close these machines at the end of the test."""
        self._opened += machines
        return machines

    def commit(self, machine: Machine) -> Oid:
        """Commit as a workspace does: snapshot, flush, mark as committed."""
        with self.objects.writing():
            image = machine.snapshot()
            self.objects.flush()
            machine.mark_committed(image)
        return image

    def image(self, oid: Oid) -> Image:
        return decode(Image, self.objects.get(oid))

    def entry(self, oid: Oid, path: str) -> TreeEntry | None:
        return self.trees.resolve(self.image(oid).root, path.encode())

    def content(self, oid: Oid, path: str) -> bytes | None:
        entry = self.entry(oid, path)
        return None if entry is None else b"".join(read_file(self.objects, entry))

    def paths(self, oid: Oid) -> set[str]:
        return {path.decode() for path, _ in self.trees.walk(self.image(oid).root)}

    def links(self, oid: Oid) -> list[list[bytes]]:
        found = self.image(oid).links
        return decode(list[list[bytes]], self.objects.get(Oid(found))) if found else []

    def close(self) -> None:
        for machine in self._opened:
            machine.close()


class EngineFixtures:
    """All fixtures of a suite except `engine`."""

    @pytest.fixture
    def objects(self, tmp_path: Path) -> Iterator[LocalObjectStore]:
        store = tmp_path / "store"
        objects = LocalObjectStore(
            store, FileBucket(store / "bucket"), hasher=Hasher(), clock=SystemClock()
        )
        yield objects
        objects.close()

    @pytest.fixture
    def trees(self, objects: LocalObjectStore) -> Trees:
        return Trees(objects)

    @pytest.fixture
    def bench(
        self, engine: Engine, objects: LocalObjectStore, trees: Trees, tmp_path: Path
    ) -> Iterator[EngineHarness]:
        (tmp_path / "proj").mkdir()
        bench = EngineHarness(engine, objects, trees, root=tmp_path)
        yield bench
        bench.close()

    @pytest.fixture
    def first(self, objects: LocalObjectStore, trees: Trees, tmp_path: Path) -> Oid:
        """Store the first image and return its id.

        It has a.txt, run.sh (executable), docs/one.md, docs/deep/two.md, empty/, link -> a.txt.
        """
        root = tmp_path / "seed"
        (root / "docs" / "deep").mkdir(parents=True)
        (root / "empty").mkdir()
        (root / "a.txt").write_text("alpha\n")
        (root / "run.sh").write_text("#!/bin/sh\necho ran\n")
        (root / "run.sh").chmod(0o755)
        (root / "docs" / "one.md").write_text("one\n")
        (root / "docs" / "deep" / "two.md").write_text("two\n")
        (root / "link").symlink_to("a.txt")
        found = scan(
            objects, trees, root=root, index=StatIndex(trees), rules=IgnoreRules(), losses=[]
        )
        image = objects.put(Kind.IMAGE, encode(Image(root=found.root, links=found.links)))
        objects.flush()
        return image

    @pytest.fixture
    def machine(self, bench: EngineHarness, first: Oid) -> Machine:
        """A private machine, newly opened from `first`."""
        return bench.open(bench.spec(first))
