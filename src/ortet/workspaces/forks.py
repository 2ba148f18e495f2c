"""Forking of workspaces: new branches with machines of their own."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from msgspec.structs import replace

from ortet._util.failpoints import failpoint
from ortet.backends.base import Lease, Move
from ortet.errors import Conflict, Unsupported
from ortet.ids import Oid
from ortet.machines.base import Machine
from ortet.store.context import StoreContext
from ortet.store.pin_commit import pin_commit
from ortet.store.sweep_retry import run_with_sweep_retry
from ortet.workspaces.commit_participant import BranchExtras
from ortet.workspaces.machine_homes import HostEngines, MachineHomes, OpenMachine
from ortet.workspaces.table import WorkspaceRow, WorkspaceTable

_TRIES = 100
"""Number of attempts to find free names while other processes take names."""


class ForkRequest(NamedTuple):
    """A request for forks, see `WorkspaceManager.fork_with_extras`."""

    row: WorkspaceRow
    point: Oid
    n: int
    extras: BranchExtras
    suffixes: Sequence[str]
    ids: Sequence[str]
    may_be_unreferenced: bool


class WorkspaceForks:
    """Creates the branches and machines of forks, all or none."""

    def __init__(
        self,
        store: StoreContext,
        table: WorkspaceTable,
        machines: MachineHomes,
        engines: HostEngines,
    ) -> None:
        self._store = store
        self._table = table
        self._machines = machines
        self._engines = engines

    def announce_forks(self, row: WorkspaceRow, machine: Machine, n: int) -> list[str]:
        """Announce forks of the machine's next image and return their ids."""
        ids = [self._store.new_id() for _ in range(n)]
        if row.files == "private" and row.forks in ("", machine.engine):
            rows = self._fork_rows(row, machine.engine, Oid(b""), ids)
            machine.announce_forks(self._machines.specs(rows))
        return ids

    def _fork_rows(
        self, row: WorkspaceRow, engine: str, image: Oid, ids: Sequence[str]
    ) -> list[WorkspaceRow]:
        private, store = row.files == "private", self._store
        child = replace(
            row,
            name="",
            host=store.host if store.is_shared else row.host,
            left={},
            engine=engine,
            files="private",
            scope=row.scope if private else self._engines.scope,
            parent=row.name,
            base=row.base if private else image,
        )
        return [replace(child, machine=one) for one in ids]

    def create(
        self, machine: Machine | None, request: ForkRequest
    ) -> tuple[list[WorkspaceRow], list[OpenMachine], list[Lease]]:
        """Create forks; see `WorkspaceManager.fork_with_extras`.

        Returns:
            The rows and machines of the forks, and the leases claimed in the same transaction.
        """
        return run_with_sweep_retry(self._store, lambda: self._fork_once(machine, request))

    def _fork_once(
        self, machine: Machine | None, request: ForkRequest
    ) -> tuple[list[WorkspaceRow], list[OpenMachine], list[Lease]]:
        store, row, point, ids = self._store, request.row, request.point, request.ids
        with store.writing():
            if request.may_be_unreferenced:
                head = store.catalog.head(f"branch:{row.name}")
                pin_commit(store, point, reachable_from=head.oid if head else None, branch=row.name)
            image = store.image_oid(point, row.empty_image)
            engine = self.engine_of(row, point)
            if machine is None or machine.engine != engine or not ids:
                ids = [store.new_id() for _ in range(request.n)]
            rows = self._fork_rows(row, engine, image, ids)
            with self._machines.copies(rows, image, machine) as lives:
                failpoint("fork.after-machines")
                rows, leases = self._name_forks(rows, point, request.extras, request.suffixes)
        failpoint("fork.after-move")
        return rows, lives, leases

    def engine_of(self, row: WorkspaceRow, point: Oid) -> str:
        """Return the engine of forks at a commit.

        The host chooses if the workspace has no engine for forks. It prefers an engine that carries
        processes, if the commit holds processes that can continue here.
        """
        if row.forks:
            return row.forks
        from ortet.machines.services import is_restorable

        store = self._store
        state = store.history.state(point)
        image = store.read_image(Oid(state.machine)) if state.machine else None
        if image is not None and is_restorable(store.objects, image, str(row.directory)):
            with suppress(Unsupported):
                self._machines.check("criu")
                return "criu"
        return self._engines.strongest()

    def _name_forks(
        self,
        rows: Sequence[WorkspaceRow],
        point: Oid,
        extras: BranchExtras,
        suffixes: Sequence[str],
    ) -> tuple[list[WorkspaceRow], list[Lease]]:
        """Name the forks and create their branches in one transaction. Taken names are replaced."""
        store, parent = self._store, rows[0].parent
        for _ in range(_TRIES):
            names = self._table.free_forks(parent, len(rows), suffixes)
            named = [replace(row, name=name) for row, name in zip(rows, names, strict=True)]
            together = extras(names)
            try:
                leases = store.catalog.move(
                    [Move(f"branch:{name}", None, point) for name in names],
                    verb="fork",
                    actor=store.author,
                    detail=parent,
                    lease=together.lease,
                    rows=[
                        *(change for row in named for change in self._table.rows_of(row)),
                        *together.rows,
                    ],
                    timelines=together.timelines,
                    claims=together.claims,
                    appends=together.appends,
                )
                return named, leases
            except Conflict as error:
                if error.kind == "swept":
                    raise
                taken = error
        raise taken
