"""The workspace manager of a hub: registers, opens, finds and forks workspaces."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ortet._util.validation import check_text
from ortet.backends.base import Lease
from ortet.errors import Conflict, Invalid, Refused, Unsupported
from ortet.history.refs import is_ref_name
from ortet.ids import Oid
from ortet.machines.base import Machine
from ortet.store.context import StoreContext
from ortet.store.sweep_retry import run_with_sweep_retry
from ortet.workspaces.commit_participant import (
    NO_EXTRAS,
    BranchExtras,
    CommitParticipant,
    NoParticipant,
)
from ortet.workspaces.cross_host import recover_former_files, take_over_workspace
from ortet.workspaces.forks import ForkRequest, WorkspaceForks
from ortet.workspaces.machine_homes import HostEngines, MachineHomes, OpenMachine
from ortet.workspaces.table import (
    FilesMode,
    RootScope,
    WorkspaceRow,
    WorkspaceTable,
    check_outside_store,
    existing_directory,
)
from ortet.workspaces.workspace import Workspace

_MAX_NAME_ATTEMPTS = 100
"""Number of attempts to find a free workspace name while other processes take names."""


class WorkspaceManager:
    """The workspaces of one hub.

    Attributes:
        table: Rows of all workspaces of the store.
        machines: Homes of the machines on this host.
        engines: Engines of this host.
        find_participant: Returns the participant that stores session state in commits of a branch.
            The session manager sets it.
    """

    def __init__(self, store: StoreContext, engines: HostEngines) -> None:
        self.store = store
        self.engines = engines
        self.table = WorkspaceTable(store.catalog, store.host)
        self.machines = MachineHomes(store.root, engines)
        self.find_participant: Callable[[str], CommitParticipant] = lambda _: NoParticipant()
        self._forks = WorkspaceForks(store, self.table, self.machines, engines)
        self._open: list[Workspace] = []

    def close(self) -> None:
        """Close all open workspaces, then the engines. Every step runs even if one fails."""
        with ExitStack() as last:
            last.callback(self.machines.close)
            for workspace in list(self._open):
                last.callback(workspace.close)

    # open

    def open(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        name: str | None = None,
        engine: str = "auto",
        files: FilesMode | None = None,
        scope: RootScope | None = None,
        limits: Mapping[str, Any] | None = None,
        network: str | None = None,
    ) -> Workspace:
        """Open a directory as a workspace; see `Hub.workspace`."""
        if path is None:
            if name is None:
                raise Invalid("bad_workspace", "give a directory, or name=… of one opened before")
            return self.open_row(self.table.limit(self.table.need(name), limits, network))
        directory = check_outside_store(self.store.root, existing_directory(path))
        mode, chosen = self.resolve_files_and_engine(engine, files)
        forks = "" if engine == "auto" else engine
        row = self.table.find_at(directory, mode, chosen)
        if row is None:
            best: RootScope = self.engines.scope if mode == "private" else "workspace"
            draft = self.table.draft(directory, mode, chosen)
            draft = replace(draft, scope=scope or best, forks=forks)
            row = self._register(self.table.limit(draft, limits, network), name)
        if name not in (None, row.name):
            raise Conflict(
                "name_taken",
                f"{directory} is workspace {row.name!r} already: leave the name out to go on",
            )
        row = replace(row, forks=forks or row.forks)
        return self.open_row(self.table.limit(row, limits, network))

    def open_row(self, row: WorkspaceRow) -> Workspace:
        """Open the workspace of a row."""
        if row.files == "inplace" or row.engine == "folder":
            self.check_local_host(row.name, row.host)
        elif self.store.is_shared:
            return self._open_shared(row)
        return self._open_local(row)

    def reopen(self, name: str, directory: Path) -> Workspace:
        """Open the in-place workspace that a pointer file in `directory` names.

        A moved directory keeps its history. A copied directory (the first one still exists) gets a
        history of its own.
        """
        row = self.locate(name, directory)
        if row is not None:
            return self.open_row(row)
        # After `drop` the branch still exists; the directory continues on it.
        left = self.store.refs.get(name) and self.table.get(name) is None
        return self.open(directory, name=name if left else None)

    def locate(self, name: str, directory: Path) -> WorkspaceRow | None:
        """Return the workspace row that `reopen` opens, or None.

        None means that the directory has no history in this store yet. If the directory has moved,
        the row is updated.
        """
        directory = directory.resolve()
        row = self.table.get(name) if name else None
        if row is None or row.files != "inplace":
            return self.table.find_at(directory, "inplace", "folder")
        if row.directory == directory:
            return row
        if os.path.lexists(row.directory):  # the original still exists, so this directory is a copy
            return self.table.find_at(directory, "inplace", "folder")
        return self.table.move(row, directory)

    @contextmanager
    def inplace_workspace(self, directory: Path) -> Iterator[Workspace]:
        """Yield the in-place workspace of a directory.

        If this hub already has it open, that workspace is used and stays open. Otherwise it is open
        for the block only.
        """
        row = self.table.find_at(directory, "inplace", "folder")
        if row is not None and (found := self.find_open(row.name)):
            yield found[0]
            return
        with self.open(directory) as workspace:
            yield workspace

    @contextmanager
    def private_workspace(self, name: str) -> Iterator[Workspace | None]:
        """Yield the private workspace of this name, or None.

        None means that this host has no private workspace of that name; the name may be a branch,
        tag or commit. A workspace that this hub has open is used and stays open. Otherwise it is
        open for the block only.
        """
        row = self.table.get(name) if is_ref_name(name) else None
        if row is None or row.files != "private" or row.host != self.store.host:
            yield None
        elif found := self.find_open(name):
            yield found[0]
        else:
            with self._open_exclusively(row) as workspace:
                yield workspace

    def find_open(self, name: str = "") -> list[Workspace]:
        """Return the workspaces that this hub has open; with `name`, only those of that name."""
        return [workspace for workspace in self._open if name in ("", workspace.name)]

    def untrack(self, workspace: Workspace) -> None:
        """Remove a workspace from the list of open ones. `Workspace.close` calls this."""
        if workspace in self._open:
            self._open.remove(workspace)

    def participant_of(self, branch: str) -> CommitParticipant:
        """Return the participant that stores session state in commits of a branch.

        A branch without a session gets `NoParticipant`.
        """
        if self.store.catalog.row("session-branch", branch) is None:
            return NoParticipant()
        return self.find_participant(branch)

    # forks

    def fork(
        self,
        row: WorkspaceRow,
        machine: Machine | None,
        point: Oid,
        n: int,
    ) -> list[Workspace]:
        """Create n private workspaces at a commit, all or none.

        Args:
            row: the workspace to fork.
            machine: the machine that has just committed `point`; None if there is none.
            point: the commit.
            n: the number of forks.
        """
        return self.fork_with_extras(row, machine, point, n, may_be_unreferenced=machine is None)[0]

    def fork_with_extras(
        self,
        row: WorkspaceRow,
        machine: Machine | None,
        point: Oid,
        n: int,
        *,
        extras: BranchExtras = lambda _: NO_EXTRAS,
        suffixes: Sequence[str] = (),
        ids: Sequence[str] = (),
        may_be_unreferenced: bool = False,
    ) -> tuple[list[Workspace], list[Lease]]:
        """Create n private workspaces at a commit, all or none, with further catalog changes.

        Args:
            row: the workspace to fork.
            machine: the machine that has just committed `point`; None if there is none.
            point: the commit.
            n: the number of forks.
            extras: gives the catalog changes to write with the new branches, from their names.
            suffixes: names of the forks below that of the parent; numbers by default.
            ids: ids of announced machines.
            may_be_unreferenced: True if only its id may refer to the commit.

        Returns:
            The workspaces, and the leases claimed in the same transaction.
        """
        request = ForkRequest(row, point, n, extras, suffixes, ids, may_be_unreferenced)
        rows, opened, leases = self._forks.create(machine, request)
        pairs = zip(rows, opened, strict=True)
        return [self._track(child, machine) for child, machine in pairs], leases

    def announce_forks(self, row: WorkspaceRow, machine: Machine, n: int) -> list[str]:
        """Announce forks of the machine's next image and return their ids."""
        return self._forks.announce_forks(row, machine, n)

    def fork_engine(self, row: WorkspaceRow, point: Oid) -> str:
        """Return the engine of forks of a workspace at a commit."""
        return self._forks.engine_of(row, point)

    # engines and hosts

    def check_engine(self, engine: str) -> None:
        """Raise Unsupported if this host cannot run the engine."""
        self.machines.check(engine)

    def resolve_files_and_engine(
        self, engine: str, files: FilesMode | None
    ) -> tuple[FilesMode, str]:
        """Return the files mode and the engine name that the two arguments mean.

        Raises Invalid if they contradict each other or the engine is unknown.
        """
        check_text(engine=engine)
        if files not in (None, "inplace", "private"):
            raise Invalid("bad_workspace", f"files={files!r}: give 'inplace' or 'private'")
        if files == "inplace" and engine in ("overlay", "criu"):
            raise Invalid("bad_workspace", f"engine={engine!r} is private: leave files= out")
        private = files == "private" or engine in ("overlay", "criu")
        mode: FilesMode = "private" if private else "inplace"
        if engine == "auto":
            engine = self.engines.strongest() if mode == "private" else "folder"
        self.engines.find(engine)  # raises Invalid if the engine is unknown
        return mode, engine

    def find_row(self, path: str, engine: str, files: FilesMode | None) -> WorkspaceRow | None:
        """Return the workspace row of a directory, or None if it is not a workspace yet."""
        return self.table.find_at(Path(path), *self.resolve_files_and_engine(engine, files))

    def check_local_host(self, name: str, host: str) -> None:
        """Raise Refused("other_host") if a directory belongs to another host of a shared store.

        The same path on two hosts is not the same directory. A server opens workspaces by name, and
        a shared store knows the directories of all hosts. A store on the local disk moves together
        with its directories, for example into a container with another host name. It is not
        checked.
        """
        shared = self.store.allows_lease_handover or self.store.is_shared
        if shared and not self.store.is_local_host(host):
            raise Refused(
                "other_host",
                f"the files of {name!r} are in a directory of another host: work on it there, "
                "fork it from a commit, or give workspace= to go on in the directory of this host",
            )

    # private

    def _register(self, draft: WorkspaceRow, name: str | None) -> WorkspaceRow:
        """Insert a workspace row for a directory, or return the row of a concurrent process."""
        self.machines.check(draft.engine)  # fail before anything is stored
        return run_with_sweep_retry(self.store, lambda: self._register_once(draft, name))

    def _register_once(self, draft: WorkspaceRow, name: str | None) -> WorkspaceRow:
        store, table = self.store, self.table
        with store.writing():  # no sweep may delete the base image before the row refers to it
            if draft.files == "private":
                base = self.machines.capture_directory(draft, store.new_id())
                draft = replace(draft, base=base)
                store.objects.flush()
            draft = replace(draft, machine=store.new_id())
            for _ in range(_MAX_NAME_ATTEMPTS):
                free = table.free_name(draft) if name is None else table.claim(name, draft)
                try:
                    return table.add(replace(draft, name=free))
                except Conflict as error:
                    if name is not None or error.kind == "swept":
                        raise
                    taken = error
            raise taken

    @contextmanager
    def _open_exclusively(self, row: WorkspaceRow) -> Iterator[Workspace]:
        try:
            workspace = self.open_row(row)
        except Conflict as error:
            if error.kind != "machine_open":
                raise
            raise Conflict(
                error.kind,
                f"{row.name!r} is open in another process, so its uncommitted work cannot be "
                "recorded: close it there first, or give the id of its last commit",
            ) from error
        with workspace:
            yield workspace

    def _open_shared(self, row: WorkspaceRow) -> Workspace:
        """Open a private workspace that another host of the shared store may have had open."""
        moved = take_over_workspace(self.store, row, self._engine_on_this_host)
        workspace = self._open_local(moved)
        try:
            recover_former_files(workspace.files, self.machines)
        except BaseException:
            workspace.close()
            raise
        return workspace

    def _engine_on_this_host(self, row: WorkspaceRow) -> str:
        """Return the engine that the workspace had, or another one if this host cannot run it."""
        had = [row.engine, *(left.engine for left in row.left.values())]
        for engine in ("criu", row.engine):
            if engine in had:
                with suppress(Unsupported):
                    self.check_engine(engine)
                    return engine
        _, engine = self.resolve_files_and_engine("auto", "private")
        self.check_engine(engine)
        if engine == "folder":
            raise Unsupported(
                "engine_unusable",
                f"{row.name!r} has private files, and this host has no engine for such: `ortet "
                "doctor` says why; hub.restore(commit, to=DIR) writes its files into a directory",
            )
        return engine

    def _open_local(self, row: WorkspaceRow) -> Workspace:
        opened = self.machines.open(row, lambda: self._initial_image(row))
        try:
            workspace = self._track(row, opened)
        except BaseException:
            opened.close()
            raise
        try:
            workspace.files.recover_interrupted_restore()
        except BaseException:
            workspace.close()
            raise
        return workspace

    def _track(self, row: WorkspaceRow, opened: OpenMachine) -> Workspace:
        workspace = Workspace(self.store, self, row, opened)
        self._open.append(workspace)
        return workspace

    def _initial_image(self, row: WorkspaceRow) -> Oid | None:
        self.table.need(row.name)
        if row.files == "inplace":
            return None
        head = self.store.catalog.head(f"branch:{row.name}")
        return self.store.image_oid(head.oid, row.empty_image) if head else Oid(row.base)
