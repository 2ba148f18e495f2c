"""A workspace: a branch with a machine. Each verb is atomic and has a way back."""

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
    """What a commit would record now."""

    name: str
    engine: str
    head: str | None
    changes: list[TreeChange]
    losses: list[Loss]

    @property
    def clean(self) -> bool:
        return not self.changes


class Workspace(WorkspaceUndoMixin):
    """An open workspace. One thread at a time; leaving the `with` block closes it."""

    generated_directory = (
        ""  # a directory whose files are written anew at each commit: no conflicts there
    )

    def __init__(self, hub: Hub, row: WorkspaceRow, opened: OpenMachine) -> None:
        super().__init__(hub, row)
        self._machine, self._lock = opened
        self._announced_fork_ids: list[str] = []  # ids of the machines of forks that are being made
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else self.engine
        return f"<Workspace {self.name} ({state}) {self.row.directory}>"

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # what it is

    @property
    def engine(self) -> str:
        return self._machine.engine

    @property
    def path(self) -> Path:
        """Where the host can read its files."""
        return self._machine.path

    @property
    def head(self) -> CommitInfo | None:
        self.refresh_head()
        return self.hub.history.info(self._head.oid) if self._head else None

    @property
    def losses(self) -> list[Loss]:
        """What the last commit could not capture."""
        return self._machine.losses

    # commit

    def commit(
        self, message: str = "", *, allow_secrets: bool = False, durable: Durability | None = None
    ) -> CommitInfo:
        """Record the present state; with nothing changed, the head is returned. One that would hold
        a secret that is known is Refused("secret_found"), unless you allow it. `durable`: see
        Session.commit."""
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
        """Commits reachable from `ref`, by default from this branch, newest first."""
        return list(self.hub.history.log(self.resolve(ref), limit=limit))

    def status(self) -> WorkspaceStatus:
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
        """From `ref` to `other`, or to the present files when `other` is not given."""
        before = self.image_at(self.resolve(ref))
        if other is not None:
            after = self.image_at(self.resolve(other))
            return diff_images(self.hub.trees, before, after)
        with self._shared_access() as machine:
            return diff_images(
                self.hub.trees, before, self.hub.read_image(machine.snapshot_files())
            )

    # back and forth

    @retry_on_sweep
    def restore(
        self,
        ref: Ref,
        *,
        only: Collection[str] | None = None,
        paths: Sequence[str | bytes] | str | bytes | None = None,
        restart: bool = False,
    ) -> Report:
        """Make the files those of `ref` and move the branch there; uncommitted work is kept first.
        Processes of that commit come back too; with `only` {"files"} those that run stay instead.

        With `paths`, only these come back and the branch stays where it is; what they replace,
        when it was not committed, is one step back in the reflog. With `restart`, services that ran
        then and do not run now are started by their commands.
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
        """Restore the n-th commit back on this branch."""
        require(POSITIVE_COUNT, n=n)
        with self.exclusive_access():
            head = self.head
            if head is None:
                raise NotFound("no_commit", f"{self.name!r} has no commit yet: commit first")
            target = self.hub.history.nth_parent(from_hex(head.oid), n)
            return self.restore_commit(target, "rewind")

    @retry_on_sweep
    def fork(self, n: int = 1) -> list[Workspace]:
        """n private copies as of now, each a branch of its own; all or none."""
        require(POSITIVE_COUNT, n=n)
        with self._shared_access() as machine, self.announce_forks(n):
            point = self._record(self._snapshot(), "fork point")
            return self.hub.fork(
                self.row, machine, from_hex(point.oid), n, self._announced_fork_ids
            )

    @contextmanager
    def announce_forks(self, n: int) -> Iterator[None]:
        """A commit and n forks of it are made within: these may begin before that is there."""
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
        """n private copies as of the commit just made, and what `minds` adds to them."""
        heirs, self._announced_fork_ids = self._announced_fork_ids, []  # which are there once
        with self._shared_access() as machine:
            return self.hub.fork_with_extras(self.row, machine, point, n, extras=extras, ids=heirs)

    # together again

    def merge(
        self,
        other: Workspace | Ref,
        *,
        message: str | None = None,
        favor: Favor | None = None,
        dry_run: bool = False,
    ) -> MergeResult:
        """Bring in what `other` changed since the common ancestor.

        What a private workspace, given itself or by name, has not committed is committed first.
        Conflicts are data: Conflict("merge_conflict") lists them and nothing is touched. `favor`
        ("ours" or "theirs") settles them; `dry_run` only returns what would happen.
        """
        from ortet.workspaces import merge as merging  # here: a commit does without it

        require(FLAG, dry_run=dry_run)
        optional(TEXT, message=message)
        if dry_run:
            return merging.try_merge(self, other, favor=favor)
        return merging.merge(self, other, message=message, favor=favor)

    def land(self, *, favor: Favor | None = None) -> Report:
        """Apply what this private workspace changed to the original directory, all or nothing."""
        from ortet.workspaces import merge as merging

        return merging.land(self, favor=favor)

    def close(self) -> None:
        """Stop the machine; a private one's files stay and are there at the next open."""
        if not self._closed:
            self._closed = True
            self.hub.untrack_workspace(self)
            self._end_kernels()
            OpenMachine(self._machine, self._lock).close()

    # what merging is made of

    def current_image(self) -> records.Image:
        """The present files, not committed."""
        with self._shared_access() as machine:
            return self.hub.read_image(machine.snapshot_files())

    @contextmanager
    def exclusive_access(self) -> Iterator[None]:
        """No other process looks at the files, or moves them, during the block."""
        self._open_machine()
        with self._lock.exclusive(), self.hub.writing():
            yield

    def commit_pending(self, message: str) -> Oid:
        """Within `moving`: commit what is not committed; returns the head."""
        return from_hex(self._record(self._snapshot(), message).oid)

    def restore_commit(
        self,
        target: Oid,
        verb: str,
        paths: Sequence[str | bytes] | None = None,
        *,
        processes: bool = True,
        detail: str = "",
        may_be_unreferenced: bool = False,  # perhaps only its id leads to it
    ) -> Report:
        """Within `moving`: bring the files, or some, to a commit, and when all, the branch too."""
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
        """The files of a commit, to be committed or not: the branch stays where it is."""
        with self.exclusive_access():
            head = self._head.oid if self._head else None
            pin_commit(self.hub, target, reachable_from=head, branch=self.name)
            return self._machine.restore(self._image_to_restore(target, processes=processes))

    def apply_image(self, image: records.Image, message: str, parents: Sequence[Oid]) -> CommitInfo:
        """Within `moving`: make the files those of an image and commit them with these parents."""
        with self._rollback_to(parents[0]):
            self._machine.restore(self.hub.objects.put(Kind.IMAGE, encode(image)))
            return self._record(self._snapshot(), message, parents, "merge")

    def _restore_paths(self, target: Oid, verb: str, paths: Sequence[bytes]) -> Report:
        """Bring some paths to a commit; done twice, the second time changes nothing at all."""
        from ortet.machines.restore.restore import is_restore_noop  # here: a commit does without it

        hub, image = self.hub, self.image_oid(target)
        current = self._machine.snapshot_files()
        before, after = hub.read_image(current), hub.read_image(image)
        if is_restore_noop(hub.objects, hub.trees, before, after, paths):
            return Report()
        self._commit_pending_to_reflog(current, f"before {verb}")
        failpoint("restore.before-thaw")
        return self._machine.restore(image, paths)

    def _commit_pending_to_reflog(self, image: Oid, message: str) -> None:
        """Commit what is not committed to the reflog only: the branch stays where it is."""
        state = self._put_state(image)
        if self._head is None:  # then there is no place to come back to
            self._record(image, message)
        elif not self._is_head_state(state):
            before = self._head.oid
            safety = self._put_commit(state, message, [before])
            self._move([(before, safety), (safety, before)], "restore", message)
            self._machine.mark_committed(image)

    @contextmanager
    def _shared_access(self) -> Iterator[Machine]:
        """No other process moves the files during the block, and no sweep takes objects."""
        machine = self._open_machine()
        with self._lock.shared(), self.hub.writing():
            yield machine

    @contextmanager
    def _rollback_to(self, commit: Oid) -> Iterator[None]:
        """When the block fails before the head has moved, the files are those of `commit` again."""
        moves = self._moves
        try:
            yield
        except BaseException:
            if self._moves == moves:
                with suppress(OrtetError):  # the cause is what counts, and nothing is lost
                    self._machine.restore(self.image_oid(commit))
                    self.participant.abort_restore()
            raise

    def recover_interrupted_restore(self) -> Workspace:
        """If a process was killed between moving the files and moving the branch, its mind knows
        those of before, so they come back; what else is found is kept in the reflog."""
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
