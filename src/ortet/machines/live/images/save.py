"""Saves directories of CRIU images to the store, page by page; `load` restores them.

Before that, the images are searched for secrets.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import msgspec

from ortet._util.codec import encode
from ortet.errors import Invalid
from ortet.history.records import Layer, Processes
from ortet.ids import Oid
from ortet.machines.host_compat import HostProfile
from ortet.machines.live.images.page_store import (
    DeltaBaseline,
    Extent,
    LeafWriter,
    StoredPages,
    merge_adjacent,
    put_leaf,
    put_root,
)
from ortet.machines.live.images.pagemap import (
    PageAddresses,
    PageLayout,
    PageSpan,
    cut_leaves,
    read_page_layouts,
)
from ortet.machines.secrets.scanner import secret_found_error
from ortet.objects.base import Kind, ObjectStore
from ortet.objects.blobs import put_file
from ortet.objects.tail import storage_error

ENGINE = "criu"
_PARALLEL_MIN_BYTES = 64 << 20  # for less, a second thread costs more than it saves
_THREADS = 2
_EXCLUDED_SUFFIXES = (".log", ".pid", ".socket")
_STATS_PREFIX = "stats-"

_PROCESS = re.compile(r"(?:pagemap|core|mm)-(\d+)\.img")
_MAX_REPORTED_OWNERS = 5


class SavedImages(msgspec.Struct, frozen=True):
    """Images that are in the store, and the data with which the next dump is compared."""

    oid: Oid
    processes: Processes
    epoch: object
    held: dict[str, StoredPages]
    whole: frozenset[bytes]
    pieced: dict[bytes, list[Extent]]


def save_images(
    objects: ObjectStore,
    directory: Path,
    previous: SavedImages | None = None,
    *,
    host: HostProfile,
    covers: Sequence[Layer] = (),
    jobs: bytes = b"",
) -> SavedImages:
    """Store a directory that `criu dump` wrote; the directory may be deleted afterwards.

    Logs and statistics are not stored. The caller is inside `objects.writing()` until the reference
    to the result is stored too.

    Pages that are equal in `previous` are not stored again. Without `previous`, or if a sweep has
    run since, only equal blocks of 128 KiB are not stored again; `load_saved_images` gives
    something to compare with. The same directory always has the same id. Equal content with another
    history may have its pages in other blobs, and so another id.
    """
    epoch = getattr(objects, "epoch", None)
    if previous is not None and previous.epoch != epoch:
        previous = None  # the objects it knows may have been deleted
    try:
        sizes = list_images(directory)
        laid = read_page_layouts(
            lambda name: (directory / name).read_bytes(), sizes, host.page_size
        )
        files = [
            (name, size, _put_file(objects, directory / name, size))
            for name, size in sorted(sizes.items())
            if name not in laid
        ]
        with ExitStack() as stack:
            paged = _PageFiles(objects, host.page_size, previous)
            for name in sorted(laid):
                fd = os.open(directory / name, os.O_RDONLY | os.O_CLOEXEC)
                stack.callback(os.close, fd)
                paged.add(name, laid[name], fd)
            memory = paged.save()
    except OSError as error:
        raise storage_error(error, f"reading process images in {directory}") from error
    processes = Processes(
        ENGINE,
        host.version,
        host.kernel,
        host.arch,
        host.page_size,
        host.cpu,
        files,
        memory,
        list(covers),
        jobs,
    )
    oid = objects.put(Kind.PROCESSES, encode(processes))
    return make_saved_images(objects, oid, processes, paged.stored, paged.pieced_blocks)


def make_saved_images(
    objects: ObjectStore,
    oid: Oid,
    processes: Processes,
    stored: dict[str, StoredPages],
    pieced: dict[bytes, list[Extent]],
) -> SavedImages:
    """Build the comparison data for the next dump from the stored pages of each file."""
    whole = frozenset(
        blob for one in stored.values() for blob, first, _ in one.extents if blob and not first
    )
    return SavedImages(oid, processes, getattr(objects, "epoch", None), stored, whole, pieced)


def list_images(directory: Path) -> dict[str, int]:
    """Return the name and size of each image file."""
    sizes: dict[str, int] = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.endswith(_EXCLUDED_SUFFIXES) or entry.name.startswith(_STATS_PREFIX):
                continue
            status = entry.stat(follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode):
                raise Invalid(
                    "bad_images",
                    f"{entry.name!r} among the process images is not a file: dump without a parent "
                    "image, into an empty directory",
                )
            sizes[entry.name] = status.st_size
    return sizes


def _put_file(objects: ObjectStore, path: Path, size: int) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        return put_file(objects, fd, size)
    finally:
        os.close(fd)


class _PageFiles:
    """All memory files of a directory, stored leaf by leaf, in two threads if they are large."""

    def __init__(self, objects: ObjectStore, page_size: int, previous: SavedImages | None) -> None:
        self.stored: dict[str, StoredPages] = {}
        self.pieced_blocks: dict[bytes, list[Extent]] = {}
        self._objects = objects
        self._page_size = page_size
        self._previous = previous
        self._files: list[tuple[str, PageLayout, int]] = []
        self._tasks: list[Callable[[], tuple[LeafWriter, list[Extent], tuple[bytes, int]]]] = []
        self._total_bytes = 0

    def add(self, name: str, layout: PageLayout, fd: int) -> None:
        places, before = PageAddresses(layout.runs), self._baseline_for(layout.key)
        leaves = cut_leaves(layout.runs, self._page_size)
        self._files.append((name, layout, len(leaves)))
        self._total_bytes += layout.pages * self._page_size

        def task(
            blocks: list[PageSpan],
        ) -> Callable[[], tuple[LeafWriter, list[Extent], tuple[bytes, int]]]:
            def run() -> tuple[LeafWriter, list[Extent], tuple[bytes, int]]:
                leaf = LeafWriter(
                    self._objects, fd, page_size=self._page_size, addresses=places, baseline=before
                )
                extents = leaf.store(blocks)
                return leaf, extents, put_leaf(self._objects, extents)

            return run

        self._tasks += [task(blocks) for blocks in leaves]

    def _baseline_for(self, key: str) -> DeltaBaseline | None:
        previous = self._previous
        if previous is None:
            return None
        held = previous.held.get(key)
        places = None if held is None else PageAddresses(held.runs)
        return DeltaBaseline(previous.whole, previous.pieced, held, places)

    def save(self) -> list[tuple[str, bytes]]:
        """Store all files, and return (name, id of its page map) of each, sorted by name."""
        done = iter(list(self._run_tasks()))
        memory: list[tuple[str, bytes]] = []
        for name, laid, count in self._files:
            leaves, extents = list[tuple[bytes, int]](), list[Extent]()
            for _ in range(count):
                leaf, some, stored = next(done)
                leaves.append(stored)
                extents += some
                self.pieced_blocks.update(leaf.pieced_blocks)
            memory.append((name, put_root(self._objects, leaves)))
            self.stored[laid.key] = StoredPages.from_extents(laid.runs, merge_adjacent(extents))
        return memory

    def _run_tasks(self) -> Iterator[tuple[LeafWriter, list[Extent], tuple[bytes, int]]]:
        if self._total_bytes < _PARALLEL_MIN_BYTES:
            yield from (task() for task in self._tasks)
            return
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - a command that does not need it starts faster

        with ThreadPoolExecutor(_THREADS, "ortet-pages") as pool:
            yield from pool.map(lambda task: task(), self._tasks)


class PlainScanner(Protocol):
    """The part of a secret scanner that searches files for plain values."""

    def plain_name(self, fd: int, size: int) -> str: ...


def check_images(
    scanner: PlainScanner, directory: Path, page_size: int, describe_process: Callable[[int], str]
) -> None:
    """Raise Refused("secret_found") if the images of processes hold a secret.

    Memory may be gigabytes, so it is searched for plain values only.

    Args:
        directory: The directory of the images.
        page_size: The size of a memory page.
        describe_process: Returns the description of the process with this pid.
    """
    images_by_secret: dict[str, list[str]] = {}
    for image, size in sorted(list_images(directory).items()):
        with (directory / image).open("rb") as file:
            name = scanner.plain_name(file.fileno(), size)
        if name:
            images_by_secret.setdefault(name, []).append(image)
    for name, images in images_by_secret.items():
        places = _owners(directory, images, page_size, describe_process)
        raise secret_found_error(name, ", ".join(places[:_MAX_REPORTED_OWNERS]))


def _owners(
    directory: Path,
    images: Sequence[str],
    page_size: int,
    describe_process: Callable[[int], str],
) -> list[str]:
    """Return the processes to which these images belong.

    An image of a process is named KIND-PID.img. A pagemap names the pages of its process.
    """
    sizes = list_images(directory)
    layouts = read_page_layouts(lambda name: (directory / name).read_bytes(), sizes, page_size)
    named = (layouts[image].key if image in layouts else image for image in images)
    owners = (_PROCESS.fullmatch(name) or name for name in named)
    described = (
        f"what processes share ({one})"
        if isinstance(one, str)
        else f"the memory of {describe_process(int(one[1]))}"
        for one in owners
    )
    return sorted(set(described))
