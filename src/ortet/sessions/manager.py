"""How a hub opens, lists and forks sessions."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

import msgspec

from ortet._util.validation import check_text
from ortet.backends.base import Append, Claim, Lease, Timeline
from ortet.errors import Conflict, NotFound, OrtetError, Refused
from ortet.history.tree.maps import Maps
from ortet.ids import Oid, uuid7
from ortet.journal.events import Chain, Draft, Tip
from ortet.sessions import starting
from ortet.sessions.actions.budget import opened
from ortet.sessions.actions.budget_math import parse_limits, said
from ortet.sessions.history.commit import Branch
from ortet.sessions.history.participants import Beginning, Guest, Standing, standing_of
from ortet.sessions.memory.shared_scopes import Scopes
from ortet.sessions.profiles import USUAL, Manner, Profile, find_profile
from ortet.sessions.reader import View
from ortet.sessions.session import Session
from ortet.sessions.starting import FRESH, NOWHERE, Place, Start, check_fits, employer, limited
from ortet.sessions.table import (
    ACTIVE,
    OPEN,
    Roll,
    SessionRow,
    check_agent,
    check_session,
)
from ortet.sessions.writing.event_writer import Ledger
from ortet.sessions.writing.lease_handover import LENT, borrow
from ortet.store.lease import (
    TTL_NS,
    Heart,
    Holding,
    Unheld,
    in_use,
    is_held,
    process_here,
)
from ortet.workspaces.commit_participant import Company, Nobody

if TYPE_CHECKING:
    from pathlib import Path

    from ortet.hub.hub import Hub
    from ortet.store.context import Encore
    from ortet.workspaces.workspace import Workspace

_TRIES = 100


class Sessions:
    """The sessions of one hub."""

    def __init__(self, hub: Hub, host: str, encore: Encore | None = None) -> None:
        self.hub = hub
        self._encore = encore
        self.roll = Roll(hub.catalog)
        self._host = host
        self.maps = Maps(hub.objects)
        self.chain = Chain(hub.objects.hasher, hub.random)
        self.scopes = Scopes(self)
        self._heart = Heart()
        self._open: list[Session] = []
        self._me = (0, "")
        self.began: Beginning | None = None
        self.timelines: dict[bytes, str] = {}  # by segment, which never changes
        self._stray: set[str] = set()  # owners of leases that could not be given back
        self._epoch = hub.objects.epoch

    def new_id(self) -> str:
        return uuid7(self.hub.clock, self.hub.random)

    def open(
        self,
        name: str,
        *,
        agent: str = "default",
        goal: str = "",
        budget: Mapping[str, Any] | None = None,
        place: Place = NOWHERE,
        manner: Manner = USUAL,
    ) -> Session:
        """Go on with a session, or begin one; it is leased to this process."""
        check_text(goal=goal)
        row = self.roll.find(agent, name)
        profile = manner.over(row.profile if row else "")
        if row is not None and self._encore is not None and self._encore.session == row.id:
            return self._rehearse(row, profile, live=False, report=self._encore.report)
        if row is None:
            if manner.replay is True:
                raise NotFound("no_session", f"there is no session {name!r} to replay")
            try:
                session = self.begin(
                    check_session(name),
                    check_agent(agent),
                    goal=goal,
                    budget=budget,
                    place=place,
                    manner=manner,
                )
                session.look_at_the_start()
                return session
            except Conflict as error:
                row = self.roll.find(agent, name)
                if error.kind != "row_moved" or row is None:
                    raise
        if manner.replay is True:
            return self._rehearse(row, profile, live=False)
        check_fits(row, place, manner.parent)
        if manner.replay:
            return self._rehearse(row, profile, live=True)
        held = self.hub.catalog.lease(f"session:{row.id}")
        alive = held.expires - TTL_NS if held else 0
        with self._leased(row) as lease:
            # it may have moved on until the lease was ours
            row = limited(self.hub.registry, self.roll.get(row.id), place)
            shared = row.scopes if manner.scopes is None else list(manner.scopes)
            row = msgspec.structs.replace(row, profile=profile.name, scopes=shared)
            session = self.resume(row, lease, profile)
            session.begin(alive)
            if goal and goal != session.goal:
                session._add("goal", {"text": goal})
            session.look_at_the_start()
        return session

    def _rehearse(
        self, row: SessionRow, profile: Profile, *, live: bool, report: Path | None = None
    ) -> Session:
        """From the first event on, as it was recorded."""
        from ortet.sessions.history.replay import Rehearsal, Stage

        # unless it goes live nothing is written: others may go on
        with self._leased(row) if live else nullcontext() as lease:
            row = self.roll.get(row.id)
            session = self.resume(row, lease, profile, session_of=Rehearsal, ledger_of=Stage)
            assert isinstance(session, Rehearsal)
            session.start(live=live, report=report)
        return session

    def get(self, id_: str) -> View:
        """Read a session, whoever writes to it."""
        with self.roll.reading(id_) as row:
            where = self.standing(row)
        return View(self.hub, row, where.line, where.mind)

    def all(self) -> list[SessionRow]:
        return self.roll.all()

    def close(self) -> None:
        """Pause every session that is open."""
        with ExitStack() as last:
            last.callback(self._heart.close)
            for session in list(self._open):
                last.callback(session.pause)

    def give_back(self, session: Session) -> None:
        """It is not open any more, and another process may open it."""
        if session in self._open:
            self._open.remove(session)
        self._heart.remove(session.holding)
        try:
            session.holding.end()
        except OrtetError:  # on a full disk: it runs out by itself, or this process takes it again
            self._stray.add(session.holding.lease.owner)

    @contextmanager
    def _leased(self, row: SessionRow) -> Iterator[Lease]:
        """For the time it takes to open it; given back when that fails."""
        lease = self.lease(row)
        try:
            yield lease
        except BaseException:
            for session in self._open:
                if session.holding.lease.owner == lease.owner:
                    session.give_up()
                    break
            else:
                with suppress(OrtetError):
                    self.hub.catalog.release(lease)
            raise

    def is_held(self, id_: str) -> bool:
        """Whether some process, this one too, has it open."""
        return is_held(self.hub.catalog, f"session:{id_}", self._host, self.hub.clock.now_ns())

    def opened(self, id_: str) -> Session | None:
        """As this hub has it open."""
        return next((session for session in self._open if session.id == id_), None)

    @contextmanager
    def borrowed(self, row: SessionRow) -> Iterator[Session]:
        """A session under its lease, whatever its state, which is left as it is."""
        with self._leased(row) as lease:
            session = self.resume(self.roll.get(row.id), lease, find_profile(""))
        try:
            yield session
        finally:
            session.let_go()

    # beginning

    def begin(
        self,
        name: str,
        agent: str,
        *,
        goal: str = "",
        budget: Mapping[str, Any] | None = None,
        place: Place = NOWHERE,
        manner: Manner = USUAL,
        start: Start = FRESH,
    ) -> Session:
        """A new session; Conflict("row_moved") when there is one of this name."""
        place.check(self.hub)
        id_, timeline = self.new_id(), self.new_id()
        profile, limits = manner.over(""), parse_limits(budget or {})
        outer = employer(self.roll, manner.parent)
        row = SessionRow(
            id=id_,
            name=name,
            agent=agent,
            timeline=timeline,
            branch=self._branch_at(place) or self._free_branch(name),
            path=place.path,
            engine=place.engine,
            files=place.files or "",
            status=ACTIVE,
            created=self.hub.clock.now_ns(),
            family=start.family or id_,
            parent=manner.parent or start.parent,
            profile=profile.name,
            scopes=list(manner.scopes or ()),
        )
        row = limited(self.hub.registry, row, place)
        drafts = [Draft("lifecycle", {"from": OPEN, "to": ACTIVE, "why": ""}, self.hub.author)]
        if goal:
            drafts.append(Draft("goal", {"text": goal}, self.hub.author))
        if budget:
            drafts.append(Draft("budget", said(limits), self.hub.author))
        drafts += start.drafts
        tip, rows = Tip(), []
        for draft in drafts:
            known = msgspec.structs.replace(draft, data=self.hub.hidden(draft.data))
            made, event = self.chain.make(tip, known, self.hub.clock.now_ns())
            tip = Tip(event.seq, event.hash, event.time)
            rows.append(made)
        (lease,) = self.hub.catalog.move(
            [],
            verb="open",
            actor=self.hub.author,
            detail=name,
            timelines=[Timeline(timeline)],
            appends=[Append(timeline, rows)],
            rows=[
                *Roll.added(row),
                *opened(row, limits, outer, start.spent),
                *start.rows(row),
            ],
            claims=[Claim(f"session:{id_}", self.owner(), TTL_NS)],
        )
        return self.resume(row, lease, profile)

    def _branch_at(self, place: Place) -> str:
        """The branch of a directory that is a workspace already."""
        if not place.path:
            return ""
        row = self.hub.row_at(place.path, place.engine, place.files)
        if row is not None and (other := self.roll.of_branch(row.name)):
            raise place.taken_by(other)
        return row.name if row else ""

    def files_of(self, row: SessionRow) -> Workspace:
        """The workspace of a session, opened."""
        if not row.path:
            from ortet.sessions.machine.scratch_workspace import room_of

            return room_of(self.hub, row)
        known = self.hub.registry.get(row.branch)
        if known is not None:
            return self.hub.workspace(name=row.branch)
        return starting.first_opened(self.hub, row)

    def _free_branch(self, name: str) -> str:
        """A branch of its own: its name, or the next that is free."""
        for number in range(1, _TRIES):
            branch = name if number == 1 else f"{name}-{number}"
            hub = self.hub
            if not (
                hub.catalog.head(f"branch:{branch}")
                or hub.registry.get(branch)
                or self.roll.of_branch(branch)
            ):
                return branch
        raise Conflict("name_taken", f"too many branches are called {name!r}: take another name")

    def resume(
        self,
        row: SessionRow,
        lease: Lease | None,
        profile: Profile,
        *,
        session_of: type[Session] = Session,
        ledger_of: type[Ledger] = Ledger,
        where: Standing | None = None,
        head: Oid | None = None,
    ) -> Session:
        """Go on with a session: to write with its lease, else to rehearse; `where` and `head`, if
        they are known."""
        hub = self.hub
        holding = (
            Unheld(hub.catalog, hub.clock, f"session:{row.id}")
            if lease is None
            else Holding(hub.catalog, hub.clock, lease)
        )
        branch = self.branch_of(row, head)
        where = where or self.standing(row)
        ledger = ledger_of(
            hub.catalog,
            where.line,
            self.chain,
            clock=hub.clock,
            mind=where.mind,
            tip=where.tip,
            holding=holding,
            durability=profile.durability,
            told=lambda: hub.tell(f"session:{row.id}"),
            hide=hub.hidden,
        )
        session = session_of(
            self,
            row,
            ledger=ledger,
            branch=branch,
            holding=holding,
            where=where,
            profile=profile,
            host=self._host,
        )
        self._open.append(session)
        if lease is not None:
            self._heart.add(holding)
        return session

    def standing(self, row: SessionRow) -> Standing:
        """Where a session is now."""
        self._after_sweep()
        return standing_of(self, row)

    def lease(self, row: SessionRow) -> Lease:
        """The right to write to it; Refused while another process has it."""
        name = f"session:{row.id}"
        held = self.hub.catalog.lease(name) if self._stray else None
        if held is not None and held.owner in self._stray:
            self.hub.catalog.seize(held)
            self._stray.remove(held.owner)
        try:
            return borrow(self.hub, row.id, self.owner, self._host)
        except Refused as error:
            if error.kind != "lease_held":
                raise
            raise in_use(error, row.name, self._host) from error

    def guest(self, branch: str) -> Company:
        """Who goes with the files of a branch that is opened without its session."""
        row = self.roll.of_branch(branch)
        return Nobody() if row is None else Guest(self, row)

    def branch_of(self, row: SessionRow, head: Oid | None = None) -> Branch:
        hub = self.hub
        return Branch(
            hub.catalog,
            hub.objects,
            hub.history,
            name=row.branch,
            clock=hub.clock,
            author=hub.author,
            told=hub.tell,
            head=head,
        )

    # inside

    def owner(self) -> str:
        if self._me[0] != os.getpid():
            self._me = (os.getpid(), process_here(self._host))
        return f"{self._me[1]}:{LENT if self.hub.lends else ''}{self.new_id()}"

    def _after_sweep(self) -> None:
        if self._epoch != self.hub.objects.epoch:
            self._epoch = self.hub.objects.epoch
            self.maps.forget()
            self.scopes.forget()
