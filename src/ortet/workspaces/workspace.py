"""A workspace: a branch together with a machine that holds its files and processes.

`Workspace` is the entry point of this package. Each verb is atomic: after a failure the files are
as before. Uncommitted work is committed before a verb replaces files.

Locks: verbs that only read the files take `_shared_access`; verbs that replace files take
`exclusive_access`. Both also keep a concurrent sweep from deleting objects.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ortet._util.codec import encode
from ortet._util.failpoints import failpoint
from ortet._util.validation import (
    FLAG,
    LIST,
    POSITIVE_COUNT,
    TEXT,
    TEXT_OR_BYTES,
    optional,
    require,
)
from ortet.backends.base import Lease
from ortet.errors import Invalid, NotFound, OrtetError
from ortet.history import records
from ortet.history.commits import CommitInfo
from ortet.history.diff.tree_diff import TreeChange, diff_images
from ortet.history.refs import Ref
from ortet.ids import Oid, from_hex, to_hex
from ortet.machines.base import Loss, Machine, Report
from ortet.objects.base import Kind
from ortet.sessions.history.participants import pending_restore
from ortet.sessions.results import MACHINE_PARTS
from ortet.store.commit import check_message
from ortet.store.pin_commit import pin_commit
from ortet.store.sweep_retry import retry_on_sweep
from ortet.workspaces.commit_participant import TransactionExtras
from ortet.workspaces.machine_homes import OpenMachine
from ortet.workspaces.table import WorkspaceRow
from ortet.workspaces.undo import WorkspaceUndoMixin

if TYPE_CHECKING:
    from ortet.history.merge.text_merge import Favor
    from ortet.hub.hub import Hub
    from ortet.objects.store import Durability
    from ortet.workspaces.merge import MergeResult


class WorkspaceStatus(msgspec.Struct, frozen=True):
    """The changes that a commit would record now."""

    name: str
    engine: str
    head: str | None
    changes: list[TreeChange]
    losses: list[Loss]

    @property
    def clean(self) -> bool:
        """True if there is nothing to commit."""
        return not self.changes


class Workspace(WorkspaceUndoMixin):
    """An open workspace.

    An instance may be used by one thread at a time. Leaving the `with` block closes it.
    """

    generated_directory = (
        ""  # directory that each commit rewrites: merges report no conflicts there
    )

    def __init__(self, hub: Hub, row: WorkspaceRow, opened: OpenMachine) -> None:
        super().__init__(hub, row)
        self._machine, self._lock = opened
        self._announced_fork_ids: list[str] = []  # machine ids of the forks being made
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else self.engine
        return f"<Workspace {self.name} ({state}) {self.row.directory}>"

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # properties

    @property
    def engine(self) -> str:
        """Return the name of the engine that runs the machine."""
        return self._machine.engine

    @property
    def path(self) -> Path:
        """Return the directory where the host can read the files of the workspace."""
        return self._machine.path

    @property
    def head(self) -> CommitInfo | None:
        """Return the last commit on the branch, or None."""
        self.refresh_head()
        return self.hub.history.info(self._head.oid) if self._head else None

    @property
    def losses(self) -> list[Loss]:
        """Return what the last commit could not capture."""
        return self._machine.losses

    # commit, status and diff

    def commit(
        self, message: str = "", *, allow_secrets: bool = False, durable: Durability | None = None
    ) -> CommitInfo:
        """Commit the present files and processes.

        Args:
            message: the commit message.
            allow_secrets: commit even if the files hold a known secret.
            durable: where the commit must be stored on return; see `Session.commit`.

        Returns:
            The new commit, or the head if nothing has changed.

        Raises:
            Refused: "secret_found" if the files hold a known secret and `allow_secrets` is False.
        """
        require(TEXT._replace(kind="bad_message"), message=message)
        require(FLAG, allow_secrets=allow_secrets)
        promise = self.hub.objects.with_durability(durable)
        with self.hub.allow_secrets(allow_secrets), promise:
            return self._commit(message)

    @retry_on_sweep
    def _commit(self, message: str) -> CommitInfo:
        with self._shared_access():
            check_message(self.hub.objects, message)
            return self._record(self._snapshot(), message)

    def log(self, ref: Ref = "HEAD", *, limit: int | None = None) -> list[CommitInfo]:
        """Return the commits reachable from `ref`, newest first.

        Args:
            ref: a branch, tag or commit; the head of this branch by default.
            limit: the highest number of commits to return; None for all.
        """
        return list(self.hub.history.log(self.resolve(ref), limit=limit))

    def status(self) -> WorkspaceStatus:
        """Return the changes since the head, and what a commit could not capture."""
        with self._shared_access() as machine:
            image = self.hub.read_image(machine.snapshot_files())
            head = self.head
            before = self.image_at(from_hex(head.oid)) if head else None
            return WorkspaceStatus(
                name=self.name,
                engine=self.engine,
                head=head.oid if head else None,
                changes=diff_images(self.hub.trees, before, image),
                losses=self.losses,
            )

    def diff(self, ref: Ref = "HEAD", other: Ref | None = None) -> list[TreeChange]:
        """Return the file changes from `ref` to `other`.

        Args:
            ref: the older side; the head of this branch by default.
            other: the newer side. None means the present files, committed or not.
        """
        before = self.image_at(self.resolve(ref))
        if other is not None:
            after = self.image_at(self.resolve(other))
            return diff_images(self.hub.trees, before, after)
        with self._shared_access() as machine:
            return diff_images(
                self.hub.trees, before, self.hub.read_image(machine.snapshot_files())
            )

    # restore, rewind and fork

    @retry_on_sweep
    def restore(
        self,
        ref: Ref,
        *,
        only: Collection[str] | None = None,
        paths: Sequence[str | bytes] | str | bytes | None = None,
        restart: bool = False,
    ) -> Report:
        """Restore the files and processes of `ref` and move the branch there.

        Uncommitted work is committed first.

        Args:
            ref: the commit to restore.
            only: {"files"} restores the files and leaves the running processes as they are.
            paths: restore only these paths. The branch does not move. Uncommitted content that is
                replaced is saved in the reflog, one step back.
            restart: start services that ran at `ref` and do not run now, by their recorded
                commands.

        Returns:
            A report of what was changed and what could not be restored.

        Raises:
            Invalid: "nothing_to_restore" if `only` names something other than files and processes.
        """
        require(FLAG, restart=restart)
        optional(LIST, only=[] if isinstance(only, str) else only)
        parts = MACHINE_PARTS if only is None else {only} if isinstance(only, str) else set(only)
        if not parts or not parts <= MACHINE_PARTS:
            what = "a workspace holds files and processes only: use only={'files'}"
            raise Invalid("nothing_to_restore", what)
        chosen = [paths] if isinstance(paths, str | bytes) else paths
        optional(LIST, paths=chosen)
        for one in chosen or ():
            require(TEXT_OR_BYTES, **{"one of paths": one})
        with self.exclusive_access():
            processes = "processes" in parts
            target = self.resolve(ref)
            if restart:
                self.check_restart(target)
            report = self.restore_commit(
                target, "restore", chosen, processes=processes, may_be_unreferenced=True
            )
            return self.restart(target, report) if restart else report

    @retry_on_sweep
    def rewind(self, n: int = 1) -> Report:
        """Restore the n-th ancestor of the head on this branch.

        Raises:
            NotFound: "no_commit" if the workspace has no commit yet.
        """
        require(POSITIVE_COUNT, n=n)
        with self.exclusive_access():
            head = self.head
            if head is None:
                raise NotFound("no_commit", f"{self.name!r} has no commit yet: commit first")
            target = self.hub.history.nth_parent(from_hex(head.oid), n)
            return self.restore_commit(target, "rewind")

    @retry_on_sweep
    def fork(self, n: int = 1) -> list[Workspace]:
        """Create n private copies of the present state, each on a new branch.

        The present state is committed first. Either all n forks are created or none.
        """
        require(POSITIVE_COUNT, n=n)
        with self._shared_access() as machine, self.announce_forks(n):
            point = self._record(self._snapshot(), "fork point")
            return self.hub.fork(
                self.row, machine, from_hex(point.oid), n, self._announced_fork_ids
            )

    @contextmanager
    def announce_forks(self, n: int) -> Iterator[None]:
        """Let the machine start n forks early, before the commit made in this block is stored.

        On leaving the block, announced forks that were not used are stopped.
        """
        machine = self._open_machine()
        self._announced_fork_ids = self.hub.announce_forks(self.row, machine, n)
        try:
            yield
        finally:
            self._announced_fork_ids = []
            machine.announce_forks([])

    @retry_on_sweep
    def fork_with_extras(
        self, point: Oid, n: int, *, extras: Callable[[Sequence[str]], TransactionExtras]
    ) -> tuple[list[Workspace], list[Lease]]:
        """Create n private copies of the commit `point`.

        Args:
            point: the commit made last on this branch.
            n: the number of copies.
            extras: gives the catalog changes to write with the new branches, from their names.

        Returns:
            The new workspaces and the leases that were claimed in the same transaction.
        """
        # an announced fork can be used only once
        heirs, self._announced_fork_ids = self._announced_fork_ids, []
        with self._shared_access() as machine:
            return self.hub.fork_with_extras(self.row, machine, point, n, extras=extras, ids=heirs)

    # merge, land and close

    def merge(
        self,
        other: Workspace | Ref,
        *,
        message: str | None = None,
        favor: Favor | None = None,
        dry_run: bool = False,
    ) -> MergeResult:
        """Merge the changes that `other` made since the common ancestor.

        Uncommitted work of a private workspace is committed first, if `other` is that workspace or
        its name.

        Args:
            other: an open workspace, or a branch, tag or commit.
            message: the message of the merge commit; None for a default.
            favor: "ours" or "theirs" settles every conflict for that side.
            dry_run: return what would happen, without changing anything.

        Raises:
            Conflict: "merge_conflict" with the list of conflicts. Nothing has changed.
        """
        from ortet.workspaces import merge as merging  # imported here: a commit does not need it

        require(FLAG, dry_run=dry_run)
        optional(TEXT, message=message)
        if dry_run:
            return merging.try_merge(self, other, favor=favor)
        return merging.merge(self, other, message=message, favor=favor)

    def land(self, *, favor: Favor | None = None) -> Report:
        """Apply the changes of this private workspace to its original directory, all or nothing.

        Args:
            favor: "ours" or "theirs" settles every conflict for that side.
        """
        from ortet.workspaces import merge as merging

        return merging.land(self, favor=favor)

    def close(self) -> None:
        """Stop the machine and close this handle.

        The files of a private workspace remain and are there at the next open.
        """
        if not self._closed:
            self._closed = True
            self.hub.untrack_workspace(self)
            self._end_kernels()
            OpenMachine(self._machine, self._lock).close()

    # building blocks for merge, undo and sessions

    def current_image(self) -> records.Image:
        """Return an image of the present files without committing them."""
        with self._shared_access() as machine:
            return self.hub.read_image(machine.snapshot_files())

    @contextmanager
    def exclusive_access(self) -> Iterator[None]:
        """Hold the exclusive lock: no other process reads or changes the files during the block."""
        self._open_machine()
        with self._lock.exclusive(), self.hub.writing():
            yield

    def commit_pending(self, message: str) -> Oid:
        """Commit uncommitted work and return the head. Must be called inside `exclusive_access`."""
        return from_hex(self._record(self._snapshot(), message).oid)

    def restore_commit(
        self,
        target: Oid,
        verb: str,
        paths: Sequence[str | bytes] | None = None,
        *,
        processes: bool = True,
        detail: str = "",
        may_be_unreferenced: bool = False,  # True if only its id may refer to it
    ) -> Report:
        """Restore the files of `target` and move the branch.

        Must be called inside `exclusive_access`. With `paths`, only these paths are restored and
        the branch does not move. If a step fails before the branch has moved, the files are
        restored to the state of before.
        """
        if paths is not None:
            return self._restore_paths(target, verb, [os.fsencode(path) for path in paths])
        safety = self.commit_pending(f"before {verb}")
        if target == safety:
            return Report()
        if may_be_unreferenced:
            pin_commit(self.hub, target, reachable_from=safety, branch=self.name)
        failpoint("restore.before-thaw")
        image = self._image_to_restore(target, processes=processes)
        self.participant.begin_restore(safety)
        with self._rollback_to(safety):
            report = self._machine.restore(image)
            failpoint("restore.after-thaw")
            together = self.participant.prepare_move(target)
            self._move([(safety, target)], verb, detail or to_hex(target), together)
            failpoint("restore.after-move")
        self._load_head_state(target)
        self.participant.finish_move()
        self._machine.mark_committed(image)
        return report

    @retry_on_sweep
    def checkout_files(self, target: Oid, *, processes: bool) -> Report:
        """Restore the files of `target` without moving the branch.

        The restored files are then uncommitted changes.
        """
        with self.exclusive_access():
            head = self._head.oid if self._head else None
            pin_commit(self.hub, target, reachable_from=head, branch=self.name)
            return self._machine.restore(self._image_to_restore(target, processes=processes))

    def apply_image(self, image: records.Image, message: str, parents: Sequence[Oid]) -> CommitInfo:
        """Replace the files by `image` and commit them. Must be called inside `exclusive_access`.

        Args:
            image: the files to write.
            message: the commit message.
            parents: the parents of the new commit. The first one is restored if a step fails.
        """
        with self._rollback_to(parents[0]):
            self._machine.restore(self.hub.objects.put(Kind.IMAGE, encode(image)))
            return self._record(self._snapshot(), message, parents, "merge")

    def _restore_paths(self, target: Oid, verb: str, paths: Sequence[bytes]) -> Report:
        """Restore some paths. A second call with the same arguments changes nothing."""
        # imported here: a commit does not need it
        from ortet.machines.restore.restore import is_restore_noop

        hub, image = self.hub, self.image_oid(target)
        current = self._machine.snapshot_files()
        before, after = hub.read_image(current), hub.read_image(image)
        if is_restore_noop(hub.objects, hub.trees, before, after, paths):
            return Report()
        self._commit_pending_to_reflog(current, f"before {verb}")
        failpoint("restore.before-thaw")
        return self._machine.restore(image, paths)

    def _commit_pending_to_reflog(self, image: Oid, message: str) -> None:
        """Save uncommitted work as a commit that only the reflog refers to.

        The branch does not move.
        """
        state = self._put_state(image)
        if self._head is None:  # no head to return to, so make a normal commit
            self._record(image, message)
        elif not self._is_head_state(state):
            before = self._head.oid
            safety = self._put_commit(state, message, [before])
            self._move([(before, safety), (safety, before)], "restore", message)
            self._machine.mark_committed(image)

    @contextmanager
    def _shared_access(self) -> Iterator[Machine]:
        """Hold the shared lock: no other process changes the files, no sweep deletes objects."""
        machine = self._open_machine()
        with self._lock.shared(), self.hub.writing():
            yield machine

    @contextmanager
    def _rollback_to(self, commit: Oid) -> Iterator[None]:
        """Restore the files of `commit` if the block fails before the head has moved."""
        moves = self._moves
        try:
            yield
        except BaseException:
            if self._moves == moves:
                with suppress(OrtetError):  # raise the original error; the work is committed
                    self._machine.restore(self.image_oid(commit))
                    self.participant.abort_restore()
            raise

    def recover_interrupted_restore(self) -> Workspace:
        """Restore the files if a process died between changing them and moving the branch.

        The session state still belongs to the earlier commit, so its files are restored. The
        present files are saved in the reflog first.
        """
        if pending_restore(self.hub.catalog, self.name) is None:
            return self
        with self.exclusive_access():
            safety = pending_restore(self.hub.catalog, self.name)
            if safety is not None and self._head is not None and self._head.oid == safety:
                self._commit_pending_to_reflog(
                    self._machine.snapshot(), "found after a restore that was cut short"
                )
                self._machine.restore(self.image_oid(safety))
            failpoint("restore.back")
            self.participant.abort_restore()
        return self

    def _open_machine(self) -> Machine:
        if self._closed:
            raise Invalid(
                "closed", f"workspace {self.name!r} is closed: open it again with the hub"
            )
        return self._machine

    def _record(
        self, image: Oid, message: str, parents: Sequence[Oid] = (), verb: str = "commit"
    ) -> CommitInfo:
        hub, state = self.hub, self._put_state(image)
        if not parents and self._head and self._is_head_state(state):
            self._machine.mark_committed(image)
            return hub.history.info(self._head.oid)
        before = self._head.oid if self._head else None
        oid = self._put_commit(state, message, list(parents) or ([before] if before else []))
        self._move([(before, oid)], verb, hub.history.read(oid).message)
        failpoint("commit.after-move")
        self._head_state, self._head_journal = state, self._new_journal
        self.participant.committed()
        self._machine.mark_committed(image)
        return hub.history.info(oid)
