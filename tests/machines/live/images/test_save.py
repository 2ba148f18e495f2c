"""Process images cost what changed in them, page by page."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.fixtures.machines import Shop
from tests.machines.images import PAGE, Memory, contents, pagemap, random_memory, write_images

from ortet.errors import Invalid
from ortet.history.records import Processes
from ortet.history.references import references
from ortet.ids import Oid
from ortet.machines.host_compat import HostProfile
from ortet.machines.live.images.load import load_saved_images, restore_images
from ortet.machines.live.images.save import SavedImages, save_images
from ortet.objects.base import Kind, ObjectRef
from ortet.objects.gc.sweep import sweep

HOST = HostProfile("4.2.1", "6.18.3", "x86_64", PAGE, ["avx2", "sse2"])
HEAP = 0x7F0000000000


class Memories:
    """Keeps hand-made images, each in a directory of its own, and counts what that stored."""

    def __init__(self, shop: Shop, place: Path) -> None:
        self.objects = shop.objects
        self.place = place
        self.number = 0

    def write(self, processes: dict[int, Memory], **more: bytes) -> Path:
        self.number += 1
        return write_images(self.place / f"dump-{self.number}", processes, **more)

    def keep(self, directory: Path, previous: SavedImages | None = None) -> tuple[SavedImages, int]:
        """And how many bytes of objects are new."""
        before = self._raw()
        with self.objects.writing():
            kept = save_images(self.objects, directory, previous, host=HOST)
            self.objects.flush()
        return kept, self._raw() - before

    def _raw(self) -> int:
        return sum(
            spot[3] for source in self.objects.pack_set.sources() for _, spot in source.locations()
        )

    def check(self, kept: SavedImages, directory: Path) -> Path:
        self.number += 1
        back = self.place / f"back-{self.number}"
        again = restore_images(self.objects, kept.oid, back)
        assert contents(back) == contents(directory)
        assert again.oid == kept.oid
        assert again.held == kept.held
        return back


@pytest.fixture
def memories(shop: Shop, place: Path) -> Memories:
    return Memories(shop, place)


def test_a_restored_image_directory_equals_the_dumped_one(memories: Memories) -> None:
    memory = {
        1: random_memory(0x400000, 3) | random_memory(0x7F000000, 700),
        2: random_memory(0x400000, 1),
        3: {},
    }
    images = memories.write(memory, ghost=os.urandom(300_000), files=b"files")
    kept, stored = memories.keep(images)
    memories.check(kept, images)
    assert stored < 705 * PAGE + 300_000 + 10_000
    names = [name for name, _, _ in kept.processes.files]
    assert "dump.log" not in names
    assert "stats-dump" not in names
    assert [name for name, _ in kept.processes.memory] == [f"pages-{n}.img" for n in (1, 2, 3)]


def test_the_same_directory_has_the_same_oid(memories: Memories) -> None:
    memory = {7: random_memory(HEAP, 100)}
    first, second = memories.write(memory), memories.write(memory)
    kept, _ = memories.keep(first)
    for previous in (None, kept):
        again, stored = memories.keep(second, previous)
        assert again.oid == kept.oid
        assert not stored
    memory[7][HEAP + 5 * PAGE] = os.urandom(PAGE)
    changed, _ = memories.keep(memories.write(memory), kept)
    again, stored = memories.keep(memories.write(memory), changed)
    assert again.oid == changed.oid != kept.oid
    assert not stored


def test_a_changed_page_costs_about_a_page(memories: Memories) -> None:
    memory = {7: random_memory(HEAP, 4096)}
    kept, first = memories.keep(memories.write(memory))
    assert first > 4096 * PAGE
    memory[7][HEAP + 1000 * PAGE] = os.urandom(PAGE)
    images = memories.write(memory)
    kept, second = memories.keep(images, kept)
    assert PAGE < second < 3 * PAGE
    memories.check(kept, images)


def test_a_restored_process_is_compared_with_what_it_was_restored_from(
    memories: Memories,
) -> None:
    memory = {7: random_memory(HEAP, 500)}
    images = memories.write(memory)
    kept, _ = memories.keep(images)
    again = restore_images(memories.objects, kept.oid, memories.place / "again")
    memory[7][HEAP] = os.urandom(PAGE)
    _, stored = memories.keep(memories.write(memory), again)
    assert stored < 3 * PAGE


def test_without_a_previous_one_equal_blocks_are_stored_once(memories: Memories) -> None:
    memory = random_memory(HEAP, 2048)
    memories.keep(memories.write({7: memory}))
    memory[HEAP + 1000 * PAGE] = os.urandom(PAGE)
    images = memories.write({8: random_memory(0x400000, 3) | memory})
    kept, stored = memories.keep(images)
    assert stored < 32 * PAGE + 8 * PAGE
    memories.check(kept, images)


def test_pages_that_are_added_removed_or_moved_are_restored(memories: Memories) -> None:
    memory = random_memory(HEAP, 1000)
    kept, _ = memories.keep(memories.write({1: random_memory(0x1000, 1), 7: memory}))
    for address in (HEAP, HEAP + 400 * PAGE, HEAP + 401 * PAGE):
        del memory[address]
    grown = memory | random_memory(HEAP + 1000 * PAGE, 20) | random_memory(HEAP - 3 * PAGE, 2)
    images = memories.write({7: grown})  # and its file has another number now
    kept, stored = memories.keep(images, kept)
    assert stored < 60 * PAGE
    memories.check(kept, images)


def test_pages_of_zeros_cost_nothing(memories: Memories) -> None:
    memory = {7: {HEAP + number * PAGE: bytes(PAGE) for number in range(4096)}}
    memory[7][HEAP + 2000 * PAGE] = b"x" * PAGE
    images = memories.write(memory)
    kept, stored = memories.keep(images)
    assert stored < 33 * PAGE
    back = memories.check(kept, images)
    assert (back / "pages-1.img").stat().st_blocks * 512 <= 33 * PAGE
    memory[7][HEAP + 2000 * PAGE] = bytes(PAGE)
    images = memories.write(memory)
    kept, stored = memories.keep(images, kept)
    assert stored < PAGE
    memories.check(kept, images)


def test_page_maps_of_many_generations_stay_small(memories: Memories) -> None:
    chance = random.Random(5)
    memory = random_memory(HEAP, 640)
    kept: SavedImages | None = None
    for _ in range(40):
        for number in chance.sample(range(640), 12):
            memory[HEAP + number * PAGE] = chance.randbytes(PAGE)
        images = memories.write({7: memory})
        kept, _ = memories.keep(images, kept)
        assert len(kept.held["pagemap-7.img"].extents) <= 640 // 4
    assert kept is not None
    memories.check(kept, images)


def test_an_image_with_mostly_changed_pages_is_stored_whole(memories: Memories) -> None:
    memory = random_memory(HEAP, 2048)
    kept, _ = memories.keep(memories.write({7: memory}))
    images = memories.write({7: random_memory(HEAP, 2048)})
    kept, stored = memories.keep(images, kept)
    assert stored < 2048 * PAGE + 20_000
    assert len(kept.held["pagemap-7.img"].extents) == 64
    assert not kept.pieced
    memories.check(kept, images)


def test_an_image_kept_after_a_sweep_stores_swept_pages_again(memories: Memories) -> None:
    objects = memories.objects
    memory = {7: random_memory(HEAP, 500)}
    kept, _ = memories.keep(memories.write(memory))
    sweep(objects, list, references, min_garbage=0)
    assert not objects.has(kept.oid)
    images = memories.write(memory)
    again, stored = memories.keep(images, kept)
    assert stored > 500 * PAGE
    memories.check(again, images)


def test_a_recalled_image_serves_as_the_base_of_the_next(memories: Memories) -> None:
    objects = memories.objects
    memory = {7: random_memory(HEAP, 500)}
    kept, _ = memories.keep(memories.write(memory))
    memories.keep(memories.write({9: random_memory(HEAP, 500)}))
    memory[7][HEAP + 3 * PAGE] = os.urandom(PAGE)
    kept, _ = memories.keep(memories.write(memory), kept)
    sweep(objects, lambda: [ObjectRef(kept.oid, Kind.PROCESSES)], references, min_garbage=0)
    memory[7][HEAP + 9 * PAGE] = os.urandom(PAGE)
    images = memories.write(memory)
    with objects.writing():
        known = load_saved_images(objects, kept.oid)
    again, stored = memories.keep(images, known)
    assert stored < 3 * PAGE
    memories.check(again, images)


def test_images_with_another_page_size_are_stored_and_restored(
    memories: Memories, place: Path
) -> None:
    host = msgspec.structs.replace(HOST, page_size=16 * PAGE)
    images = write_images(place / "images", {1: {}})
    (images / "pagemap-1.img").write_bytes(pagemap(1, [{1: HEAP, 2: 0, 4: 4, 5: 50}]))
    (images / "pages-1.img").write_bytes(os.urandom(50 * 16 * PAGE))
    kept = None
    for _ in range(2):
        with memories.objects.writing():
            kept = save_images(memories.objects, images, kept, host=host)
        memories.check(kept, images)
        with (images / "pages-1.img").open("r+b") as file:
            file.write(b"changed")


def test_a_sweep_keeps_only_the_pages_of_referenced_images(memories: Memories) -> None:
    objects = memories.objects
    memory = {7: random_memory(HEAP, 3000)}
    first_images = memories.write(memory)
    first, _ = memories.keep(first_images)
    memory[7][HEAP + 70 * PAGE] = os.urandom(PAGE)
    images = memories.write(memory)
    second, _ = memories.keep(images, first)
    others, _ = memories.keep(memories.write({9: random_memory(HEAP, 3000)}))

    def held(*roots: SavedImages) -> None:
        links = [ObjectRef(kept.oid, Kind.PROCESSES) for kept in roots]
        sweep(objects, lambda: links, references, min_garbage=0)

    held(first, second)
    assert not objects.has(others.oid)
    memories.check(first, first_images)
    memories.check(second, images)
    held(second)  # lives on blobs of the first
    memories.check(second, images)
    assert not objects.has(first.oid)
    assert memories._raw() < 3100 * PAGE
    held()
    assert memories._raw() == 0


@pytest.mark.parametrize(
    "spoil",
    [
        lambda images: (images / "parent").symlink_to(".."),
        lambda images: (images / "sub").mkdir(),
        lambda images: (images / "pagemap-7.img").write_bytes(b"?"),
    ],
)
def test_a_malformed_image_directory_is_refused(
    memories: Memories, spoil: Callable[[Path], object]
) -> None:
    images = memories.write({7: random_memory(HEAP, 3)})
    spoil(images)
    with pytest.raises(Invalid) as caught:
        memories.keep(images)
    assert caught.value.kind == "bad_images"


def test_the_process_record_has_the_profile_of_its_host(memories: Memories) -> None:
    kept, _ = memories.keep(memories.write({7: {}}))
    made = kept.processes
    assert (made.engine, made.version, made.kernel) == ("criu", "4.2.1", "6.18.3")
    assert (made.arch, made.page_size, made.cpu) == ("x86_64", PAGE, ["avx2", "sse2"])
    with memories.objects.writing():
        other = save_images(
            memories.objects,
            memories.place / "dump-1",
            kept,
            host=msgspec.structs.replace(HOST, kernel="6.19"),
            jobs=b"\x90",
        )
    assert other.oid != kept.oid
    assert other.processes == msgspec.structs.replace(made, kernel="6.19", jobs=b"\x90")
    assert isinstance(other.processes, Processes)
    assert isinstance(other.oid, bytes)
    assert Oid(other.oid) == other.oid


GROWTH = """
import sys
from pathlib import Path
from ortet.backends.local.bucket import FileBucket
from ortet._util.codec import Hasher
from ortet.ids import SystemClock
from ortet.machines.host_compat import this_host
from ortet.machines.live.images.save import save_images
from ortet.machines.live.images.load import restore_images
from ortet.objects.store import PackedObjectStore

def peak():
    text = Path("/proc/self/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0])

store, images = map(Path, sys.argv[1:])
bucket = FileBucket(store / "bucket")
objects = PackedObjectStore(store, bucket, hasher=Hasher(), clock=SystemClock())
before = peak()
kept = None
for _ in range(2):
    with objects.writing():
        kept = save_images(objects, images, kept, host=this_host(""))
        objects.flush()
restore_images(objects, kept.oid, images.with_name("again"))
objects.close()
print(peak() - before)
"""


def test_saving_images_needs_little_memory(place: Path) -> None:
    images = write_images(place / "images", {1: {}})
    count = 65_536
    (images / "pagemap-1.img").write_bytes(pagemap(1, [{1: HEAP, 2: 0, 4: 4, 5: count}]))
    with (images / "pages-1.img").open("wb") as file:
        for number in range(count // 32):
            shrinks = (b"%d " % number) * 200
            file.write((os.urandom(PAGE) + shrinks * 200)[: 32 * PAGE].ljust(32 * PAGE, b"."))
    done = subprocess.run(
        [sys.executable, "-c", GROWTH, str(place / "store"), str(images)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) < 100_000  # kB, of 256 MiB
    assert (place / "again" / "pages-1.img").stat().st_size == count * PAGE
