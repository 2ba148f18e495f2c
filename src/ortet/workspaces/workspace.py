"""A workspace: a branch together with a machine that holds its files and processes.

`Workspace` is the entry point of this package. Each verb is atomic: after a failure the files are
as before. Uncommitted work is committed before a verb replaces files. `files.py` has the commits
and restores that the verbs are made of.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

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
from ortet.errors import Invalid, NotFound
from ortet.history.commits import CommitInfo
from ortet.history.diff.tree_diff import TreeChange, diff_images
from ortet.history.refs import Ref, ref_text
from ortet.ids import Oid, from_hex
from ortet.machines.base import (
    ChangeNotice,
    Command,
    ControlSocket,
    Loss,
    Machine,
    OutputCallback,
    Report,
    Result,
)
from ortet.store.context import StoreContext
from ortet.store.sweep_retry import retry_on_sweep
from ortet.workspaces.branch import WorkspaceBranch
from ortet.workspaces.commit_participant import BranchExtras, CommitParticipant
from ortet.workspaces.files import WorkspaceFiles
from ortet.workspaces.machine_homes import OpenMachine
from ortet.workspaces.programs import INITIAL_SCREEN, SHELL, WorkspaceKernels, WorkspacePrograms
from ortet.workspaces.results import MACHINE_PARTS
from ortet.workspaces.table import WorkspaceRow

if TYPE_CHECKING:
    from ortet.history.merge.text_merge import Favor
    from ortet.machines.jobs import Job
    from ortet.machines.kernels.kernel import Kernel
    from ortet.objects.placement import Durability
    from ortet.workspaces.merge import MergeResult, OtherFiles
    from ortet.workspaces.undo import UndoResult


class WorkspaceStatus(msgspec.Struct, frozen=True):
    """The changes that a commit would record now.

    Attributes:
        name: Name of the workspace.
        engine: Engine of the machine.
        head: Id of the head commit, in hex, or None.
        changes: The file changes.
        losses: State that could not be captured.
    """

    name: str
    engine: str
    head: str | None
    changes: list[TreeChange]
    losses: list[Loss]

    @property
    def clean(self) -> bool:
        """True if there is nothing to commit."""
        return not self.changes


class WorkspaceOwner(Protocol):
    """The calls of a workspace to the manager that opened it."""

    def participant_of(self, branch: str) -> CommitParticipant: ...

    def untrack(self, workspace: Workspace) -> None: ...

    def inplace_workspace(self, directory: Path) -> AbstractContextManager[Workspace]: ...

    def private_workspace(self, name: str) -> AbstractContextManager[Workspace | None]: ...

    def announce_forks(self, row: WorkspaceRow, machine: Machine, n: int) -> list[str]: ...

    def fork_with_extras(
        self,
        row: WorkspaceRow,
        machine: Machine | None,
        point: Oid,
        n: int,
        *,
        extras: BranchExtras = ...,
        ids: Sequence[str] = ...,
    ) -> tuple[list[Workspace], list[Lease]]: ...


class Workspace:
    """An open workspace.

    An instance may be used by one thread at a time. Leaving the `with` block closes it.

    Attributes:
        files: Commits and restores of the machine, for sessions, merges and swarms.
    """

    def __init__(
        self, store: StoreContext, owner: WorkspaceOwner, row: WorkspaceRow, opened: OpenMachine
    ) -> None:
        self.store = store
        self._owner = owner
        branch = WorkspaceBranch(store, row, owner.participant_of(row.name))
        self.files = WorkspaceFiles(branch, opened)
        self._announced_fork_ids: list[str] = []  # machine ids of the forks being made

    def __repr__(self) -> str:
        state = "closed" if self.files.is_closed else self.engine
        return f"<Workspace {self.name} ({state}) {self.row.directory}>"

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # properties

    @property
    def row(self) -> WorkspaceRow:
        """The catalog row of the workspace."""
        return self.files.branch.row

    @property
    def name(self) -> str:
        """The name of the workspace, which is that of its branch."""
        return self.files.branch.name

    @property
    def engine(self) -> str:
        """The name of the engine that runs the machine."""
        return self.files.machine.engine

    @property
    def path(self) -> Path:
        """The directory where the host can read the files of the workspace."""
        return self.files.machine.path

    @property
    def head(self) -> CommitInfo | None:
        """The last commit on the branch, or None."""
        return self.files.head

    @property
    def losses(self) -> list[Loss]:
        """The parts of the machine that the last commit could not capture."""
        return self.files.machine.losses

    @cached_property
    def programs(self) -> WorkspacePrograms:
        """Commands, services, shells and ports of the machine."""
        return WorkspacePrograms(self.files)

    @cached_property
    def kernels(self) -> WorkspaceKernels:
        """Python kernels in the machine."""
        return WorkspaceKernels(self.files)

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
        promise = self.store.objects.with_durability(durable)
        with self.store.secrets.allow(allow_secrets), promise:
            return self.files.commit(message)

    def log(self, ref: Ref = "HEAD", *, limit: int | None = None) -> list[CommitInfo]:
        """Return the commits reachable from `ref`, newest first.

        Args:
            ref: a branch, tag or commit; the head of this branch by default.
            limit: the highest number of commits to return; None for all.
        """
        return list(self.store.history.log(self.resolve(ref), limit=limit))

    def resolve(self, ref: Ref) -> Oid:
        """Return the commit that `ref` means here. HEAD is the head of this branch."""
        return self.files.branch.resolve(ref)

    def status(self) -> WorkspaceStatus:
        """Return the changes since the head, and what a commit could not capture."""
        with self.files.shared_access() as machine:
            image = self.store.read_image(machine.snapshot_files())
            head = self.head
            before = self.files.branch.image_at(from_hex(head.oid)) if head else None
            return WorkspaceStatus(
                name=self.name,
                engine=self.engine,
                head=head.oid if head else None,
                changes=diff_images(self.store.trees, before, image),
                losses=self.losses,
            )

    def diff(self, ref: Ref = "HEAD", other: Ref | None = None) -> list[TreeChange]:
        """Return the file changes from `ref` to `other`.

        Args:
            ref: the older side; the head of this branch by default.
            other: the newer side. None means the present files, committed or not.
        """
        image_at = self.files.branch.image_at
        before = image_at(self.resolve(ref))
        after = self.files.current_image() if other is None else image_at(self.resolve(other))
        return diff_images(self.store.trees, before, after)

    # restore, rewind, undo and fork

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
        with self.files.exclusive_access():
            processes = "processes" in parts
            target = self.resolve(ref)
            if restart:
                self.programs.check_restart(target)
            report = self.files.restore_commit(
                target, "restore", chosen, processes=processes, may_be_unreferenced=True
            )
            return self.programs.restart(target, report) if restart else report

    @retry_on_sweep
    def rewind(self, n: int = 1) -> Report:
        """Restore the n-th ancestor of the head on this branch.

        Raises:
            NotFound: "no_commit" if the workspace has no commit yet.
        """
        require(POSITIVE_COUNT, n=n)
        with self.files.exclusive_access():
            head = self.head
            if head is None:
                raise NotFound("no_commit", f"{self.name!r} has no commit yet: commit first")
            target = self.store.history.nth_parent(from_hex(head.oid), n)
            return self.files.restore_commit(target, "rewind")

    @retry_on_sweep
    def undo(self, n: int = 1, *, dry_run: bool = False) -> UndoResult:
        """Undo the last n moves of the branch, files and session state together.

        Uncommitted files count as the first move. `redo` reverts an undo.

        Args:
            n: the number of moves.
            dry_run: return what would happen, without changing anything.

        Raises:
            NotFound: "nothing_to_undo" if there are fewer moves.
        """
        from ortet.workspaces.undo import (  # imported here: a commit does not need it
            UNDO,
            undo_or_redo,
        )

        require(POSITIVE_COUNT, n=n)
        require(FLAG, dry_run=dry_run)
        return undo_or_redo(self.files, UNDO, n, dry_run=dry_run)

    def redo(self, n: int = 1, *, dry_run: bool = False) -> UndoResult:
        """Redo the last n undone moves, unless another move followed the undo.

        Args:
            n: the number of moves.
            dry_run: return what would happen, without changing anything.

        Raises:
            NotFound: "nothing_to_redo" if there are fewer moves.
        """
        from ortet.workspaces.undo import REDO, undo_or_redo

        require(POSITIVE_COUNT, n=n)
        require(FLAG, dry_run=dry_run)
        return undo_or_redo(self.files, REDO, n, dry_run=dry_run)

    def fork(self, n: int = 1) -> list[Workspace]:
        """Create n private copies of the present state, each on a new branch.

        The present state is committed first. Either all n forks are created or none.
        """
        require(POSITIVE_COUNT, n=n)
        with self.files.shared_access() as machine, self.announce_forks(n):
            point = self.files.record(self.files.snapshot(), "fork point")
            return self._owner.fork_with_extras(
                self.row, machine, from_hex(point.oid), n, ids=self._announced_fork_ids
            )[0]

    @contextmanager
    def announce_forks(self, n: int) -> Iterator[None]:
        """Let the machine start n forks early, before the commit made in this block is stored.

        On leaving the block, announced forks that were not used are stopped.
        """
        machine = self.files.open_machine()
        self._announced_fork_ids = self._owner.announce_forks(self.row, machine, n)
        try:
            yield
        finally:
            self._announced_fork_ids = []
            machine.announce_forks([])

    @retry_on_sweep
    def fork_with_extras(
        self, point: Oid, n: int, *, extras: BranchExtras
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
        with self.files.shared_access() as machine:
            return self._owner.fork_with_extras(
                self.row, machine, point, n, extras=extras, ids=heirs
            )

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
        merging.check_favor(favor)
        with self._merge_source(other) as source:
            if dry_run:
                return merging.try_merge(self.files, source, favor=favor)
            return merging.merge(self.files, source, message=message, favor=favor)

    @contextmanager
    def _merge_source(self, other: Workspace | Ref) -> Iterator[OtherFiles]:
        """Yield the other side of a merge, with its files if it may hold uncommitted work."""
        from ortet.workspaces.merge import OtherFiles

        if isinstance(other, str | CommitInfo):
            label = ref_text(other)
            with self._owner.private_workspace(label) as private:
                yield OtherFiles(label, private.files if private is not None else None)
        elif isinstance(other, Workspace):
            self._check_same_store(other)
            yield OtherFiles(other.name, other.files)
        else:
            raise Invalid(
                "bad_ref", f"cannot merge {other!r}: give a workspace, a branch or a commit"
            )

    def _check_same_store(self, other: Workspace) -> None:
        if other.store.root.resolve() != self.store.root.resolve():
            raise Invalid(
                "other_store",
                f"{other.name!r} is in another store, {other.store.root}: export it there, import "
                "it here, then merge the branch",
            )

    def land(self, *, favor: Favor | None = None) -> Report:
        """Apply the changes of this private workspace to its original directory, all or nothing.

        Args:
            favor: "ours" or "theirs" settles every conflict for that side.
        """
        from ortet.workspaces import merge as merging

        merging.check_favor(favor)
        merging.check_landable(self.row)
        theirs = from_hex(self.commit("before landing").oid)
        with self._owner.inplace_workspace(self.row.directory) as origin:
            return merging.land(self.files, origin.files, theirs, favor)

    def close(self) -> None:
        """Stop the machine and close this handle.

        The files of a private workspace remain and are there at the next open.
        """
        if not self.files.is_closed:
            self.files.is_closed = True
            self._owner.untrack(self)
            self.kernels.close()
            OpenMachine(self.files.machine, self.files.lock).close()

    # programs

    def run(
        self,
        command: Command,
        *,
        env: Mapping[str, str | None] | None = None,
        cwd: str = "",
        timeout: float | None = None,
        stdin: bytes | str | None = None,
        output: OutputCallback | None = None,
        secrets: Mapping[str, str] | Sequence[str] | None = None,
    ) -> Result:
        """Run a command in the machine, with the workspace as working directory.

        The command gets the environment of this process, the variables that the session has
        recorded, and `env`.

        Args:
            command: a str for `sh -c`, or a list to execute.
            env: variables to set; None unsets one.
            cwd: the working directory below the workspace.
            timeout: the limit in seconds.
            stdin: the standard input.
            output: called with output as it arrives.
            secrets: names in the vault, or variable -> name. The command gets their values as
                variables. Nothing can be committed until it has ended.

        Returns:
            The result, with `exit_code`, `stdout` and `stderr`.
        """
        return self.programs.run(
            command,
            env=env,
            cwd=cwd,
            timeout=timeout,
            stdin=stdin,
            output=output,
            secrets=secrets,
        )

    def spawn(
        self,
        name: str,
        command: Command,
        *,
        env: Mapping[str, str | None] | None = None,
        cwd: str = "",
        stdin: bool = False,
    ) -> Job:
        """Start a service: a named program that runs in the background.

        Args:
            name: the name of the service.
            command: a str for `sh -c`, or a list to execute.
            env: variables to set; None unsets one.
            cwd: the working directory below the workspace.
            stdin: keep the standard input open for writing.
        """
        return self.programs.spawn(name, command, env=env, cwd=cwd, stdin=stdin)

    def shell(
        self,
        name: str = "main",
        *,
        command: Command = SHELL,
        size: tuple[int, int] = INITIAL_SCREEN,
        env: Mapping[str, str | None] | None = None,
    ) -> Job:
        """Return the shell of this name. It is started at first use.

        Args:
            name: the name of the shell.
            command: the program to start.
            size: rows and columns of its terminal.
            env: variables to set; None unsets one.
        """
        return self.programs.shell(name, command=command, size=size, env=env)

    def kernel(
        self,
        name: str = "main",
        *,
        python: str | None = None,
        env: Mapping[str, str | None] | None = None,
    ) -> Kernel:
        """Return a Python interpreter that keeps running in the machine; started at first use.

        Args:
            name: the name of the kernel. The same name gives the same kernel while it lives.
            python: the interpreter; by default that of the workspace's .venv, else this process's.
            env: variables to set; None unsets one.
        """
        return self.kernels.get(name, python=python, env=env)

    # for the host agent, watchers and servers that keep a workspace open while it is idle

    @property
    def control_socket(self) -> ControlSocket:
        """The control socket, by which other processes of this host reach the programs."""
        return self.files.open_machine().control_socket

    def wait_for_changes(self, timeout: float, wake: int = -1) -> ChangeNotice | None:
        """Wait until files of the workspace change; see `Machine.wait_for_changes`.

        No lock is held, so other processes can change the files during the wait.

        Args:
            timeout: The longest wait in seconds.
            wake: A file descriptor that ends the wait when it can be read; -1 means none.

        Returns:
            A notice of the change, or None if there was none.
        """
        return self.files.open_machine().wait_for_changes(timeout, wake)

    def suspend(self) -> None:
        """Release the open lock while the workspace is idle: others may drop it. See `resume`."""
        self.files.lock.release()

    def resume(self) -> bool:
        """Take the open lock again after `suspend` and read the head.

        Returns:
            False if the workspace was dropped, or another process died while it changed the files.
            It must then be opened again.
        """
        files = self.files
        if not files.lock.reacquire() or not files.open_machine().is_consistent:
            return False
        files.branch.participant = self._owner.participant_of(self.name)
        files.branch.refresh_head()
        files.recover_interrupted_restore()
        return True
