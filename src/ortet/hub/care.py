"""Verify a store, collect garbage, and export or import bundles.

`gc_roots` defines which objects a sweep must keep.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ortet._util.codec import decode, encode
from ortet._util.validation import COUNT, require
from ortet.backends.base import Move, Op
from ortet.errors import Conflict, Corrupt
from ortet.history.references import references, references_after_erasure
from ortet.history.refs import is_ref_name
from ortet.history.transfer import bundle
from ortet.history.transfer.bundlelimits import BundleLimits
from ortet.ids import Oid, to_hex
from ortet.objects.base import Kind, ObjectRef
from ortet.objects.gc.sweep import MIN_GARBAGE_FRACTION, SweepReport, sweep
from ortet.objects.gc.verify import Problem, VerifyReport, verify
from ortet.sessions.memory.shared_scopes import sealed_scopes
from ortet.sessions.table import SessionTable
from ortet.store.sweep_retry import run_with_sweep_retry, sweep_shared

if TYPE_CHECKING:
    from ortet.hub.hub import Hub
    from ortet.hub.maintenance import Progress

_REFLOG_EXPIRY_ROW = ("care", "expired")
_MAX_NAME_ATTEMPTS = 100
"""Number of attempts to find free branch names while other processes take names."""


class ReflogExpiry(msgspec.Struct, frozen=True):
    """Marks reflog entries whose commits a sweep may delete.

    An entry is expired if its number is at most `seq` and it is older than `time`. The catalog
    keeps the newest entry of each head regardless of age. Age alone is therefore not enough: the
    old commit of such an entry may already be deleted.
    """

    time: int = 0
    seq: int = 0

    def covers(self, op: Op) -> bool:
        """Return True if the reflog entry has expired."""
        return op.seq <= self.seq and op.time < self.time


def load_reflog_expiry(hub: Hub) -> ReflogExpiry:
    """Return the stored expiry; by default nothing has expired."""
    row = hub.catalog.row(*_REFLOG_EXPIRY_ROW)
    return decode(ReflogExpiry, row.value) if row else ReflogExpiry()


def gc_roots(hub: Hub, expiry: ReflogExpiry) -> Iterator[ObjectRef]:
    """Yield every object that a sweep must keep, without the objects that it refers to.

    The roots are: heads, reflog entries that are not expired, base images of private machines,
    sealed journals and memories of sessions and scopes, and objects that only uncommitted events
    refer to.
    """
    after = ""
    while heads := hub.catalog.heads("", after):
        yield from (ObjectRef(head.oid, Kind.COMMIT) for head in heads)
        after = heads[-1].name
    seq = 0
    while ops := hub.catalog.ops(after=seq):
        for op in ops:
            if not isinstance(op.time, int):
                raise Corrupt(
                    "catalog_damaged",
                    f"line {op.seq} of the operation log is damaged: run `ortet verify`",
                )
            if not expiry.covers(op):
                yield from (ObjectRef(oid, Kind.COMMIT) for oid in (op.old, op.new) if oid)
        seq = ops[-1].seq
    for row in hub.workspace_table.all():
        if row.base:
            yield ObjectRef(Oid(row.base), Kind.IMAGE)
    for session in SessionTable(hub.catalog).all():
        if session.sealed:
            yield ObjectRef(Oid(session.sealed), Kind.JOURNAL)
        if session.beliefs:
            yield ObjectRef(Oid(session.beliefs), Kind.MEMORY)
    yield from sealed_scopes(hub.catalog)
    yield from hub.unsealed_objects()


def verify_store(hub: Hub, progress: Progress | None) -> VerifyReport:
    """Verify the catalog rows, all objects and all event chains.

    Raises:
        Corrupt: kind "verify_failed". `details["report"]` holds the report with all problems.
    """
    # Check rows first: damaged rows cannot tell which objects should exist.
    rows = [Problem(oid="", where="catalog", what=what) for what in hub.catalog.check()]
    whole = not rows
    report = verify(
        hub.objects,
        lambda: gc_roots(hub, load_reflog_expiry(hub)) if whole else iter(()),
        references_after_erasure(hub.objects),
        progress=progress,
    )
    if not report.problems and whole:  # otherwise the event chains cannot be read
        rows = [Problem(oid="", where=where, what=what) for where, what in hub.check_event_chains()]
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
    """Collect garbage; see `Maintenance.sweep`.

    With `expire_ns`, older reflog entries expire first. The expiry is stored before the sweep, so
    that `verify` no longer expects those commits.
    """
    gone = load_reflog_expiry(hub)
    if expire_ns is not None:
        require(COUNT._replace(kind="bad_age", description="an age from 0"), expire_ns=expire_ns)
        since = hub.clock.now_ns() - expire_ns
        gone = ReflogExpiry(max(since, gone.time), hub.catalog.last_op())
        if not dry_run:
            hub.catalog.put_row(*_REFLOG_EXPIRY_ROW, encode(gone))
            hub.catalog.trim_ops(since)
    least = MIN_GARBAGE_FRACTION if min_garbage is None else min_garbage
    found, walk = partial(gc_roots, hub, gone), references_after_erasure(hub.objects)
    if hub.objects.is_remote:
        return sweep_shared(hub, found, walk, dry_run=dry_run, min_garbage=least, progress=progress)
    return sweep(hub.objects, found, walk, dry_run=dry_run, min_garbage=least, progress=progress)


def export_refs(
    hub: Hub, names: Sequence[str], path: Path, *, progress: Progress | None
) -> bundle.BundleReport:
    """Write the commits of these refs to a bundle; see `Maintenance.export`."""
    heads = {name: hub.refs.resolve(name) for name in names}
    return bundle.export_bundle(hub.objects, heads, references, path, progress=progress)


def import_bundle(hub: Hub, path: Path, progress: Progress | None) -> dict[str, str]:
    """Import a bundle and return the created branches; see `Maintenance.import_`."""
    return run_with_sweep_retry(hub, lambda: _import(hub, path, progress))


def _import(hub: Hub, path: Path, progress: Progress | None) -> dict[str, str]:
    with hub.writing():
        room = BundleLimits(room=shutil.disk_usage(hub.root).free)
        found = bundle.import_bundle(hub.objects, path, references, limits=room, progress=progress)
        hub.objects.flush()
        heads, rows = found.refs, hub.adopt_erasures(found, path.name)
        detail = os.fsencode(path.name).decode("utf-8", "replace")
        for _ in range(_MAX_NAME_ATTEMPTS):
            names = _free_branches(hub, heads)
            missing = [name for name in names if hub.catalog.head(f"branch:{name}") is None]
            moves = [Move(f"branch:{name}", None, names[name]) for name in missing]
            try:
                hub.catalog.move(moves, verb="import", actor=hub.author, detail=detail, rows=rows)
                break
            except Conflict as error:  # another process created one of the branches concurrently
                if error.kind == "swept":
                    raise
                taken = error
        else:
            raise taken
    return {name: to_hex(oid) for name, oid in names.items()}


def _free_branches(hub: Hub, heads: Mapping[str, Oid]) -> dict[str, Oid]:
    """Choose branch names for the refs of a bundle.

    A name gets a number if a different branch of that name exists here or in the bundle.
    """
    names: dict[str, Oid] = {}
    for name, oid in heads.items():
        candidate, number = name, 1
        while _is_taken(hub, candidate, oid, names):
            number += 1
            candidate = (
                f"{name}-{number}" if is_ref_name(f"{name}-{number}") else f"bundle-{number}"
            )
        names[candidate] = oid
    return names


def _is_taken(hub: Hub, name: str, oid: Oid, names: Mapping[str, Oid]) -> bool:
    head = hub.catalog.head(f"branch:{name}")
    if head is None and name not in names:
        # a workspace reserves its branch name before its first commit
        return hub.workspace_table.get(name) is not None
    return oid != (head.oid if head else names[name])
