"""Verbs of `Hub` that maintain the store: verify, sweep, tidy, drop, and bundles and transfer."""

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
        from ortet.hub.bundling import push_bundle
        from ortet.hub.transfer import transfer_refs

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
