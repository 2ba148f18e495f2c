"""Writes a whole image into a new directory, which appears complete or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from ortet._util.codec import decode
from ortet._util.failpoints import failpoint
from ortet.errors import Corrupt
from ortet.history.records import Image, TreeEntry
from ortet.history.tree.tree import Trees
from ortet.ids import Oid
from ortet.machines.base import Report
from ortet.machines.capture.stat_index import StatIndex
from ortet.machines.dirfd import open_directory, translate_os_error
from ortet.machines.restore.checkout import StagingDirectory, make_parents
from ortet.machines.restore.clone import ReflinkCloner
from ortet.machines.restore.write_entry import EntryWriter, MetadataTarget
from ortet.machines.restore.write_tree import Progress, TreeItem, WrittenItem, write_tree
from ortet.machines.services import service_losses
from ortet.objects.base import ObjectStore


def checkout_image(
    objects: ObjectStore,
    trees: Trees,
    image: Image,
    dest: Path,
    *,
    index: StatIndex | None = None,
    source: tuple[Path, StatIndex] | None = None,
    progress: Progress | None = None,
) -> Report:
    """Write the workspace of `image` to `dest`.

    A failure leaves nothing. After kill -9 at most a `.ortet.stage.*` is left, which the next call
    for the same place removes.

    Args:
        dest: A path that does not exist, or an empty directory.
        index: A new index; all written files are recorded in it.
        source: A live directory with its index. Unchanged files are cloned from it if possible.
        progress: Called with the number of written entries.
    """
    dest = Path(os.path.realpath(dest))
    writer = EntryWriter(objects)
    items = [TreeItem(path, entry, path) for path, entry in walk_image(trees, image)]
    groups = hardlink_groups(objects, image)
    try:
        with make_parents(dest), contextlib.ExitStack() as stack:
            stage = stack.enter_context(StagingDirectory(dest))
            cloner = stack.enter_context(ReflinkCloner(*source)) if source else None
            made = write_tree(
                objects, stage.fd, items, groups, writer=writer, cloner=cloner, progress=progress
            )
            failpoint("materialise.built")
            stage.finish()
        made = _restat_moved(dest, made, inside=stage.is_inside_dest, writer=writer)
    except OSError as error:
        raise translate_os_error(error, f"cannot write {dest}") from error
    if index is not None:
        for item, stat in made:
            index.record(item.path, stat, item.entry)
    losses = [*dict.fromkeys(writer.losses), *service_losses(objects, image, "folder")]
    return Report(written=len(made), losses=losses)


def walk_image(trees: Trees, image: Image) -> Iterator[tuple[bytes, TreeEntry]]:
    """Yield the root as b"" and everything below it; each directory comes before its content."""
    if not image.root.is_dir:
        raise Corrupt("bad_image", "the image's root is no directory: run `ortet verify`")
    yield b"", image.root
    yield from trees.walk(image.root)


def hardlink_groups(objects: ObjectStore, image: Image) -> list[list[bytes]]:
    """Return the hardlink groups of an image."""
    return decode(list[list[bytes]], objects.get(Oid(image.links))) if image.links else []


def _restat_moved(
    dest: Path, written: list[WrittenItem], *, inside: bool, writer: EntryWriter
) -> list[WrittenItem]:
    """Return the written items, with a new stat for those that the last step moved.

    The root comes last.
    """
    *rest, (root, _) = written
    if inside:  # it existed before, and the moves changed its mtime
        with open_directory(dest) as fd:
            rest = [_restat(fd, one) if b"/" not in one.item.path else one for one in rest]
            writer.apply_metadata(MetadataTarget(fd), root.entry, path=b"")
    return [*rest, WrittenItem(root, os.stat(dest, follow_symlinks=False))]


def _restat(at: int, written: WrittenItem) -> WrittenItem:
    return WrittenItem(written.item, os.stat(written.item.path, dir_fd=at, follow_symlinks=False))
