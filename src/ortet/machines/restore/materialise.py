"""Write a whole image into a new directory, which appears complete or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from ortet._util.codec import decode
from ortet._util.failpoints import reach
from ortet.errors import Corrupt
from ortet.history.records import Entry, Image
from ortet.history.tree.tree import Trees
from ortet.ids import Oid
from ortet.machines.base import Report
from ortet.machines.capture.stat_index import StatIndex
from ortet.machines.dirfd import directory, failure
from ortet.machines.restore.checkout import Stage, parents
from ortet.machines.restore.clone import Reflink
from ortet.machines.restore.write_entry import Target, Writer
from ortet.machines.restore.write_tree import Item, Made, Progress, build
from ortet.machines.services import left_behind
from ortet.objects.base import Objects


def materialise(
    objects: Objects,
    trees: Trees,
    image: Image,
    dest: Path,
    *,
    index: StatIndex | None = None,
    source: tuple[Path, StatIndex] | None = None,
    progress: Progress | None = None,
) -> Report:
    """Write the workspace of `image` to `dest`, which is not there yet or is an empty directory.

    A failure leaves nothing; kill -9 leaves at most a `.ortet.stage.*` that the next call for the
    same place removes. `index`, a new one, learns what was written. From `source`, a live directory
    with the index that knows it, unchanged files are cloned where the file system can.
    """
    dest = Path(os.path.realpath(dest))
    writer = Writer(objects)
    items = [Item(path, entry, path) for path, entry in walk(trees, image)]
    groups = links_of(objects, image)
    try:
        with parents(dest), contextlib.ExitStack() as stack:
            stage = stack.enter_context(Stage(dest))
            cloner = stack.enter_context(Reflink(*source)) if source else None
            made = build(
                objects, stage.fd, items, groups, writer=writer, cloner=cloner, progress=progress
            )
            reach("materialise.built")
            stage.finish()
        made = _arrived(dest, made, inside=stage.inside, writer=writer)
    except OSError as error:
        raise failure(error, f"cannot write {dest}") from error
    if index is not None:
        for item, stat in made:
            index.record(item.path, stat, item.entry)
    losses = [*dict.fromkeys(writer.losses), *left_behind(objects, image, "folder")]
    return Report(written=len(made), losses=losses)


def walk(trees: Trees, image: Image) -> Iterator[tuple[bytes, Entry]]:
    """The root as b"" and everything below it, each directory before what it holds."""
    if not image.root.is_dir:
        raise Corrupt("bad_image", "the image's root is no directory: run `ortet verify`")
    yield b"", image.root
    yield from trees.walk(image.root)


def links_of(objects: Objects, image: Image) -> list[list[bytes]]:
    """The hardlink groups of an image."""
    return decode(list[list[bytes]], objects.get(Oid(image.links))) if image.links else []


def _arrived(dest: Path, made: list[Made], *, inside: bool, writer: Writer) -> list[Made]:
    """What was made, with the stat of what the last step moved; the root comes last."""
    *rest, (root, _) = made
    if inside:  # it was there before us, and what moved up has touched it
        with directory(dest) as fd:
            rest = [_fresh(fd, one) if b"/" not in one.item.path else one for one in rest]
            writer.settle(Target(fd), root.entry, path=b"")
    return [*rest, Made(root, os.stat(dest, follow_symlinks=False))]


def _fresh(at: int, made: Made) -> Made:
    return Made(made.item, os.stat(made.item.path, dir_fd=at, follow_symlinks=False))
