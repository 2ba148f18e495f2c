"""Forking of workspaces: new branches with machines of their own."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, cast

from msgspec.structs import replace

from ortet._util.failpoints import failpoint
from ortet.backends.base import Lease, Move
from ortet.errors import Conflict, Unsupported
from ortet.ids import Oid
from ortet.machines.base import Machine
from ortet.store.pin_commit import pin_commit
from ortet.store.sweep_retry import run_with_sweep_retry
from ortet.workspaces.commit_participant import NO_EXTRAS, BranchExtras
from ortet.workspaces.table import WorkspaceRow
from ortet.workspaces.workspace import Workspace

if TYPE_CHECKING:
    from ortet.hub.hub import Hub

_TRIES = 100
"""Number of attempts to find free names while other processes take names."""


class ForkRequest(NamedTuple):
    """A request for forks, see `WorkspaceForksMixin.fork_with_extras`."""

    row: WorkspaceRow
    point: Oid
    n: int
    extras: BranchExtras
    suffixes: Sequence[str]
    ids: Sequence[str]
    may_be_unreferenced: bool


class WorkspaceForksMixin:
    """The part of Hub that forks workspaces."""

    @property
    def _hub(self) -> Hub:
        return cast("Hub", self)

    def fork(
        self,
        row: WorkspaceRow,
        machine: Machine | None,
        point: Oid,
        n: int,
        ids: Sequence[str] = (),
    ) -> list[Workspace]:
        """Create n private workspaces at a commit, all or none.

        Args:
            machine: the machine that has just committed `point`; None if there is none.
            ids: ids of announced machines.
        """
        named = machine is None
        return self.fork_with_extras(row, machine, point, n, ids=ids, may_be_unreferenced=named)[0]

    def announce_forks(self, row: WorkspaceRow, machine: Machine, n: int) -> list[str]:
        """Announce forks of the machine's next image and return their ids."""
        hub = self._hub
        ids = [hub.new_id() for _ in range(n)]
        if row.files == "private" and row.forks in ("", machine.engine):
            rows = self._fork_rows(row, machine.engine, Oid(b""), ids)
            machine.announce_forks(hub._machines.specs(rows))
        return ids

    def _fork_rows(
        self, row: WorkspaceRow, engine: str, image: Oid, ids: Sequence[str]
    ) -> list[WorkspaceRow]:
        private, hub = row.files == "private", self._hub
        child = replace(
            row,
            name="",
            host=row.host if hub.url == str(hub.root) else hub._store.host,
            left={},
            engine=engine,
            files="private",
            scope=row.scope if private else hub._store.scope,
            parent=row.name,
            base=row.base if private else image,
        )
        return [replace(child, machine=one) for one in ids]

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
        ask = ForkRequest(row, point, n, extras, suffixes, ids, may_be_unreferenced)
        return run_with_sweep_retry(self._hub, lambda: self._fork_once(machine, ask))

    def _fork_once(
        self, machine: Machine | None, request: ForkRequest
    ) -> tuple[list[Workspace], list[Lease]]:
        hub, row, point, ids = self._hub, request.row, request.point, request.ids
        with hub.writing():
            if request.may_be_unreferenced:
                head = hub.catalog.head(f"branch:{row.name}")
                pin_commit(hub, point, reachable_from=head.oid if head else None, branch=row.name)
            image = hub.image_oid(point, row.empty_image)
            engine = self.fork_engine(row, point)
            if machine is None or machine.engine != engine or not ids:
                ids = [hub.new_id() for _ in range(request.n)]
            rows = self._fork_rows(row, engine, image, ids)
            with hub._machines.copies(rows, image, machine) as lives:
                failpoint("fork.after-machines")
                rows, leases = self._name_forks(rows, point, request.extras, request.suffixes)
        failpoint("fork.after-move")
        pairs = zip(rows, lives, strict=True)
        return [hub._track_workspace(Workspace(hub, child, live)) for child, live in pairs], leases

    def fork_engine(self, row: WorkspaceRow, point: Oid) -> str:
        """Return the engine of forks at a commit.

        The host chooses if the workspace has no engine for forks. It prefers an engine that carries
        processes, if the commit holds processes that can continue here.
        """
        if row.forks:
            return row.forks
        from ortet.machines.services import is_restorable

        hub = self._hub
        state = hub.history.state(point)
        image = hub.read_image(Oid(state.machine)) if state.machine else None
        if image is not None and is_restorable(hub.objects, image, str(row.directory)):
            with suppress(Unsupported):
                hub.check_engine("criu")
                return "criu"
        return hub._store.strongest()

    def _name_forks(
        self,
        rows: Sequence[WorkspaceRow],
        point: Oid,
        extras: BranchExtras,
        suffixes: Sequence[str],
    ) -> tuple[list[WorkspaceRow], list[Lease]]:
        """Name the forks and create their branches in one transaction. Taken names are replaced."""
        hub, parent = self._hub, rows[0].parent
        for _ in range(_TRIES):
            names = hub.workspace_table.free_forks(parent, len(rows), suffixes)
            named = [replace(row, name=name) for row, name in zip(rows, names, strict=True)]
            together = extras(names)
            try:
                leases = hub.catalog.move(
                    [Move(f"branch:{name}", None, point) for name in names],
                    verb="fork",
                    actor=hub.author,
                    detail=parent,
                    lease=together.lease,
                    rows=[
                        *(change for row in named for change in hub.workspace_table.rows_of(row)),
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
