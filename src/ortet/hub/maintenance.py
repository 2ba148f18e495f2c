"""Verbs of `Hub` that maintain the store: verify, sweep, tidy, drop, and bundles and transfer."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec

from ortet._util.codec import decode, encode
from ortet._util.validation import CALLABLE, COUNT, FLAG, LIST, NUMBER, PATH, optional, require
from ortet.backends.base import Move, Op
from ortet.errors import Conflict, Corrupt
from ortet.history.commits import CommitInfo
from ortet.history.references import references, references_after_erasure
from ortet.history.refs import Ref, is_ref_name, ref_text
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
    from ortet.history.transfer.bundle import BundleReport
    from ortet.hub.hub import Hub
    from ortet.hub.transfer import TransferReport
    from ortet.machines.cleanup import Leftover
    from ortet.workspaces.machine_homes import MachineHomes
    from ortet.workspaces.table import WorkspaceRow, WorkspaceTable


# Verify a store, collect garbage, and export or import bundles.
#
# `gc_roots` defines which objects a sweep must keep.

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


Progress = Callable[[int, int], None]


class Maintenance:
    """Base class of `Hub` for maintenance verbs. Imports happen in the verbs."""

    root: Path
    workspace_table: WorkspaceTable
    _machines: MachineHomes

    @property
    def _hub(self) -> Hub:
        return cast("Hub", self)

    def verify(self, *, progress: Progress | None = None) -> VerifyReport:
        """Recompute every hash, follow every reference and check every event chain.

        Args:
            progress: Called with (done, total) during the work.

        Returns:
            Counts of what was checked. The report has no problems.

        Raises:
            Corrupt: kind "verify_failed". `details["report"]` lists the problems.
        """

        optional(CALLABLE, progress=progress)
        return verify_store(self._hub, progress)

    def sweep(
        self,
        *,
        dry_run: bool = False,
        expire_ns: int | None = None,
        min_garbage: float | None = None,
        progress: Progress | None = None,
    ) -> SweepReport:
        """Delete objects that nothing refers to (garbage collection).

        Args:
            dry_run: Only report; delete nothing.
            expire_ns: First expire reflog entries older than this age in nanoseconds, so that their
                commits can be deleted.
            min_garbage: Rewrite a pack if more than this fraction of it is garbage.
            progress: Called with (done, total) during the work.

        Returns:
            Counts and bytes that were freed, or with `dry_run` would be.

        In a store that several hosts share, packs of the last hour are kept.
        """
        from ortet.store.sweep_retry import check_sweep

        require(FLAG, dry_run=dry_run)
        optional(NUMBER, min_garbage=min_garbage)
        optional(CALLABLE, progress=progress)
        check_sweep(self._hub)
        if not dry_run and self._hub.catalog.rows("removing", limit=1):
            from ortet.hub.governance.remove import finish_pending_removals

            finish_pending_removals(self._hub)
        report = sweep_store(
            self._hub,
            dry_run=dry_run,
            expire_ns=expire_ns,
            min_garbage=min_garbage,
            progress=progress,
        )
        if not dry_run and self._hub.catalog.rows("browser", limit=1):
            from ortet.sessions.environment.traces import drop_unused_browser_states

            drop_unused_browser_states(self._hub._session_manager())
        return report

    def leftovers(self) -> list[Leftover]:
        """Return unused files that crashed processes left in the local part of the store."""
        from ortet.machines.cleanup import find_leftovers

        found = find_leftovers(
            self.root, {one for row in self.workspace_table.all() for one in row.machines}
        )
        # Read the rows again: a machine that was created during the search has its row now.
        known = {one for row in self.workspace_table.all() for one in row.machines}
        return [one for one in found if one.what != "home" or Path(one.path).name not in known]

    def tidy(self) -> tuple[list[Leftover], int]:
        """Delete leftovers of crashes, and cached layers that no workspace uses.

        Returns:
            The deleted leftovers, and the number of deleted layers.
        """
        from ortet.machines.cleanup import remove_leftovers

        found = self.leftovers()
        remove_leftovers(found)
        return found, self._machines.prune()

    def drop(self, name: str, *, discard: bool = False) -> None:
        """Delete a workspace and the files of its machine. Its branch and commits stay.

        Private files that are not committed are committed first.

        Args:
            name: Name of the workspace.
            discard: Delete uncommitted private files without a commit.

        Raises:
            NotFound: If there is no such workspace.
            Conflict: If another process has the machine open. Nothing is changed then.
        """
        require(FLAG, discard=discard)
        row = self.workspace_table.need(name)
        if not discard:
            self._commit_before_drop(row)
        for workspace in self._hub.open_workspaces(name):
            workspace.close()
        with self._machines.lock_for_removal(row):
            self.workspace_table.drop(row)
            self._machines.remove(row)

    def export(
        self,
        refs: Ref | Sequence[Ref],
        path: str | os.PathLike[str],
        *,
        progress: Progress | None = None,
    ) -> BundleReport:
        """Write commits, with all objects that they need, to one bundle file.

        Args:
            refs: One or several branches, tags or commits.
            path: The file to write.
            progress: Called with (done, total) during the work.

        Raises:
            NotFound: If a ref does not exist.
        """

        chosen = [refs] if isinstance(refs, str | CommitInfo) else refs
        require(LIST, refs=chosen)
        require(PATH, path=path)
        optional(CALLABLE, progress=progress)
        names = [ref_text(ref) for ref in chosen]
        return export_refs(self._hub, names, Path(path), progress=progress)

    def import_(
        self, path: str | os.PathLike[str], *, progress: Progress | None = None
    ) -> dict[str, str]:
        """Read a bundle file and create its branches.

        All objects are verified before a branch is created. A branch name that is taken gets a
        number.

        Args:
            path: The bundle file.
            progress: Called with (done, total) during the work.

        Returns:
            Map from branch name to commit id.

        Raises:
            Invalid: If the file is not a bundle.
            Refused: kind "bundle_too_large", if there is not enough free space.
        """

        require(PATH, path=path)
        optional(CALLABLE, progress=progress)
        return import_bundle(self._hub, Path(path), progress)

    def pull(
        self,
        other: Hub | str | os.PathLike[str],
        refs: str | Sequence[str] = (),
        *,
        progress: Progress | None = None,
    ) -> TransferReport:
        """Copy branches and tags from another hub or a bundle into this store.

        Only missing objects are sent, and they are verified. After an interruption, the next call
        does not send the same objects again. A branch that is ahead in the other store moves
        forward here. A branch that has diverged, or is in use here, is created under a name with a
        number.

        Args:
            other: An open hub, or the path of a bundle.
            refs: Names of branches and tags. The default is all.
            progress: Called with (done, total) during the work.

        Raises:
            NotFound: kind "no_ref", if a name does not exist in the other store.
        """
        from ortet.hub.transfer import pull_bundle, transfer_refs

        names = _check_refs(other, refs, progress)
        if isinstance(other, str | os.PathLike):
            return pull_bundle(self._hub, Path(other), names, progress=progress)
        return transfer_refs(other, self._hub, names, fast_forward_only=False, progress=progress)

    def push(
        self,
        other: Hub | str | os.PathLike[str],
        refs: str | Sequence[str] = (),
        *,
        progress: Progress | None = None,
    ) -> TransferReport:
        """Copy branches and tags to another hub or a bundle.

        A bundle file is always written as a whole.

        Args:
            other: An open hub, or the path of a bundle.
            refs: Names of branches and tags. The default is all.
            progress: Called with (done, total) during the work.

        Raises:
            Conflict: kind "not_forward", if a branch has diverged there or is in use there. Nothing
                is sent then.
            NotFound: kind "no_ref", if a name does not exist in this store.
        """
        from ortet.hub.transfer import push_bundle, transfer_refs

        names = _check_refs(other, refs, progress)
        if isinstance(other, str | os.PathLike):
            return push_bundle(self._hub, Path(other), names, progress=progress)
        return transfer_refs(self._hub, other, names, fast_forward_only=True, progress=progress)

    # internal

    def _commit_before_drop(self, row: WorkspaceRow) -> None:
        if not self._hub.open_workspaces(row.name):
            with self._machines.lock_for_removal(row):
                pass  # fails before the commit if another process has the machine open
        if self._machines.exists(row):
            with self._hub.private_workspace(row.name) as private:
                if private is not None:
                    private.commit("before drop")


def _check_refs(
    other: object, refs: str | Sequence[str], progress: Progress | None
) -> Sequence[str]:
    names = [refs] if isinstance(refs, str) else refs
    require(LIST, refs=names)
    optional(CALLABLE, progress=progress)
    if isinstance(other, str | os.PathLike):
        require(PATH, other=other)
    return names
