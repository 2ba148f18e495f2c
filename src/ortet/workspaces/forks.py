"""What a hub does to make copies of workspaces: branches with machines of their own."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, cast

from msgspec.structs import replace

from ortet._util.failpoints import reach
from ortet.backends.base import Lease, Move
from ortet.errors import Conflict, Unsupported
from ortet.ids import Oid
from ortet.machines.base import Machine
from ortet.store.pin_commit import rely_on
from ortet.store.sweep_retry import repeated
from ortet.workspaces.commit_participant import ALONE, Minds
from ortet.workspaces.table import WorkspaceRow
from ortet.workspaces.workspace import Workspace

if TYPE_CHECKING:
    from ortet.hub.hub import Hub

_TRIES = 100
"""How often names that another process was faster to take are replaced by the next."""


class Wanted(NamedTuple):
    """Copies that are asked for, see Copying.fork_with."""

    row: WorkspaceRow
    point: Oid
    n: int
    minds: Minds
    tails: Sequence[str]
    ids: Sequence[str]
    named: bool


class Copying:
    """The part of Hub that forks."""

    @property
    def _whole(self) -> Hub:
        return cast("Hub", self)

    def fork(
        self,
        row: WorkspaceRow,
        machine: Machine | None,
        point: Oid,
        n: int,
        ids: Sequence[str] = (),
    ) -> list[Workspace]:
        """n private workspaces at a commit, all or none; with `machine`, it has just settled it."""
        named = machine is None
        return self.fork_with(row, machine, point, n, ids=ids, named=named)[0]

    def herald(self, row: WorkspaceRow, machine: Machine, n: int) -> list[str]:
        """Tell a machine that forks of its next image will be asked for; returns their ids."""
        hub = self._whole
        ids = [hub.new_id() for _ in range(n)]
        if row.files == "private" and row.forks in ("", machine.engine):
            rows = self._children(row, machine.engine, Oid(b""), ids)
            machine.herald(hub._machines.specs(rows))
        return ids

    def _children(
        self, row: WorkspaceRow, engine: str, image: Oid, ids: Sequence[str]
    ) -> list[WorkspaceRow]:
        private, hub = row.files == "private", self._whole
        child = replace(
            row,
            name="",
            host=row.host if hub.url == str(hub.root) else hub._parts.host,
            left={},
            engine=engine,
            files="private",
            scope=row.scope if private else hub._parts.scope,
            parent=row.name,
            base=row.base if private else image,
        )
        return [replace(child, machine=one) for one in ids]

    def fork_with(
        self,
        row: WorkspaceRow,
        machine: Machine | None,
        point: Oid,
        n: int,
        *,
        minds: Minds = lambda _: ALONE,
        tails: Sequence[str] = (),
        ids: Sequence[str] = (),
        named: bool = False,
    ) -> tuple[list[Workspace], list[Lease]]:
        """The same, named by `tails` and with machines of these `ids` if given; what `minds` says
        for these branches is written with them, and what it claims is given back. With `named` the
        commit may be one that only its id leads to."""
        ask = Wanted(row, point, n, minds, tails, ids, named)
        return repeated(self._whole, lambda: self._forked(machine, ask))

    def _forked(self, machine: Machine | None, ask: Wanted) -> tuple[list[Workspace], list[Lease]]:
        hub, row, point, ids = self._whole, ask.row, ask.point, ask.ids
        with hub.writing():
            if ask.named:
                head = hub.catalog.head(f"branch:{row.name}")
                rely_on(hub, point, of=head.oid if head else None, branch=row.name)
            image = hub.image_oid(point, row.nothing)
            engine = self.forks_by(row, point)
            if machine is None or machine.engine != engine or not ids:
                ids = [hub.new_id() for _ in range(ask.n)]
            rows = self._children(row, engine, image, ids)
            with hub._machines.copies(rows, image, machine) as lives:
                reach("fork.after-machines")
                rows, leases = self._name_forks(rows, point, ask.minds, ask.tails)
        reach("fork.after-move")
        pairs = zip(rows, lives, strict=True)
        return [hub._remember(Workspace(hub, child, live)) for child, live in pairs], leases

    def forks_by(self, row: WorkspaceRow, point: Oid) -> str:
        """The engine of forks at a commit: of a workspace that leaves it to the host, one that
        carries processes where the commit holds some that can go on here."""
        if row.forks:
            return row.forks
        from ortet.machines.services import can_go_on

        hub = self._whole
        state = hub.history.state(point)
        image = hub.read_image(Oid(state.machine)) if state.machine else None
        if image is not None and can_go_on(hub.objects, image, str(row.directory)):
            with suppress(Unsupported):
                hub.check_engine("criu")
                return "criu"
        return hub._parts.strongest()

    def _name_forks(
        self, rows: Sequence[WorkspaceRow], point: Oid, minds: Minds, tails: Sequence[str]
    ) -> tuple[list[WorkspaceRow], list[Lease]]:
        """Give forks their names and heads in one step, with the next names when these are gone."""
        hub, parent = self._whole, rows[0].parent
        for _ in range(_TRIES):
            names = hub.registry.free_forks(parent, len(rows), tails)
            named = [replace(row, name=name) for row, name in zip(rows, names, strict=True)]
            together = minds(names)
            try:
                leases = hub.catalog.move(
                    [Move(f"branch:{name}", None, point) for name in names],
                    verb="fork",
                    actor=hub.author,
                    detail=parent,
                    lease=together.lease,
                    rows=[
                        *(change for row in named for change in hub.registry.rows_of(row)),
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
