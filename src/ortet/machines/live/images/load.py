"""Restores directories of CRIU images from the store."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from pathlib import Path

import msgspec

from ortet._util.codec import decode
from ortet._util.failpoints import failpoint
from ortet.errors import Conflict, Invalid
from ortet.history.records import Processes
from ortet.history.references import references
from ortet.ids import Oid
from ortet.machines.live.images.page_store import Extent, StoredPages, corrupt_pages, read_extents
from ortet.machines.live.images.pagemap import is_pages_file, read_page_layouts
from ortet.machines.live.images.save import SavedImages, make_saved_images
from ortet.objects.base import Kind, ObjectStore
from ortet.objects.blobs import BLOCK_BYTES, read_file
from ortet.objects.tail import storage_error


class _Content(msgspec.Struct, frozen=True):
    data: bytes
    size: int


def read_processes(objects: ObjectStore, oid: bytes) -> Processes:
    """Return the process record of an image.

    Raises Corrupt if the object is something else, or if a file name could leave its directory.
    """
    data = objects.get(Oid(oid))
    references(Kind.PROCESSES, data)
    return decode(Processes, data)


def restore_images(objects: ObjectStore, oid: Oid, directory: Path) -> SavedImages:
    """Write stored images to a new directory, equal byte for byte.

    The directory is complete, or, after a failure, does not exist: it is written as NAME.part
    first. Pages of zeros become holes. Returns the data with which the next dump of these processes
    is compared.
    """
    if os.path.lexists(directory):
        raise Conflict("exists", f"{directory} is there already: name a new directory")
    processes = read_processes(objects, oid)
    part = directory.with_name(f"{directory.name}.part")
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(0o700, parents=True)
        extents = {name: read_extents(objects, root) for name, root in processes.memory}
        _write_pages(objects, part, extents, processes.page_size)
        _write_files(objects, part, processes)
        failpoint("memory.written")
        known = _make_saved_images(objects, oid, processes, extents)
        os.rename(part, directory)
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        raise storage_error(error, f"writing process images to {directory}") from error
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return known


def load_saved_images(objects: ObjectStore, oid: Oid) -> SavedImages:
    """Return stored images as a basis for comparison with the next dump.

    Used for the last commit of a machine after a sweep, or for a machine forked from the same one.
    A commit or hold must still refer to the images, so that all objects exist.
    """
    processes = read_processes(objects, oid)
    extents = {name: read_extents(objects, root) for name, root in processes.memory}
    return _make_saved_images(objects, oid, processes, extents)


def _make_saved_images(
    objects: ObjectStore, oid: Oid, processes: Processes, extents: dict[str, list[Extent]]
) -> SavedImages:
    files = {name: _Content(data, size) for name, size, data in processes.files}
    sizes = {name: content.size for name, content in files.items()}
    for name, extent in extents.items():
        sizes[name] = sum(count for _, _, count in extent) * processes.page_size
    laid = read_page_layouts(
        lambda name: b"".join(read_file(objects, files[name])), sizes, processes.page_size
    )
    held = {
        laid[name].key: StoredPages.from_extents(laid[name].runs, extents[name]) for name in extents
    }
    return make_saved_images(objects, oid, processes, held, {})


def _write_pages(
    objects: ObjectStore, directory: Path, files: dict[str, list[Extent]], page_size: int
) -> None:
    """Write memory files.

    Each blob is read once, in store order, and written wherever it is used.
    """
    wanted: dict[Oid, list[tuple[int, int, int, int]]] = {}
    with ExitStack() as stack:
        for name, extents in files.items():
            if not is_pages_file(name):
                raise Invalid("bad_images", f"{name!r} cannot be a file of memory pages")
            fd = _create(directory / name)
            stack.callback(os.close, fd)
            position = 0
            for oid, first, count in extents:
                if oid:
                    place = (fd, position * page_size, first * page_size, count * page_size)
                    wanted.setdefault(Oid(oid), []).append(place)
                position += count
            os.ftruncate(fd, position * page_size)
        for oid, data in objects.get_many(wanted):
            view = memoryview(data)
            for fd, offset, start, size in wanted[oid]:
                if start + size > len(data):
                    raise corrupt_pages(oid, f"has {len(data)} bytes, a page map asks for more")
                _write_at(fd, view[start : start + size], offset)


def _write_files(objects: ObjectStore, directory: Path, processes: Processes) -> None:
    small = {Oid(oid): size for _, size, oid in processes.files if 0 < size <= BLOCK_BYTES}
    contents = dict(objects.get_many(small))
    for name, size, oid in processes.files:
        fd = _create(directory / name)
        try:
            offset = 0
            pieces = (
                [contents[Oid(oid)]]
                if 0 < size <= BLOCK_BYTES
                else read_file(objects, _Content(oid, size))
            )
            for data in pieces:
                _write_at(fd, memoryview(data), offset)
                offset += len(data)
            if offset != size:
                raise corrupt_pages(oid, f"has {offset} bytes, its file {name!r} asks for {size}")
        finally:
            os.close(fd)


def _create(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


def _write_at(fd: int, data: memoryview, offset: int) -> None:
    while data:
        done = os.pwrite(fd, data, offset)
        data, offset = data[done:], offset + done
