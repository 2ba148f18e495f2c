"""Looking after a store: is it whole, what can go, what travels in one file."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ortet.backend.abc import Move
from ortet.errors import Corrupt
from ortet.graph import bundle
from ortet.graph.bundlelimits import Limits
from ortet.graph.walk import references
from ortet.ids import Oid, to_hex
from ortet.store.abc import Kind, Link
from ortet.store.sweep import MIN_GARBAGE, SweepReport, sweep
from ortet.store.verify import Problem, VerifyReport, verify

if TYPE_CHECKING:
    from ortet.session.hub import Hub, Progress


def roots(hub: Hub, since: int = 0) -> Iterator[Link]:
    """What must stay: heads, the reflog from `since` on, the images private machines rest on."""
    after = ""
    while heads := hub.catalog.heads("", after):
        yield from (Link(head.oid, Kind.COMMIT) for head in heads)
        after = heads[-1].name
    seq = 0
    while ops := hub.catalog.ops(after=seq):
        for op in ops:
            if op.time >= since:
                yield from (Link(oid, Kind.COMMIT) for oid in (op.old, op.new) if oid)
        seq = ops[-1].seq
    for row in hub.registry.all():
        if row.base:
            yield Link(Oid(row.base), Kind.IMAGE)


def verify_store(hub: Hub, progress: Progress | None) -> VerifyReport:
    report = verify(hub.objects, lambda: roots(hub), references, progress=progress)
    rows = [Problem(oid="", where="catalog", what=what) for what in hub.catalog.check()]
    if problems := [*report.problems, *rows]:
        raise Corrupt(
            "verify_failed",
            f"{len(problems)} problem(s) in the store, first: {problems[0].what}; restore the "
            "damaged files from a backup, or import the commits from a bundle",
            report=msgspec.to_builtins(msgspec.structs.replace(report, problems=problems)),
        )
    return report


def sweep_store(
    hub: Hub,
    *,
    dry_run: bool,
    expire_ns: int | None,
    min_garbage: float | None,
    progress: Progress | None,
) -> SweepReport:
    since = 0 if expire_ns is None else hub.clock.now_ns() - expire_ns
    if since and not dry_run:
        hub.catalog.trim_ops(since)
    return sweep(
        hub.objects,
        lambda: roots(hub, since),
        references,
        dry_run=dry_run,
        min_garbage=MIN_GARBAGE if min_garbage is None else min_garbage,
        progress=progress,
    )


def export_refs(
    hub: Hub, names: Sequence[str], path: Path, *, progress: Progress | None
) -> bundle.BundleReport:
    heads = {name: hub.refs.resolve(name) for name in names}
    return bundle.export(hub.objects, heads, references, path, progress=progress)


def import_bundle(hub: Hub, path: Path, progress: Progress | None) -> dict[str, str]:
    with hub.writing():
        room = Limits(room=shutil.disk_usage(hub.root).free)
        heads = bundle.import_(hub.objects, path, references, limits=room, progress=progress)
        hub.objects.flush()
        names = {_free_branch(hub, name, oid): oid for name, oid in heads.items()}
        moves = [
            Move(f"branch:{name}", None, oid)
            for name, oid in names.items()
            if hub.catalog.head(f"branch:{name}") is None
        ]
        hub.catalog.move(moves, verb="import", actor=hub.author, detail=path.name)
    return {name: to_hex(oid) for name, oid in names.items()}


def _free_branch(hub: Hub, name: str, oid: Oid) -> str:
    """A bundle's name, or that name with a number when the branch here is another one."""
    candidate, number = name, 1
    while (head := hub.catalog.head(f"branch:{candidate}")) and head.oid != oid:
        number += 1
        candidate = f"{name}-{number}"
    return candidate
