"""Gives ignored files to the forks of a machine, and keeps them when a machine is restored."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from msgspec.structs import replace

from ortet.history.records import TreeEntry
from ortet.machines.base import Loss
from ortet.machines.dirfd import open_directory
from ortet.machines.overlay.context import EngineContext
from ortet.machines.overlay.ignored_files import (
    MAX_COPIED_BYTES,
    Copier,
    IgnoredFile,
    IgnoredFiles,
    link_file,
)
from ortet.machines.overlay.layers import IGNORED_LAYER_PREFIX, LayerStack
from ortet.machines.restore.write_entry import EntryWriter, MetadataTarget

_MAX_REPORTED_LOSSES = 20


def add_ignored_layer(
    context: EngineContext, stack: LayerStack, ignored: IgnoredFiles | None
) -> tuple[LayerStack, list[Loss]]:
    """Return a stack for forks, with a layer of copies of the ignored files on top.

    The layer is built once, as long as the files do not change. Forks of an idle overlay machine
    need no copies, because its upper directory becomes a layer.
    """
    if ignored is None or not ignored.files:
        return stack, []
    root, empty = stack.root, context.trees.empty()

    def fill(place: Path) -> None:
        writer = EntryWriter(context.objects)
        with open_directory(place) as fd:
            writer.apply_metadata(MetadataTarget(fd), root, path=b"")
        ignored.write_to(
            place, root, context.trees, writer=writer, put_file=Copier(max_bytes=MAX_COPIED_BYTES)
        )

    name = (
        f"{IGNORED_LAYER_PREFIX}{ignored.digest()}-"
        f"{context.objects.hasher.oid(root.data).hex()[:16]}"
    )
    try:
        nothing = replace(root, data=empty.oid, cid=empty.cid)
        place = context.layer_store.ensure_layer(name, nothing, fill, shared=False)
    except OSError as error:  # a fork without these files is better than none
        why = f"files that commits leave out did not come along: {error.strerror}"
        return stack, [Loss("", "ignored", why)]
    losses = [
        _not_copied_loss(found)
        for found in ignored.files
        if _was_not_copied(context, found, place, root)
    ]
    return replace(stack, layers=[name, *stack.layers]), losses[:_MAX_REPORTED_LOSSES]


def link_ignored_files(
    context: EngineContext, ignored: IgnoredFiles, upper: Path, root: TreeEntry
) -> None:
    """Link the ignored files into the upper directory of the machine that replaces the old one.

    The old machine ends, so the files themselves can be used.
    """
    ignored.write_to(
        upper, root, context.trees, writer=EntryWriter(context.objects), put_file=link_file
    )


def _was_not_copied(
    context: EngineContext, file: IgnoredFile, place: Path, root: TreeEntry
) -> bool:
    return (
        stat.S_ISREG(file.st.st_mode)
        and not os.path.lexists(place / os.fsdecode(file.path))
        and context.trees.resolve(root, file.path) is None
    )


def _not_copied_loss(file: IgnoredFile) -> Loss:
    why = (
        f"commits leave it out, and with it forks would get more than {MAX_COPIED_BYTES} bytes of "
        "such files: "
        "copy it where it is needed"
    )
    return Loss(os.fsdecode(file.path), "ignored", why)
