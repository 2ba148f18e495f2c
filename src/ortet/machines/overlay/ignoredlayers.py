"""Files that are no state go along with forks of a live machine, and stay when it is restored."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from msgspec.structs import replace

from ortet.history.records import Entry
from ortet.machines.base import Loss
from ortet.machines.dirfd import directory
from ortet.machines.overlay.context import Ground
from ortet.machines.overlay.ignored_files import MOST, Copier, Found, Ignored, link
from ortet.machines.overlay.layers import ASIDE, Stack
from ortet.machines.restore.write_entry import Target, Writer

_FEW = 20


def with_ignored(ground: Ground, stack: Stack, ignored: Ignored | None) -> tuple[Stack, list[Loss]]:
    """Layers for forks, with a copy of these files on top: as forks of an idle overlay machine,
    whose upper directory becomes a layer, have them. While they do not change it is made once."""
    if ignored is None or not ignored.found:
        return stack, []
    root, empty = stack.root, ground.trees.empty()

    def fill(place: Path) -> None:
        writer = Writer(ground.objects)
        with directory(place) as fd:
            writer.settle(Target(fd), root, path=b"")
        ignored.lay(place, root, ground.trees, writer=writer, how=Copier(most=MOST))

    name = f"{ASIDE}{ignored.digest()}-{ground.objects.hasher.oid(root.data).hex()[:16]}"
    try:
        nothing = replace(root, data=empty.oid, cid=empty.cid)
        place = ground.bases.make(name, nothing, fill, shared=False)
    except OSError as error:  # a fork without them is better than none
        why = f"files that commits leave out did not come along: {error.strerror}"
        return stack, [Loss("", "ignored", why)]
    losses = [_left(found) for found in ignored.found if _is_left(ground, found, place, root)]
    return replace(stack, layers=[name, *stack.layers]), losses[:_FEW]


def bring_along(ground: Ground, ignored: Ignored, upper: Path, root: Entry) -> None:
    """Into the upper directory over the files of `root`, of the machine that takes over: the very
    files, as who had them ends."""
    ignored.lay(upper, root, ground.trees, writer=Writer(ground.objects), how=link)


def _is_left(ground: Ground, found: Found, place: Path, root: Entry) -> bool:
    return (
        stat.S_ISREG(found.st.st_mode)
        and not os.path.lexists(place / os.fsdecode(found.path))
        and ground.trees.resolve(root, found.path) is None
    )


def _left(found: Found) -> Loss:
    why = (
        f"commits leave it out, and with it forks would get more than {MOST} bytes of such files: "
        "copy it where it is needed"
    )
    return Loss(os.fsdecode(found.path), "ignored", why)
