"""Writes many entries below an open directory: directories, contents in pack order, hardlinks."""

from __future__ import annotations

import errno
import fcntl
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from ortet._util.failpoints import failpoint
from ortet.errors import Corrupt
from ortet.history.records import BLOCK_BYTES, TreeEntry
from ortet.ids import Oid
from ortet.machines.capture.stat_index import StatIndex, stat_record
from ortet.machines.dirfd import DirFdCache, check_name
from ortet.machines.restore.write_entry import EntryWriter, OpenTarget
from ortet.objects.base import ObjectStore
from ortet.objects.blobs import read_file

Progress = Callable[[int, int], None]
"""A function that is called with (done, total) entries."""

THREADS = 2
_BATCH_ITEMS = 64
_BATCH_BYTES = 1 << 20
_MIN_ITEMS_FOR_THREADS = 16
_MAX_QUEUED_BATCHES = 6  # batches that are read and not yet written; this bounds memory


class TreeItem(NamedTuple):
    """An entry, its path below the open directory, and its path in the workspace."""

    target_path: bytes
    entry: TreeEntry
    path: bytes


class WrittenItem(NamedTuple):
    """An item with its stat on disk."""

    item: TreeItem
    stat: os.stat_result


class Cloner(Protocol):
    """A way to fill files without copying data. It is called from several threads."""

    usable: bool
    """False if it works for no file at all."""

    def clone_into(self, item: TreeItem, fd: int) -> bool:
        """Fill the new, empty file. Return False, and leave the file empty, if that fails."""
        ...


class WriteJob(NamedTuple):
    """One file to write, with its content."""

    item: TreeItem
    data: Iterable[bytes]
    cloner: Cloner | None = None


def write_tree(
    objects: ObjectStore,
    top: int,
    items: Sequence[TreeItem],
    groups: Sequence[Sequence[bytes]] = (),
    *,
    writer: EntryWriter,
    cloner: Cloner | None = None,
    progress: Progress | None = None,
) -> list[WrittenItem]:
    """Write `items` below the open directory `top`. No other process may write there.

    Args:
        items: Each directory must come before its content.
        groups: The hardlink groups, by workspace path.
        writer: Collects the losses.
        cloner: Fills files without copying data, where it can.

    Returns:
        The written items; directories come after their content. Items that could not be created are
        missing, and are in `writer.losses`.
    """
    folders, files = _split_directories(items)
    leaders = _leaders(files, groups)
    firsts = [item for item in files if item.path not in leaders] if leaders else files
    with DirFdCache(top) as dirs:
        for item in folders:
            if item.target_path:
                parent_fd, name = dirs.open_parent(item.target_path)
                os.mkdir(name, item.entry.mode & 0o777 | 0o700, dir_fd=parent_fd)
        failpoint("build.directories")
        with _WritePool(top, writer, progress, len(items)) as pool:
            for batch in _batches(_jobs(objects, firsts, cloner)):
                pool.put(batch)
        written = pool.written
        failpoint("build.files")
        if leaders:
            followers = [item for item in files if item.path in leaders]
            written = _link(
                objects, dirs, written, followers=followers, leaders=leaders, writer=writer
            )
        failpoint("build.links")
        for item in reversed(folders):
            target = OpenTarget(dirs.fd(item.target_path))
            written.append(
                WrittenItem(item, writer.apply_metadata(target, item.entry, path=item.path))
            )
    if progress is not None:
        progress(len(items), len(items))
    return written


class _WritePool:
    """Threads that write batches. An error is raised by the next `put` or at the end."""

    def __init__(
        self, top: int, writer: EntryWriter, progress: Progress | None, total: int
    ) -> None:
        self.written: list[WrittenItem] = []
        self._writer = writer
        self._progress = progress
        self._total = total
        self._running: set[Future[list[WrittenItem]]] = set()
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="ortet-build")
        self._dirs: queue.SimpleQueue[DirFdCache] = queue.SimpleQueue()
        for _thread in range(THREADS):
            self._dirs.put(DirFdCache(top))

    def __enter__(self) -> _WritePool:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        try:
            while self._running and kind is None:
                self._collect()
        finally:
            self._executor.shutdown(cancel_futures=True)
            for _thread in range(THREADS):
                self._dirs.get().close()

    def put(self, batch: Sequence[WriteJob]) -> None:
        if self._total <= _MIN_ITEMS_FOR_THREADS:  # starting a thread takes longer
            self.written += self._write(batch)
            return
        while len(self._running) >= _MAX_QUEUED_BATCHES:
            self._collect()
        self._running.add(self._executor.submit(self._write, batch))

    def _write(self, batch: Sequence[WriteJob]) -> list[WrittenItem]:
        written = []
        dirs = self._dirs.get()
        try:
            for job in batch:
                parent_fd, name = dirs.open_parent(job.item.target_path)
                stat = _write_item(self._writer, parent_fd, name, job)
                if stat is not None:
                    written.append(WrittenItem(job.item, stat))
        finally:
            self._dirs.put(dirs)
        return written

    def _collect(self) -> None:
        done, self._running = wait(self._running, return_when=FIRST_COMPLETED)
        for future in done:
            self.written += future.result()
        if self._progress is not None:
            self._progress(len(self.written), self._total)


def _write_item(
    writer: EntryWriter, parent_fd: int, name: bytes, job: WriteJob
) -> os.stat_result | None:
    """Write one entry that is not a directory. Return None if it may not be created."""
    item, data, cloner = job
    if not item.entry.is_file:
        return writer.write_special(parent_fd, name, entry=item.entry, path=item.path)
    fill = None if cloner is None else partial(cloner.clone_into, item)
    return writer.write_file(
        parent_fd, name, entry=item.entry, data=data, path=item.path, fill=fill
    )


def _jobs(
    objects: ObjectStore, files: Sequence[TreeItem], cloner: Cloner | None
) -> Iterator[WriteJob]:
    """Yield jobs: clonable and large files first, then small files in pack order.

    The content of a large file is read by the thread that writes it.
    """
    small: dict[Oid, list[TreeItem]] = {}
    for item in files:
        entry = item.entry
        if not entry.size or not entry.is_file:
            yield WriteJob(item, ())
        elif cloner is not None and cloner.usable:
            yield WriteJob(item, read_file(objects, entry), cloner)
        elif entry.size > BLOCK_BYTES:
            yield WriteJob(item, read_file(objects, entry))
        else:
            small.setdefault(Oid(entry.data), []).append(item)
    for oid, data in objects.get_many(small):
        for item in small[oid]:
            yield WriteJob(item, (data,))


def _batches(jobs: Iterable[WriteJob]) -> Iterator[list[WriteJob]]:
    batch: list[WriteJob] = []
    weight = 0
    for job in jobs:
        batch.append(job)
        weight += job.item.entry.size
        if weight >= _BATCH_BYTES or len(batch) >= _BATCH_ITEMS:
            yield batch
            batch, weight = [], 0
    if batch:
        yield batch


def _split_directories(items: Sequence[TreeItem]) -> tuple[list[TreeItem], list[TreeItem]]:
    """Separate directories from other entries, and check all names from the store."""
    folders: list[TreeItem] = []
    files: list[TreeItem] = []
    for item in items:
        if item.target_path:
            check_name(item.entry.name)
        (folders if item.entry.is_dir else files).append(item)
    if len({item.target_path for item in items}) != len(items):
        raise Corrupt("bad_tree", "a directory of the image holds a name twice: run `ortet verify`")
    return folders, files


def _leaders(files: Sequence[TreeItem], groups: Sequence[Sequence[bytes]]) -> dict[bytes, TreeItem]:
    """Map each further name of a hardlink group to the item of its first name.

    Raises Corrupt if the groups do not fit the items.
    """
    paths = [path for group in groups for path in group]
    known = dict.fromkeys(paths)
    items_by_path = {item.path: item for item in files if item.path in known} if known else {}
    if len(known) != len(paths) or len(items_by_path) != len(paths):
        raise Corrupt(
            "bad_links", "hardlinks of the image do not fit its files: run `ortet verify`"
        )
    leaders = {}
    for group in groups:
        first = items_by_path[group[0]]
        for path in group[1:]:
            if replace(items_by_path[path].entry, name=first.entry.name) != first.entry:
                raise Corrupt(
                    "bad_links",
                    f"{os.fsdecode(path)} is a hardlink to a different file: run `ortet verify`",
                )
            leaders[path] = first
    return leaders


def _link(
    objects: ObjectStore,
    dirs: DirFdCache,
    written: list[WrittenItem],
    *,
    followers: Sequence[TreeItem],
    leaders: Mapping[bytes, TreeItem],
    writer: EntryWriter,
) -> list[WrittenItem]:
    """Create the other names of files, or copies where the file system allows no more links."""
    there = {one.item.path: one for one in written}
    linked: dict[bytes, TreeItem] = {}
    for item in followers:
        leader = leaders[item.path]
        if leader.path not in there:
            writer.add_loss(item.path, "hardlink", f"{os.fsdecode(leader.path)} could not be made")
            continue
        parent_fd, name = dirs.open_parent(item.target_path)
        source, other = dirs.open_parent(leader.target_path)
        try:
            os.link(other, name, src_dir_fd=source, dst_dir_fd=parent_fd, follow_symlinks=False)
        except OSError as error:
            writer.add_loss(item.path, "hardlink", f"became a copy ({error.strerror})")
            data = read_file(objects, item.entry) if item.entry.is_file else ()
            _write_item(writer, parent_fd, name, WriteJob(item, data))
        linked[item.path] = item
        linked[leader.path] = leader
    for path, item in linked.items():  # only now: each link changes the ctime of all names
        parent_fd, name = dirs.open_parent(item.target_path)
        there[path] = WrittenItem(item, os.stat(name, dir_fd=parent_fd, follow_symlinks=False))
    return list(there.values())


# Shares the content of unchanged files with a live directory by reflinks, where possible.

FICLONE = 0x40049409
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_UNSUPPORTED_ERRNOS = frozenset(
    {errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS}
)


class ReflinkCloner:
    """Clones files from the directory `source`, whose stat index is `index`.

    `usable` becomes False when the kernel reports that reflinks do not work between the two places.
    """

    def __init__(self, source: Path, index: StatIndex) -> None:
        self.usable = True
        self._index = index
        self._top = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._dirs = DirFdCache(self._top)
        self._lock = threading.Lock()

    def __enter__(self) -> ReflinkCloner:
        return self

    def __exit__(self, *_: object) -> None:
        self._dirs.close()
        os.close(self._top)

    def clone_into(self, item: TreeItem, fd: int) -> bool:
        """Fill the new file `fd` from the source, if the source still has the item's content."""
        if not self.usable:
            return False
        try:
            with self._lock:
                parent_fd, name = self._dirs.open_parent(item.path)
                source = os.open(name, _OPEN, dir_fd=parent_fd)
        except OSError:
            return False
        try:
            before = os.fstat(source)
            return self._has_content(item, before) and self._clone(source, before, fd)
        finally:
            os.close(source)

    def _has_content(self, item: TreeItem, now: os.stat_result) -> bool:
        with self._lock:
            known = self._index.lookup(item.path, now)
        want = item.entry
        return (
            known is not None
            and known.is_file
            and (known.data, known.size, known.holes) == (want.data, want.size, want.holes)
        )

    def _clone(self, source: int, before: os.stat_result, fd: int) -> bool:
        try:
            fcntl.ioctl(fd, FICLONE, source)
        except OSError as error:
            self.usable = self.usable and error.errno not in _UNSUPPORTED_ERRNOS
            return False
        if stat_record(os.fstat(source)) == stat_record(before):
            return True
        os.ftruncate(fd, 0)  # the source was written to during the clone
        return False
