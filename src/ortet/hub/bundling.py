"""A bundle as the other side of a pull or a push: one file instead of a store."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ortet.errors import Conflict, Invalid, NotFound
from ortet.history.references import references
from ortet.history.transfer import bundle
from ortet.history.transfer.bundle import Progress
from ortet.history.transfer.bundle_file import BundleFile
from ortet.history.transfer.bundlelimits import Limits
from ortet.hub.transfer import Pulled, move_heads, no_ref, report
from ortet.ids import Oid, to_hex
from ortet.store.sweep_retry import repeated

if TYPE_CHECKING:
    from ortet.hub.hub import Hub


def check_bundle(path: Path) -> None:
    """That it is one, and whole, as far as its tables tell."""
    _refs_of(path)


def pull_bundle(
    target: Hub, path: Path, names: Sequence[str], *, progress: Progress | None
) -> Pulled:
    """Its branches, these or all, as those of another store. A tag in it is a branch, unless a tag
    here has its name."""
    return repeated(target, lambda: _take_in(target, path, names, progress))


def _take_in(target: Hub, path: Path, names: Sequence[str], progress: Progress | None) -> Pulled:
    refs = _refs_of(path)
    for name in names:
        if name not in refs:
            raise no_ref(name, path)
    with target.writing():
        room = Limits(room=shutil.disk_usage(target.root).free)
        found = bundle.import_(target.objects, path, references, limits=room, progress=progress)
        target.objects.flush()
        rows = target.adopt_erased(found, path.name)
        branches = {name: oid for name, oid in found.refs.items() if not names or name in names}
        known = [name for name in branches if target.refs.get(name, kind="tag") is not None]
        tags = {name: branches.pop(name) for name in known if target.refs.get(name) is None}
        # all that leads to them is here by now
        placed, new = move_heads(target, target, (branches, tags), rows, forward=False)
    return report(placed, tags, new, found, target)


def push_bundle(
    source: Hub, path: Path, names: Sequence[str], *, progress: Progress | None
) -> Pulled:
    """Into a new file, or in the place of one that holds nothing else: Conflict("not_forward")."""
    heads = {head.name: head.oid for head in (*source.refs.tags(), *source.refs.branches())}
    for name in names:
        if name not in heads:
            raise no_ref(name, source.url)
    chosen = {name: heads[name] for name in names or heads}
    before = _replaced(source, path, chosen)
    if before and before == chosen:
        return Pulled({name: to_hex(oid) for name, oid in chosen.items()}, {}, [], [], 0, 0, 0)
    made = bundle.export(source.objects, chosen, references, path, progress=progress)
    moved = [name for name, oid in chosen.items() if before.get(name) != oid]
    return Pulled(made.refs, {}, moved, [], made.objects, made.size, made.resumed)


def _replaced(source: Hub, path: Path, chosen: dict[str, Oid]) -> dict[str, Oid]:
    """What a bundle that is there holds: all of it must be in the new one, too."""
    try:
        before = _refs_of(path)
    except (Invalid, NotFound):  # writing it refuses what is no bundle
        return {}
    for name, oid in before.items():
        new = chosen.get(name)
        if new is None or not (new == oid or _descends(source, oid, new)):
            raise Conflict(
                "not_forward",
                f"{path} holds {name!r} at {to_hex(oid)[:12]}, which would be lost: choose another "
                "file, or pull that one first and name all of its branches",
                name=name,
            )
    return before


def _descends(source: Hub, old: Oid, new: Oid) -> bool:
    return source.objects.has(old) and source.history.is_ancestor(old, new)


def _refs_of(path: Path) -> dict[str, Oid]:
    with BundleFile(path, Limits()) as file:
        return dict(file.head.refs)
