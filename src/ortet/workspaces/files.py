"""The files and processes of a workspace: snapshots, commits and restores of its machine.

`WorkspaceFiles` holds the machine together with its branch, so that files and head move together.
`Workspace`, merges, undo and sessions are built on it.

Locks: code that only reads the files takes `shared_access`; code that replaces files takes
`exclusive_access`. Both also keep a concurrent sweep from deleting objects.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from threading import RLock

from ortet._util.codec import encode
from ortet._util.failpoints import failpoint
from ortet._util.log import get_logger
from ortet.errors import Conflict, Invalid, OrtetError
from ortet.history import records
from ortet.history.commits import CommitInfo
from ortet.ids import Oid, from_hex, to_hex
from ortet.machines.base import Machine, Report
from ortet.objects.base import Kind
from ortet.store.commit import check_message
from ortet.store.pin_commit import pin_commit
from ortet.store.sweep_retry import retry_on_sweep
from ortet.workspaces.branch import WorkspaceBranch
from ortet.workspaces.commit_participant import pending_restore
from ortet.workspaces.machine_homes import OpenMachine

RECORDED_VERBS = frozenset({"undo", "redo"})
"""Moves that the reflog records even if they lead to the head: the next undo counts from them."""


class WorkspaceFiles:
    """The machine of an open workspace and the branch that its commits go to."""

    def __init__(self, branch: WorkspaceBranch, opened: OpenMachine) -> None:
        self.branch = branch
        self.store = branch.store
        self.machine, self.lock = opened
        self.is_closed = False
        self._one_commit = RLock()
        # directory that each commit rewrites: merges report no conflicts there
        self.generated_directory = ""
        self._secrets_in_use: list[list[str]] = []  # secrets of running commands

    @property
    def head(self) -> CommitInfo | None:
        """Return the last commit on the branch, or None."""
        self.branch.refresh_head()
        head = self.branch.head
        return self.store.history.info(head.oid) if head else None

    @retry_on_sweep
    def commit(self, message: str) -> CommitInfo:
        """Commit the present files and processes, or return the head if nothing has changed.

        Commits of several threads are made one after the other.
        """
        with self._one_commit, self.shared_access():
            check_message(self.store.objects, message)
            return self.record(self.snapshot(), message)

    def snapshot(self) -> Oid:
        """Snapshot the present state for a commit.

        Raises:
            Conflict: "secret_in_use" while a command with secrets runs.
        """
        if self._secrets_in_use:
            names = ", ".join(sorted({name for names in self._secrets_in_use for name in names}))
            raise Conflict(
                "secret_in_use",
                f"a command that was given {names} is running, and a commit could hold it: wait "
                "until it has ended",
            )
        return self.open_machine().snapshot()

    @contextmanager
    def secrets_in_use(self, secrets: Mapping[str, str]) -> Iterator[None]:
        """Refuse commits while a command that was given these secrets runs."""
        names = list(secrets)
        self._secrets_in_use.append(names)
        try:
            yield
        finally:
            self._secrets_in_use.remove(names)

    def current_image(self) -> records.Image:
        """Return an image of the present files without committing them."""
        with self.shared_access() as machine:
            return self.store.read_image(machine.snapshot_files())

    @contextmanager
    def exclusive_access(self) -> Iterator[None]:
        """Hold the exclusive lock: no other process reads or changes the files during the block."""
        self.open_machine()
        with self.lock.exclusive(), self.store.writing():
            yield

    def commit_pending(self, message: str) -> Oid:
        """Commit uncommitted work and return the head. Must be called inside `exclusive_access`."""
        return from_hex(self.record(self.snapshot(), message).oid)

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
        if target == safety and verb not in RECORDED_VERBS:
            return Report()
        if may_be_unreferenced:
            pin_commit(self.store, target, reachable_from=safety, branch=self.branch.name)
        failpoint("restore.before-thaw")
        image = self.branch.image_to_restore(target, processes=processes)
        self.branch.participant.begin_restore(safety)
        with self._rollback_to(safety):
            report = self.machine.restore(image)
            failpoint("restore.after-thaw")
            together = self.branch.participant.prepare_move(target)
            self.branch.move([(safety, target)], verb, detail or to_hex(target), together)
            failpoint("restore.after-move")
        self.branch.load_head_state(target)
        self.branch.participant.finish_move()
        self.machine.mark_committed(image)
        return report

    @retry_on_sweep
    def checkout_files(self, target: Oid, *, processes: bool) -> Report:
        """Restore the files of `target` without moving the branch.

        The restored files are then uncommitted changes.
        """
        with self.exclusive_access():
            head = self.branch.head.oid if self.branch.head else None
            pin_commit(self.store, target, reachable_from=head, branch=self.branch.name)
            return self.machine.restore(self.branch.image_to_restore(target, processes=processes))

    def apply_image(self, image: records.Image, message: str, parents: Sequence[Oid]) -> CommitInfo:
        """Replace the files by `image` and commit them. Must be called inside `exclusive_access`.

        Args:
            image: the files to write.
            message: the commit message.
            parents: the parents of the new commit. The first one is restored if a step fails.
        """
        with self._rollback_to(parents[0]):
            self.machine.restore(self.store.objects.put(Kind.IMAGE, encode(image)))
            return self.record(self.snapshot(), message, parents, "merge")

    def _restore_paths(self, target: Oid, verb: str, paths: Sequence[bytes]) -> Report:
        """Restore some paths. A second call with the same arguments changes nothing."""
        # imported here: a commit does not need it
        from ortet.machines.restore.restore import is_restore_noop

        store, image = self.store, self.branch.image_oid(target)
        current = self.machine.snapshot_files()
        before, after = store.read_image(current), store.read_image(image)
        if is_restore_noop(store.objects, store.trees, before, after, paths):
            return Report()
        self._commit_pending_to_reflog(current, f"before {verb}")
        failpoint("restore.before-thaw")
        return self.machine.restore(image, paths)

    def _commit_pending_to_reflog(self, image: Oid, message: str) -> None:
        """Save uncommitted work as a commit that only the reflog refers to.

        The branch does not move.
        """
        state = self.branch.put_state(image)
        if self.branch.head is None:  # no head to return to, so make a normal commit
            self.record(image, message)
        elif not self.branch.is_head_state(state):
            before = self.branch.head.oid
            safety = self.branch.put_commit(state, message, [before])
            self.branch.move([(before, safety), (safety, before)], "restore", message)
            self.machine.mark_committed(image)

    def commit_to_reflog(self, image: Oid, parent: Oid | None, message: str) -> None:
        """Save files that were based on `parent` as a reflog entry.

        Call inside `exclusive_access`.
        """
        branch = self.branch
        state, head = branch.put_state(image), branch.head
        found = branch.put_commit(state, message, [parent] if parent else [])
        if head is not None:
            branch.move([(head.oid, found), (found, head.oid)], "restore", message)

    @contextmanager
    def shared_access(self) -> Iterator[Machine]:
        """Hold the shared lock: no other process changes the files, no sweep deletes objects."""
        machine = self.open_machine()
        with self.lock.shared(), self.store.writing():
            yield machine

    @contextmanager
    def _rollback_to(self, commit: Oid) -> Iterator[None]:
        """Restore the files of `commit` if the block fails before the head has moved."""
        moves = self.branch.moves
        try:
            yield
        except BaseException:
            if self.branch.moves == moves:
                with suppress(OrtetError):  # raise the original error; the work is committed
                    self.machine.restore(self.branch.image_oid(commit))
                    self.branch.participant.abort_restore()
            raise

    def recover_interrupted_restore(self) -> None:
        """Restore the files if a process died between changing them and moving the branch.

        The session state still belongs to the earlier commit, so its files are restored. The
        present files are saved in the reflog first.
        """
        if pending_restore(self.store.catalog, self.branch.name) is None:
            return
        with self.exclusive_access():
            safety = pending_restore(self.store.catalog, self.branch.name)
            if (
                safety is not None
                and self.branch.head is not None
                and self.branch.head.oid == safety
            ):
                self._commit_pending_to_reflog(
                    self.machine.snapshot(), "found after a restore that was cut short"
                )
                self.machine.restore(self.branch.image_oid(safety))
                get_logger(__name__).warning(
                    "restored the files of branch %s: a process died while it moved the branch",
                    self.branch.name,
                )
            failpoint("restore.back")
            self.branch.participant.abort_restore()

    def open_machine(self) -> Machine:
        if self.is_closed:
            raise Invalid(
                "closed", f"workspace {self.branch.name!r} is closed: open it again with the hub"
            )
        return self.machine

    def record(
        self, image: Oid, message: str, parents: Sequence[Oid] = (), verb: str = "commit"
    ) -> CommitInfo:
        with self.branch.participant.exclusive():
            return self._record(image, message, parents, verb)

    def _record(self, image: Oid, message: str, parents: Sequence[Oid], verb: str) -> CommitInfo:
        store, state = self.store, self.branch.put_state(image)
        if not parents and self.branch.head and self.branch.is_head_state(state):
            self.machine.mark_committed(image)
            return store.history.info(self.branch.head.oid)
        before = self.branch.head.oid if self.branch.head else None
        oid = self.branch.put_commit(state, message, list(parents) or ([before] if before else []))
        self.branch.move([(before, oid)], verb, store.history.read(oid).message)
        failpoint("commit.after-move")
        self.branch.mark_committed(state)
        self.branch.participant.committed()
        self.machine.mark_committed(image)
        return store.history.info(oid)

    def reload(self) -> None:
        """Read the head again and finish an interrupted restore, after a verb was interrupted."""
        if not self.is_closed:
            self.branch.refresh_head()
            self.recover_interrupted_restore()
