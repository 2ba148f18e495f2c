"""Directories of CRIU images into the store, page by page; `memoryrestore` is the way back."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from ortet._util.codec import encode
from ortet.errors import Invalid
from ortet.history.records import Layer, Processes
from ortet.ids import Oid
from ortet.machines.live.host_compat import Host
from ortet.machines.live.images.extents import Extent, Held, join, put_leaf, put_root
from ortet.machines.live.images.page_store import Before, Leaf
from ortet.machines.live.images.pagemap import Laid, Piece, Places, cut, read_laid
from ortet.objects.base import Kind, Objects
from ortet.objects.blobs import put_file
from ortet.objects.tail import storage_error

ENGINE = "criu"
_LARGE = 64 << 20  # below it a second thread costs more than it saves
_THREADS = 2
_LEFT_OUT = (".log", ".pid", ".socket")
_STATS = "stats-"


class Kept(msgspec.Struct, frozen=True):
    """Images that are in the store, and what the next ones of the same processes are compared
    with."""

    oid: Oid
    processes: Processes
    epoch: object
    held: dict[str, Held]
    whole: frozenset[bytes]
    pieced: dict[bytes, list[Extent]]


def keep(
    objects: Objects,
    directory: Path,
    previous: Kept | None = None,
    *,
    host: Host,
    covers: Sequence[Layer] = (),
    jobs: bytes = b"",
) -> Kept:
    """Store a directory that `criu dump` made; it may go afterwards. Logs and statistics are left
    out.

    The caller is inside `objects.writing()` until what refers to the result is stored too. What is
    as in `previous` is not stored again, down to single pages; without it, or when a sweep has run
    since, equal blocks of 128 KiB are not (`recall` gives something to compare with then). The same
    directory has the same Oid each time; of the same content that came about in two ways, pages may
    lie in different blobs.
    """
    epoch = getattr(objects, "epoch", None)
    if previous is not None and previous.epoch != epoch:
        previous = None  # what it knew may be gone
    try:
        sizes = list_images(directory)
        laid = read_laid(lambda name: (directory / name).read_bytes(), sizes, host.page_size)
        files = [
            (name, size, _put_file(objects, directory / name, size))
            for name, size in sorted(sizes.items())
            if name not in laid
        ]
        with ExitStack() as stack:
            paged = _Pages(objects, host.page_size, previous)
            for name in sorted(laid):
                fd = os.open(directory / name, os.O_RDONLY | os.O_CLOEXEC)
                stack.callback(os.close, fd)
                paged.add(name, laid[name], fd)
            memory = paged.keep()
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
    return make_kept(objects, oid, processes, paged.held, paged.pieced)


def make_kept(
    objects: Objects,
    oid: Oid,
    processes: Processes,
    held: dict[str, Held],
    pieced: dict[bytes, list[Extent]],
) -> Kept:
    """What is kept of images, from the extents of their files by key."""
    whole = frozenset(
        blob for one in held.values() for blob, first, _ in one.extents if blob and not first
    )
    return Kept(oid, processes, getattr(objects, "epoch", None), held, whole, pieced)


def list_images(directory: Path) -> dict[str, int]:
    """Name and size of each image."""
    sizes: dict[str, int] = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.endswith(_LEFT_OUT) or entry.name.startswith(_STATS):
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


def _put_file(objects: Objects, path: Path, size: int) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        return put_file(objects, fd, size)
    finally:
        os.close(fd)


class _Pages:
    """All files of pages of a directory, stored leaf by leaf, in two threads when large."""

    def __init__(self, objects: Objects, page: int, previous: Kept | None) -> None:
        self.held: dict[str, Held] = {}
        self.pieced: dict[bytes, list[Extent]] = {}
        self._objects = objects
        self._page = page
        self._previous = previous
        self._files: list[tuple[str, Laid, int]] = []
        self._tasks: list[Callable[[], tuple[Leaf, list[Extent], tuple[bytes, int]]]] = []
        self._bytes = 0

    def add(self, name: str, laid: Laid, fd: int) -> None:
        places, before = Places(laid.runs), self._before(laid.key)
        leaves = cut(laid.runs, self._page)
        self._files.append((name, laid, len(leaves)))
        self._bytes += laid.pages * self._page

        def task(blocks: list[Piece]) -> Callable[[], tuple[Leaf, list[Extent], tuple[bytes, int]]]:
            def run() -> tuple[Leaf, list[Extent], tuple[bytes, int]]:
                leaf = Leaf(self._objects, fd, page=self._page, places=places, before=before)
                extents = leaf.keep(blocks)
                return leaf, extents, put_leaf(self._objects, extents)

            return run

        self._tasks += [task(blocks) for blocks in leaves]

    def _before(self, key: str) -> Before | None:
        previous = self._previous
        if previous is None:
            return None
        held = previous.held.get(key)
        places = None if held is None else Places(held.runs)
        return Before(previous.whole, previous.pieced, held, places)

    def keep(self) -> list[tuple[str, bytes]]:
        """(name, Oid of its map) of each file, in order of names."""
        done = iter(list(self._run()))
        memory: list[tuple[str, bytes]] = []
        for name, laid, count in self._files:
            leaves, extents = list[tuple[bytes, int]](), list[Extent]()
            for _ in range(count):
                leaf, some, stored = next(done)
                leaves.append(stored)
                extents += some
                self.pieced.update(leaf.pieced)
            memory.append((name, put_root(self._objects, leaves)))
            self.held[laid.key] = Held.of(laid.runs, join(extents))
        return memory

    def _run(self) -> Iterator[tuple[Leaf, list[Extent], tuple[bytes, int]]]:
        if self._bytes < _LARGE:
            yield from (task() for task in self._tasks)
            return
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - a command that does not need it starts faster

        with ThreadPoolExecutor(_THREADS, "ortet-pages") as pool:
            yield from pool.map(lambda task: task(), self._tasks)
