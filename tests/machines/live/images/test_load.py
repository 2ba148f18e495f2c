"""Stored process images come back whole or not at all, and CRIU goes on from them."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.machines import Bench, Shop
from tests.machines.images import PAGE, contents, random_memory, write_images

from ortet._util.codec import Hasher, encode
from ortet.backends.local.bucket import FileBucket
from ortet.errors import Conflict, Corrupt, NotFound, Refused, Unavailable
from ortet.history.records import Commit, Image, PageMap, Processes, State, TreeEntry
from ortet.history.references import references
from ortet.history.transfer.bundle import export_bundle, import_bundle
from ortet.history.tree.tree import Trees
from ortet.ids import Oid, SystemClock
from ortet.machines.host_compat import check_host, this_host
from ortet.machines.live.images import load
from ortet.machines.live.images.load import read_processes, restore_images
from ortet.machines.live.images.save import SavedImages, save_images
from ortet.objects.base import Kind, ObjectRef
from ortet.objects.gc.sweep import sweep
from ortet.objects.gc.verify import verify
from ortet.objects.store import PackedObjectStore

HEAP = 0x7F0000000000
HOST = this_host("4.2.1")
MIB = 1 << 20


def kept_in(
    objects: PackedObjectStore, directory: Path, previous: SavedImages | None = None
) -> SavedImages:
    with objects.writing():
        kept = save_images(objects, directory, previous, host=HOST)
        objects.flush()
    return kept


def commit(objects: PackedObjectStore, processes: Oid) -> Oid:
    tree = Trees(objects).build([])
    image = Image(TreeEntry(b"", 0o040755, 0, data=tree.oid, cid=tree.cid), processes=processes)
    state = State(machine=objects.put(Kind.IMAGE, encode(image)))
    oid = objects.put(
        Kind.COMMIT, encode(Commit(objects.put(Kind.STATE, encode(state)), [], "", 0, ""))
    )
    objects.flush()
    return oid


def problems(objects: PackedObjectStore, *commits: Oid) -> list[str]:
    report = verify(objects, lambda: [ObjectRef(oid, Kind.COMMIT) for oid in commits], references)
    return [problem.what for problem in report.problems]


@pytest.fixture
def images(place: Path) -> Path:
    memory = {1: random_memory(0x400000, 3), 2: random_memory(HEAP, 6000)}
    return write_images(place / "images", memory, ghost=os.urandom(300_000))


def test_restore_images_refuses_an_existing_directory(shop: Shop, images: Path) -> None:
    kept = kept_in(shop.objects, images)
    with pytest.raises(Conflict):
        restore_images(shop.objects, kept.oid, images)


def test_a_commit_keeps_its_processes(shop: Shop, images: Path, place: Path) -> None:
    objects = shop.objects
    kept = kept_in(objects, images)
    oid = commit(objects, kept.oid)
    lost = kept_in(objects, write_images(place / "other", {5: random_memory(HEAP, 3000)}))
    sweep(objects, lambda: [ObjectRef(oid, Kind.COMMIT)], references, min_garbage=0)
    assert not objects.has(lost.oid)
    assert problems(objects, oid) == []
    restore_images(objects, kept.oid, place / "back")
    assert contents(place / "back") == contents(images)


def test_a_bundle_carries_processes(shop: Shop, images: Path, place: Path) -> None:
    oid = commit(shop.objects, kept_in(shop.objects, images).oid)
    export_bundle(shop.objects, {"main": oid}, references, place / "bundle")
    there = Shop(place / "elsewhere").objects
    assert import_bundle(there, place / "bundle", references).refs == {"main": oid}
    there.flush()
    assert problems(there, oid) == []
    restore_images(there, kept_in(shop.objects, images).oid, place / "back")
    assert contents(place / "back") == contents(images)
    there.close()


def test_a_damaged_process_image_is_reported_and_not_restored(
    shop: Shop, images: Path, place: Path
) -> None:
    objects = shop.objects
    kept = kept_in(objects, images)
    oid = commit(objects, kept.oid)
    objects.writer.seal_now()
    (pack,) = (shop.path / "bucket" / "packs").iterdir()
    pack.chmod(0o600)
    with pack.open("r+b") as file:
        file.seek(pack.stat().st_size // 2)
        file.write(b"damage")
    again = Shop(shop.path).objects
    assert problems(again, oid)
    with pytest.raises(Corrupt):
        restore_images(again, kept.oid, place / "back")
    assert not (place / "back").exists()
    assert not (place / "back.part").exists()
    again.close()


def test_restore_of_a_process_image_with_a_missing_blob_is_refused(
    shop: Shop, images: Path, place: Path
) -> None:
    objects = shop.objects
    kept = kept_in(objects, images)
    root = kept.processes.memory[1][1]
    record = Processes("criu", "", "", "", PAGE, [], [], [("pages-1.img", b"?" * 32)])
    with pytest.raises(NotFound):
        restore_images(objects, objects.put(Kind.PROCESSES, encode(record)), place / "back")
    oid = commit(objects, objects.put(Kind.PROCESSES, encode(record)))
    assert any("missing" in what or "not in the store" in what for what in problems(objects, oid))
    assert objects.has(Oid(root))


@pytest.mark.parametrize(
    "pages",
    [
        PageMap(0, 1, b"?" * 32, [(0, 0, 2)]),
        PageMap(0, 2, b"?" * 32, [(5, 0, 2)]),
        PageMap(0, 33, b"?" * 32, [(0, 0, 33)]),
        PageMap(0, 1, b"?" * 32, [(0, 32, 1)]),
    ],
)
def test_forged_maps_are_corrupt(shop: Shop, place: Path, pages: PageMap) -> None:
    objects = shop.objects
    blob = objects.put(Kind.BLOB, os.urandom(32 * PAGE))
    forged = PageMap(pages.level, pages.pages, blob, pages.extents)
    root = objects.put(Kind.PAGES, encode(forged))
    record = Processes("criu", "", "", "", PAGE, [], [], [("pages-1.img", root)])
    with pytest.raises(Corrupt):
        restore_images(objects, objects.put(Kind.PROCESSES, encode(record)), place / "back")
    assert os.listdir(place) == ["store"]


def test_a_nested_page_map_with_wrong_level_or_size_is_corrupt(shop: Shop, place: Path) -> None:
    objects = shop.objects
    leaf = objects.put(Kind.PAGES, encode(PageMap(0, 4, b"", [(-1, 0, 4)])))
    for level, pages in ((1, 5), (2, 4)):
        root = objects.put(Kind.PAGES, encode(PageMap(level, pages, leaf, [(0, 0, pages)])))
        record = Processes("criu", "", "", "", PAGE, [], [], [("pages-1.img", root)])
        with pytest.raises(Corrupt):
            restore_images(objects, objects.put(Kind.PROCESSES, encode(record)), place / "back")
    root = objects.put(Kind.PAGES, encode(PageMap(1, 4, leaf, [(0, 0, 4)])))
    record = Processes("criu", "", "", "", PAGE, [], [], [("pages-1.img", root)])
    restore_images(objects, objects.put(Kind.PROCESSES, encode(record)), place / "back")
    assert contents(place / "back") == {"pages-1.img": bytes(4 * PAGE)}


def test_image_names_that_leave_the_directory_are_corrupt(shop: Shop, place: Path) -> None:
    blob = shop.objects.put(Kind.BLOB, b"x")
    record = Processes("criu", "", "", "", PAGE, [], [("../x", 1, blob)])
    with pytest.raises(Corrupt):
        restore_images(
            shop.objects, shop.objects.put(Kind.PROCESSES, encode(record)), place / "back"
        )
    assert os.listdir(place) == ["store"]


def test_a_full_disk_leaves_nothing(
    shop: Shop, images: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = kept_in(shop.objects, images)

    def fails(name: str) -> None:
        raise OSError(errno.ENOSPC, name)

    monkeypatch.setattr(load, "failpoint", fails)
    with pytest.raises(Unavailable) as caught:
        restore_images(shop.objects, kept.oid, place / "back")
    assert caught.value.kind == "disk_full"
    assert sorted(os.listdir(place)) == ["images", "store"]


def test_keep_over_the_quota_is_refused_and_the_store_stays_sound(
    images: Path, place: Path
) -> None:
    path = place / "narrow"
    objects = PackedObjectStore(
        path, FileBucket(path / "bucket"), hasher=Hasher(), clock=SystemClock(), quota=8 * MIB
    )
    small = kept_in(objects, write_images(place / "a", {1: random_memory(HEAP, 90)}))
    oid = commit(objects, small.oid)
    with objects.writing():
        with pytest.raises(Refused):
            save_images(objects, images, small, host=HOST)
            objects.flush()
        objects.abandon()  # as the hub does when a commit fails
    assert problems(objects, oid) == []
    again = kept_in(objects, place / "a", small)
    assert again.oid == small.oid
    objects.close()


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_kill_while_storing_a_process_image_leaves_the_store_sound(
    shop: Shop, images: Path, place: Path, nth: int
) -> None:
    objects = shop.objects
    first = commit(
        objects, kept_in(objects, write_images(place / "a", {1: random_memory(HEAP, 90)})).oid
    )
    assert not Bench.survives(f"memory.leaf:kill:{nth}", lambda: kept_in(objects, images))
    assert problems(objects, first) == []
    kept = kept_in(objects, images)
    oid = commit(objects, kept.oid)
    sweep(
        objects,
        lambda: [ObjectRef(each, Kind.COMMIT) for each in (first, oid)],
        references,
        min_garbage=0,
    )
    assert problems(objects, first, oid) == []
    restore_images(objects, kept.oid, place / "back")
    assert contents(place / "back") == contents(images)


def test_a_kill_while_restoring_leaves_no_directory_and_can_be_repeated(
    shop: Shop, images: Path, place: Path
) -> None:
    objects, back = shop.objects, place / "back"
    kept = kept_in(objects, images)
    assert not Bench.survives(
        "memory.written:kill", lambda: restore_images(objects, kept.oid, back)
    )
    assert not back.exists()
    restore_images(objects, kept.oid, back)
    assert contents(back) == contents(images)
    assert not (place / "back.part").exists()


# with CRIU itself


@pytest.fixture(scope="module")
def criu() -> str:
    """CRIU, which is installed if it is missing."""
    script = Path(__file__).parents[4] / "scripts" / "criu"
    done = subprocess.run([script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


class Namespace:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def __call__(self, *call: object) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(
            json.dumps([str(arg) if isinstance(arg, Path) else arg for arg in call]) + "\n"
        )
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@contextmanager
def namespace(criu: str) -> Iterator[Namespace]:
    """criuhost.py in a pid namespace that ends with it."""
    unshare = ["unshare", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc"]
    script = str(Path(__file__).parents[2] / "criuhost.py")
    with subprocess.Popen(
        [*unshare, sys.executable, "-I", script, criu],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Namespace(process)
        finally:
            process.kill()


def stored(objects: PackedObjectStore) -> int:
    stats = objects.stats()
    return stats.pack_bytes + stats.tail_bytes


@pytest.mark.root
def test_a_real_process_dumped_by_criu_is_restored_with_its_memory(
    shop: Shop, place: Path, criu: str
) -> None:
    objects, answers = shop.objects, place / "answers"
    with namespace(criu) as first:
        assert first("start", 64 * MIB, answers) == "ready"
        before = first("ask", answers, False)
        assert first("dump", place / "0") == ""
        kept = kept_in(objects, place / "0")
        base = stored(objects)
        assert base > 64 * MIB
        assert first("dump", place / "1") == ""
        kept = kept_in(objects, place / "1", kept)
        idle = stored(objects)
        assert idle - base < base // 50
        after = first("ask", answers, True)
        assert after != before
        assert first("dump", place / "2") == ""
        changed = kept_in(objects, place / "2", kept)
        # some 35 pages changed; blocks with many of them in it are stored whole
        assert stored(objects) - idle < base // 50
    for old, here in ((kept, "1"), (changed, "2")):
        restore_images(objects, old.oid, place / f"back-{here}")
        assert contents(place / f"back-{here}") == contents(place / here)
    with namespace(criu) as second:
        assert second("restore", place / "back-1") == ""
        assert second("ask", answers, False) == before
    with namespace(criu) as third:
        assert third("restore", place / "back-2") == ""
        assert third("ask", answers, False) == after
        assert third("dump", place / "3") == ""
    size = stored(objects)
    kept_in(objects, place / "3", changed)
    assert stored(objects) - size < MIB


def test_a_host_accepts_a_process_image_it_has_made(shop: Shop, place: Path, criu: str) -> None:
    text = subprocess.run([criu, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"Version: *(\S+)", text)
    assert found is not None
    host = this_host(found[1])
    with shop.objects.writing():
        kept = save_images(shop.objects, write_images(place / "a", {1: {}}), host=host)
    assert check_host(read_processes(shop.objects, kept.oid), host) == []
