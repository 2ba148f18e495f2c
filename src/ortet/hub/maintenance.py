"""Verbs of the hub that maintain the store: verify, sweep, tidy and drop."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ortet._util.validation import CALLABLE, FLAG, NUMBER, PATH, optional, require
from ortet.errors import Invalid
from ortet.workspaces.manager import WorkspaceManager

if TYPE_CHECKING:
    from ortet.hub.backup import BackupReport
    from ortet.machines.cleanup import Leftover
    from ortet.objects.gc.sweep import Progress, SweepReport
    from ortet.objects.gc.verify import VerifyReport
    from ortet.sessions.manager import SessionManager
    from ortet.workspaces.table import WorkspaceRow


class Maintenance:
    """Verification, garbage collection and clean-up of a store. Imports happen in the verbs."""

    def __init__(
        self, workspaces: WorkspaceManager, sessions: Callable[[], SessionManager]
    ) -> None:
        self._store = workspaces.store
        self._workspaces = workspaces
        self._sessions = sessions  # a function, because dropping files needs no session code

    def verify(
        self,
        *,
        progress: Progress | None = None,
        repair: bool = False,
        sample: float = 1.0,
        restore: bool = False,
    ) -> VerifyReport:
        """Recompute every hash, follow every reference and check every event chain.

        The bundles of archived sessions are read too, and the files of workspaces on this host
        whose times did not change are compared with what was captured.

        Args:
            progress: Called with (done, total) during the work.
            repair: First write the rows of effects again that are missing, damaged or behind the
                journals.
            sample: Read only this fraction of the stored data, chosen at random. All references
                and all event chains are checked.
            restore: Also restore the files of every branch and tag, and compare them.

        Returns:
            Counts of what was checked. The report has no problems.

        Raises:
            Corrupt: kind "verify_failed". `details["report"]` lists the problems.
        """
        from ortet.hub.verify import verify_store

        optional(CALLABLE, progress=progress)
        require(FLAG, repair=repair)
        require(NUMBER, sample=sample)
        require(FLAG, restore=restore)
        if not 0 < sample <= 1:
            raise Invalid("bad_value", f"sample={sample}: give a fraction above 0 and up to 1")
        return verify_store(
            self._sessions(), progress, repair=repair, sample=sample, restore=restore
        )

    def backup(
        self, path: str | os.PathLike[str], *, progress: Progress | None = None
    ) -> BackupReport:
        """Write a backup of the store into a directory, while others go on to write.

        The backup is a store that shows one moment. To restore, open it, or copy it to the place
        of the lost store. A second backup into the same directory copies what is new. If this
        process is killed, the backup of before is whole. Uncommitted files of private machines are
        not part of a backup.

        Args:
            path: A directory of its own. It is created.
            progress: Called with (done, total) during the work.

        Returns:
            Counts and bytes of the files that were copied.

        Raises:
            Conflict: "not_a_backup" or "backup_changed" if the directory holds a store that no
                backup left there.
            Unsupported: "remote_store" if the store is not a directory of this host.
        """
        from ortet.hub.backup import backup_store

        require(PATH, path=path)
        optional(CALLABLE, progress=progress)
        return backup_store(self._store, Path(path), progress=progress)

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
        from ortet.hub.sweep import sweep_store
        from ortet.store.sweep_retry import check_sweep

        require(FLAG, dry_run=dry_run)
        optional(NUMBER, min_garbage=min_garbage)
        optional(CALLABLE, progress=progress)
        check_sweep(self._store)
        if not dry_run and self._store.catalog.rows("removing", limit=1):
            from ortet.hub.governance.remove import finish_pending_removals

            finish_pending_removals(self._store)
        sessions = self._sessions()
        report = sweep_store(
            sessions,
            dry_run=dry_run,
            expire_ns=expire_ns,
            min_garbage=min_garbage,
            progress=progress,
        )
        if not dry_run:
            from ortet.machines.restore.checkout import remove_abandoned

            remove_abandoned(self._store.root / "local")
        if not dry_run and self._store.catalog.rows("browser", limit=1):
            from ortet.hub.browser_states import drop_unused_browser_states

            drop_unused_browser_states(sessions)
        return report

    def leftovers(self) -> list[Leftover]:
        """Return unused files that crashed processes left in the local part of the store."""
        from ortet.machines.cleanup import find_leftovers

        found = find_leftovers(
            self._store.root, {one for row in self._workspaces.table.all() for one in row.machines}
        )
        # Read the rows again: a machine that was created during the search has its row now.
        known = {one for row in self._workspaces.table.all() for one in row.machines}
        return [one for one in found if one.what != "home" or Path(one.path).name not in known]

    def tidy(self) -> tuple[list[Leftover], int]:
        """Delete leftovers of crashes, and cached layers that no workspace uses.

        Returns:
            The deleted leftovers, and the number of deleted layers.
        """
        from ortet.machines.cleanup import remove_leftovers

        found = self.leftovers()
        remove_leftovers(found)
        return found, self._workspaces.machines.prune()

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
        row = self._workspaces.table.need(name)
        if not discard:
            self._commit_before_drop(row)
        for workspace in self._workspaces.find_open(name):
            workspace.close()
        with self._workspaces.machines.lock_for_removal(row):
            self._workspaces.table.drop(row)
            self._workspaces.machines.remove(row)

    # internal

    def _commit_before_drop(self, row: WorkspaceRow) -> None:
        if not self._workspaces.find_open(row.name):
            with self._workspaces.machines.lock_for_removal(row):
                pass  # fails before the commit if another process has the machine open
        if self._workspaces.machines.exists(row):
            with self._workspaces.private_workspace(row.name) as private:
                if private is not None:
                    private.commit("before drop")
