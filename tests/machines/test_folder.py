"""The folder engine: what is identical, what is remembered, what a watcher may not miss."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ortet._util.codec import Hasher, decode, encode
from ortet.backends.local.bucket import FileBucket
from ortet.errors import OrtetError
from ortet.history.records import Image, System
from ortet.history.references import references
from ortet.history.tree.tree import Trees
from ortet.ids import Oid, SystemClock
from ortet.machines.base import MachineSpec
from ortet.machines.capture.ignore_rules import IgnoreRules
from ortet.machines.capture.scanner import scan
from ortet.machines.capture.stat_index import StatIndex
from ortet.machines.folder import FolderEngine, FolderMachine
from ortet.objects.base import Kind, ObjectRef
from ortet.objects.gc.sweep import sweep
from ortet.objects.store import PackedObjectStore

SOAK = int(os.environ.get("ORTET_SOAK", "1"))


class Counting(PackedObjectStore):
    blobs = 0

    def put(self, kind: Kind, data: bytes) -> Oid:
        self.blobs += kind == Kind.BLOB
        return super().put(kind, data)


class Shed:
    """A store, and machines with homes of their own."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.machines: list[FolderMachine] = []
        self.open_store()

    def open_store(self) -> None:
        store = self.place / "store"
        self.objects = Counting(
            store, FileBucket(store / "bucket"), hasher=Hasher(), clock=SystemClock()
        )
        self.trees = Trees(self.objects)

    def spec(self, name: str, path: Path, image: Oid | None = None) -> MachineSpec:
        home = self.place / "homes" / name
        home.mkdir(parents=True, exist_ok=True)
        return MachineSpec(id=name, home=home, path=path, image=image)

    def open(
        self, name: str, path: Path, image: Oid | None = None, watch: bool = False
    ) -> FolderMachine:
        engine = FolderEngine(self.objects, self.trees, SystemClock(), watch=watch)
        machine = engine.open(self.spec(name, path, image))
        self.machines.append(machine)
        return machine

    def commit(self, machine: FolderMachine) -> Oid:
        with self.objects.writing():
            image = machine.snapshot()
            self.objects.flush()
            machine.mark_committed(image)
        return image

    def afresh(self, root: Path) -> Oid:
        """What is there, by a scan that knows nothing."""
        found = scan(
            self.objects,
            self.trees,
            root=root,
            index=StatIndex(self.trees),
            rules=IgnoreRules(),
            losses=[],
        )
        return self.objects.put(Kind.IMAGE, encode(Image(found.root, found.links)))

    def read_by(self, act: Callable[[], object]) -> int:
        """How many contents it gives to the store."""
        before = self.objects.blobs
        act()
        return self.objects.blobs - before

    def paths(self, oid: Oid) -> set[bytes]:
        image = decode(Image, self.objects.get(oid))
        return {path for path, _ in self.trees.walk(image.root)}

    def close(self) -> None:
        for machine in self.machines:
            machine.close()
        self.objects.close()


@pytest.fixture
def shed(place: Path) -> Iterator[Shed]:
    shed = Shed(place)
    yield shed
    shed.close()


@pytest.fixture
def root(place: Path) -> Path:
    root = place / "work"
    (root / "a" / "b").mkdir(parents=True)
    for name in ("one", "a/two", "a/b/three"):
        (root / name).write_text(name)
    return root


def test_commit_and_reopen_elsewhere_give_an_identical_tree(
    shed: Shed,
    place: Path,
    torture: Callable[[Path], None],
    see: Callable[[Path], dict[bytes, tuple[Any, ...]]],
) -> None:
    torture(place / "work")
    machine = shed.open("origin", place / "work")
    image = shed.commit(machine)
    assert machine.losses == []
    copy = shed.open("copy", place / "work", image)
    assert see(copy.path) == see(place / "work")
    assert copy.snapshot() == image, "committed, restored elsewhere, committed again"
    assert shed.afresh(copy.path) == image, "also when nothing is remembered"
    (fork,) = machine.fork([shed.spec("fork", place / "work")])
    assert shed.afresh(fork.path) == image
    fork.close()


def test_restore_between_a_small_and_a_large_tree_gives_exact_images(
    shed: Shed, root: Path, torture: Callable[[Path], None], place: Path
) -> None:
    machine = shed.open("m", root)
    small = shed.commit(machine)
    torture(place / "torture")
    os.rename(place / "torture", root / "torture")
    large = shed.commit(machine)
    for image in (small, large, small, large):
        report = machine.restore(image)
        assert report.losses == []
        assert machine.snapshot() == image == shed.afresh(root)


def test_the_stat_index_survives_a_restart(shed: Shed, root: Path) -> None:
    machine = shed.open("m", root)
    image = shed.commit(machine)
    machine.close()
    shed.objects.close()
    shed.open_store()
    again = shed.open("m", root)
    assert shed.read_by(again.snapshot) == 0
    assert again.snapshot() == image


def test_a_stat_index_without_its_image_is_not_used(shed: Shed, root: Path) -> None:
    machine = shed.open("m", root)
    shed.commit(machine)
    machine.close()
    shed.objects.close()
    shutil.rmtree(shed.place / "store")
    shed.open_store()
    again = shed.open("m", root)
    assert shed.read_by(again.snapshot) == 3
    assert again.snapshot() == shed.afresh(root)


def test_the_stat_index_of_an_uncommitted_snapshot_is_not_saved(shed: Shed, root: Path) -> None:
    """Its objects may never have reached the disk."""
    machine = shed.open("m", root)
    shed.commit(machine)
    (root / "one").write_text("frozen, not committed")
    machine.snapshot()
    machine.close()
    again = shed.open("m", root)
    assert shed.read_by(again.snapshot) == 1


@pytest.mark.parametrize("watch", [False, True])
def test_a_snapshot_after_a_sweep_stores_swept_objects_again(
    shed: Shed, root: Path, watch: bool
) -> None:
    machine = shed.open("m", root, watch=watch)
    kept = shed.commit(machine)
    (root / "a" / "two").write_text("frozen, then swept")
    lost = machine.snapshot()
    shed.objects.flush()
    sweep(shed.objects, lambda: [ObjectRef(kept, Kind.IMAGE)], references, min_garbage=0)
    assert not shed.objects.has(lost)
    with shed.objects.writing():
        again = machine.snapshot()
    assert again == lost
    for oid in _reachable(shed, again):
        assert shed.objects.has(oid)


def _reachable(shed: Shed, image: Oid) -> set[Oid]:
    found, todo = set(), [ObjectRef(image, Kind.IMAGE)]
    while todo:
        link = todo.pop()
        if link.oid not in found:
            found.add(link.oid)
            todo += references(link.kind, shed.objects.get(link.oid))
    return found


def test_a_swept_settled_image_is_noticed(shed: Shed, root: Path) -> None:
    machine = shed.open("m", root)
    image = shed.commit(machine)
    sweep(shed.objects, list, references, min_garbage=0)
    assert not shed.objects.has(image)
    with shed.objects.writing():
        assert machine.snapshot() == image
    assert all(shed.objects.has(oid) for oid in _reachable(shed, image))


def test_a_watched_machine_without_changes_is_not_scanned(
    shed: Shed, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = shed.open("m", root, watch=True)
    image = shed.commit(machine)
    assert machine.snapshot() == image  # the second scan adds the watches of files
    monkeypatch.setattr("ortet.machines.folder.scan", None)
    assert machine.snapshot() == image
    (root / "one").write_text("now it must")
    with pytest.raises(TypeError):
        machine.snapshot()


def test_an_inotify_queue_overflow_loses_no_change(shed: Shed, root: Path) -> None:
    machine = shed.open("m", root, watch=True)
    machine.snapshot()
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    for _ in range(limit // 2 + 10):
        os.utime(root / "one")
        os.utime(root / "a" / "two")
    shutil.rmtree(root / "a")
    (root / "a").mkdir()
    (root / "a" / "unheard").write_text("its event was lost")
    assert machine.snapshot() == shed.afresh(root)
    (root / "a" / "heard").write_text("and now it is heard again")
    assert machine.snapshot() == shed.afresh(root)


def test_changes_while_it_was_closed_are_found(shed: Shed, root: Path) -> None:
    machine = shed.open("m", root, watch=True)
    shed.commit(machine)
    machine.close()
    (root / "a" / "new").write_text("while nobody looked")
    (root / "one").unlink()
    again = shed.open("m", root, watch=True)
    assert again.snapshot() == shed.afresh(root)


def test_restore_of_an_image_with_processes_reports_them_as_losses(shed: Shed, root: Path) -> None:
    machine = shed.open("m", root)
    image = decode(Image, shed.objects.get(shed.commit(machine)))
    richer = Image(root=image.root, links=image.links, system=System("base"), processes=b"\1" * 32)
    report = machine.restore(shed.objects.put(Kind.IMAGE, encode(richer)))
    assert [loss.what for loss in report.losses] == ["system", "process"]


def test_a_failed_restore_leaves_the_files_unchanged(shed: Shed, root: Path) -> None:
    machine = shed.open("m", root)
    shed.commit(machine)
    (root / "a" / "two").write_text("newer")
    newer = shed.commit(machine)
    image = decode(Image, shed.objects.get(newer))
    broken = Image(root=image.root, links=b"\3" * 32)
    with pytest.raises(OrtetError):
        machine.restore(shed.objects.put(Kind.IMAGE, encode(broken)))
    assert machine.snapshot() == newer


def test_a_private_machine_that_lost_its_index_still_forks_its_image(
    shed: Shed, root: Path
) -> None:
    image = shed.commit(shed.open("origin", root))
    private = shed.open("private", root, image)
    private.close()
    (shed.place / "homes" / "private" / "index").unlink()
    again = shed.open("private", root, image)
    (fork,) = again.fork([shed.spec("fork", root)])
    assert fork.snapshot() == again.snapshot() == image
    fork.close()


def test_a_machine_whose_first_copy_failed_can_be_opened_again(shed: Shed, root: Path) -> None:
    image = shed.commit(shed.open("origin", root))
    broken = Image(root=decode(Image, shed.objects.get(image)).root, links=b"\3" * 32)
    with pytest.raises(OrtetError):
        shed.open("private", root, shed.objects.put(Kind.IMAGE, encode(broken)))
    assert shed.open("private", root, image).snapshot() == image


class Vandal:
    """Changes a directory in every way it can think of."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.random = random.Random(seed)
        self.count = 0

    def act(self) -> str:
        verbs = [
            self.create, self.create, self.write, self.write, self.append, self.mkdir, self.mkdir,
            self.remove, self.rename, self.rename, self.link, self.symlink, self.chmod, self.touch,
            self.special, self.swap, self.replace, self.rules, self.xattr,
        ]  # fmt: skip
        verb = self.random.choice(verbs)
        try:
            verb()
        except OSError:
            return f"{verb.__name__} failed"
        return verb.__name__

    def everything(self) -> list[Path]:
        return sorted(self.root.rglob("*"))

    def some(self, test: Callable[[Path], bool] = lambda _: True) -> Path:
        found = [path for path in self.everything() if test(path)]
        return self.random.choice(found) if found else self.root / "nothing"

    def directory(self) -> Path:
        found = [p for p in self.everything() if p.is_dir() and not p.is_symlink()]
        return self.random.choice([self.root, *found])

    def file(self) -> Path:
        return self.some(lambda path: path.is_file() and not path.is_symlink())

    def fresh(self) -> Path:
        # few names, so that one often comes again
        return self.directory() / self.random.choice(["a", "b", "c", "d\udce9", "e.tmp", "f"])

    def text(self) -> str:
        self.count += 1
        return f"text {self.count} " * self.random.choice([0, 1, 1, 40])

    def create(self) -> None:
        path = self.fresh()
        if not path.exists():
            path.write_text(self.text())

    def write(self) -> None:
        self.file().write_text(self.text())

    def append(self) -> None:
        with self.file().open("a") as out:
            out.write(self.text())

    def mkdir(self) -> None:
        self.fresh().mkdir()

    def remove(self) -> None:
        path = self.some()
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()

    def rename(self) -> None:
        self.some().rename(self.fresh())

    def link(self) -> None:
        """In the root, which no rule leaves out: see watch.py for what a watcher cannot see."""
        fresh = self.root / self.fresh().name
        os.link(self.some(lambda p: not p.is_dir() or p.is_symlink()), fresh, follow_symlinks=False)

    def symlink(self) -> None:
        self.fresh().symlink_to(self.random.choice(["a", "..", "nowhere"]))

    def chmod(self) -> None:
        path = self.some(lambda path: not path.is_symlink())
        path.chmod(0o700 | self.random.choice([0, 0o55, 0o4000, 0o1000]))

    def touch(self) -> None:
        moment = self.random.choice([-1, 0, 10**18 + self.count])
        os.utime(self.some(), ns=(moment, moment), follow_symlinks=False)

    def special(self) -> None:
        os.mkfifo(self.fresh())

    def swap(self) -> None:
        """Another directory in the place of one, perhaps with its inode number."""
        path = self.directory()
        if path != self.root:
            shutil.rmtree(path)
            path.mkdir()
            (path / "swapped").write_text(self.text())

    def replace(self) -> None:
        target = self.file()
        fresh = target.with_name("replacing")
        fresh.write_text(self.text())
        fresh.rename(target)

    def rules(self) -> None:
        lines = self.random.choice(["", "*.tmp\n", "size > 100B\n", "/a/\n!a\nb\n"])
        (self.directory() / ".ortetignore").write_text(lines)

    def xattr(self) -> None:
        path = self.some(lambda p: not p.is_symlink() and (p.is_file() or p.is_dir()))
        os.setxattr(path, "user.count", str(self.count).encode())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8 * SOAK))
def test_watched_scanned_and_reopened_machines_agree_after_random_changes(
    shed: Shed, root: Path, seed: int
) -> None:
    """Watched, scanned, reopened for every look, and from nothing; and now and then thawed."""
    vandal = Vandal(root, seed)
    watched = shed.open("watched", root, watch=True)
    scanned = shed.open("scanned", root)
    known: list[Oid] = []
    for _ in range(40):
        done = []
        for _ in range(vandal.random.choice([1, 1, 2, 5, 20])):
            done.append(vandal.act())
            if done[-1] == "link":
                watched.snapshot()
        if known and vandal.random.random() < 0.15:
            done.append("thaw")
            report = vandal.random.choice([watched, scanned]).restore(vandal.random.choice(known))
            if report.losses:  # what was in the way is remembered by one machine only
                return
        truth = shed.afresh(root)
        reopened = shed.open("reopened", root)
        looks = [shed.commit(machine) for machine in (watched, scanned, reopened)]
        reopened.close()
        assert looks == [truth] * 3, (seed, done)
        known.append(truth)
    copy = shed.open("copy", root, known[-1])
    assert copy.snapshot() == known[-1]
