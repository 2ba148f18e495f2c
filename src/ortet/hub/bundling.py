"""Pull from and push to a bundle file instead of another store.

A bundle is one portable file with refs and all objects that they need.
"""

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
from ortet.history.transfer.bundlelimits import BundleLimits
from ortet.hub.transfer import TransferReport, move_heads, ref_not_found, transfer_report
from ortet.ids import Oid, to_hex
from ortet.store.sweep_retry import run_with_sweep_retry

if TYPE_CHECKING:
    from ortet.hub.hub import Hub


def check_bundle(path: Path) -> None:
    """Check that `path` is a complete bundle, as far as its header and tables show.

    Raises:
        Invalid: If the file is not a bundle.
        NotFound: If the file does not exist.
    """
    _read_bundle_refs(path)


def pull_bundle(
    target: Hub, path: Path, names: Sequence[str], *, progress: Progress | None
) -> TransferReport:
    """Import branches of a bundle into `target`; all of them if `names` is empty.

    A tag in the bundle becomes a branch, unless `target` already has a tag of that name.
    """
    return run_with_sweep_retry(target, lambda: _import_branches(target, path, names, progress))


def _import_branches(
    target: Hub, path: Path, names: Sequence[str], progress: Progress | None
) -> TransferReport:
    refs = _read_bundle_refs(path)
    for name in names:
        if name not in refs:
            raise ref_not_found(name, path)
    with target.writing():
        room = BundleLimits(room=shutil.disk_usage(target.root).free)
        found = bundle.import_bundle(
            target.objects, path, references, limits=room, progress=progress
        )
        target.objects.flush()
        rows = target.adopt_erasures(found, path.name)
        branches = {name: oid for name, oid in found.refs.items() if not names or name in names}
        known = [name for name in branches if target.refs.get(name, kind="tag") is not None]
        tags = {name: branches.pop(name) for name in known if target.refs.get(name) is None}
        # All objects that the refs need are stored now.
        placed, new = move_heads(target, target, (branches, tags), rows, fast_forward_only=False)
    return transfer_report(placed, tags, new, found, target)


def push_bundle(
    source: Hub, path: Path, names: Sequence[str], *, progress: Progress | None
) -> TransferReport:
    """Write branches and tags of `source` to a bundle; all of them if `names` is empty.

    An existing bundle is replaced only if the new one contains everything that it contains.
    Raises:
        Conflict: kind "not_forward", if a commit of the existing bundle would be lost.
    """
    heads = {head.name: head.oid for head in (*source.refs.tags(), *source.refs.branches())}
    for name in names:
        if name not in heads:
            raise ref_not_found(name, source.url)
    chosen = {name: heads[name] for name in names or heads}
    before = _replaced(source, path, chosen)
    if before and before == chosen:
        return TransferReport(
            {name: to_hex(oid) for name, oid in chosen.items()}, {}, [], [], 0, 0, 0
        )
    made = bundle.export_bundle(source.objects, chosen, references, path, progress=progress)
    moved = [name for name, oid in chosen.items() if before.get(name) != oid]
    return TransferReport(made.refs, {}, moved, [], made.objects, made.size, made.resumed)


def _replaced(source: Hub, path: Path, chosen: dict[str, Oid]) -> dict[str, Oid]:
    """Return the refs of an existing bundle at `path`, or {} if there is no bundle.

    Raises Conflict("not_forward") unless every ref is equal to or an ancestor of the chosen one.
    """
    try:
        before = _read_bundle_refs(path)
    except (Invalid, NotFound):  # `export_bundle` refuses to replace a file that is not a bundle
        return {}
    for name, oid in before.items():
        new = chosen.get(name)
        if new is None or not (new == oid or _is_descendant(source, oid, new)):
            raise Conflict(
                "not_forward",
                f"{path} holds {name!r} at {to_hex(oid)[:12]}, which would be lost: choose another "
                "file, or pull that one first and name all of its branches",
                name=name,
            )
    return before


def _is_descendant(source: Hub, old: Oid, new: Oid) -> bool:
    return source.objects.has(old) and source.history.is_ancestor(old, new)


def _read_bundle_refs(path: Path) -> dict[str, Oid]:
    with BundleFile(path, BundleLimits()) as file:
        return dict(file.header.refs)
