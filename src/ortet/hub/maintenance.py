"""What a hub does for its store: verify, sweep, tidy, drop, and carry commits out and in."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ortet._util.validation import CALLABLE, FLAG, LIST, NUMBER, PATH, optional, require
from ortet.history.commits import CommitInfo
from ortet.history.refs import Ref, ref_text

if TYPE_CHECKING:
    from ortet.history.transfer.bundle import BundleReport
    from ortet.hub.hub import Hub
    from ortet.hub.transfer import TransferReport
    from ortet.machines.cleanup import Leftover
    from ortet.objects.gc.sweep import SweepReport
    from ortet.objects.gc.verify import VerifyReport
    from ortet.workspaces.machine_homes import MachineHomes
    from ortet.workspaces.table import WorkspaceRow, WorkspaceTable

Progress = Callable[[int, int], None]


class Maintenance:
    """The half of Hub that looks after the store. What it needs is imported where it is used."""

    root: Path
    workspace_table: WorkspaceTable
    _machines: MachineHomes

    @property
    def _hub(self) -> Hub:
        return cast("Hub", self)

    def verify(self, *, progress: Progress | None = None) -> VerifyReport:
        """Recompute every hash, follow every reference; Corrupt carries the report in details."""
        from ortet.hub.care import verify_store

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
        """Remove objects nothing refers to; with `expire_ns`, older reflog lets go first.

        A pack is rewritten when more than `min_garbage` of it (a fraction) is garbage. In a store
        that many hosts share, packs of the last hour stay.
        """
        from ortet.hub.care import sweep_store
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
        """What crashes left in the store's local part and nobody uses."""
        from ortet.machines.cleanup import find_leftovers

        found = find_leftovers(
            self.root, {one for row in self.workspace_table.all() for one in row.machines}
        )
        # read again: what was being made while we looked has its row now
        known = {one for row in self.workspace_table.all() for one in row.machines}
        return [one for one in found if one.what != "home" or Path(one.path).name not in known]

    def tidy(self) -> tuple[list[Leftover], int]:
        """Remove leftovers, and cached layers no workspace rests on: these, and how many those."""
        from ortet.machines.cleanup import remove_leftovers

        found = self.leftovers()
        remove_leftovers(found)
        return found, self._machines.prune()

    def drop(self, name: str, *, discard: bool = False) -> None:
        """Forget a workspace and its machine's files; its branch and commits stay.

        What private files hold and no commit does is committed first, unless you `discard` it.
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
        """Write commits with all they need into one file."""
        from ortet.hub.care import export_refs

        chosen = [refs] if isinstance(refs, str | CommitInfo) else refs
        require(LIST, refs=chosen)
        require(PATH, path=path)
        optional(CALLABLE, progress=progress)
        names = [ref_text(ref) for ref in chosen]
        return export_refs(self._hub, names, Path(path), progress=progress)

    def import_(
        self, path: str | os.PathLike[str], *, progress: Progress | None = None
    ) -> dict[str, str]:
        """Read a bundle; everything is verified before a branch is made. Returns branch -> oid."""
        from ortet.hub.care import import_bundle

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
        """Bring branches and tags of another hub here, or of a bundle, these or all: only objects
        that are missing travel, verified, and what an interrupted call brought is not sent again. A
        branch that has gone on there goes on here; one that is another here, or that somebody works
        on, gets a number."""
        from ortet.hub.bundling import pull_bundle
        from ortet.hub.transfer import transfer_refs

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
        """The same the other way. A branch that is another there, or that somebody works on there,
        is Conflict("not_forward"), and nothing is sent. A bundle is written whole."""
        from ortet.hub.bundling import push_bundle
        from ortet.hub.transfer import transfer_refs

        names = _check_refs(other, refs, progress)
        if isinstance(other, str | os.PathLike):
            return push_bundle(self._hub, Path(other), names, progress=progress)
        return transfer_refs(self._hub, other, names, fast_forward_only=True, progress=progress)

    # inside

    def _commit_before_drop(self, row: WorkspaceRow) -> None:
        if not self._hub.open_workspaces(row.name):
            with self._machines.lock_for_removal(row):
                pass  # else nothing is to happen, also no commit
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
