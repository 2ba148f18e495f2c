"""The session manager of a hub: opens, creates, lists and releases sessions."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from ortet._util.log import get_logger
from ortet._util.validation import check_text
from ortet.backends.base import Append, EventRow, Lease, LeaseClaim, Timeline
from ortet.errors import Conflict, Invalid, NotFound, OrtetError, Refused
from ortet.ids import Oid
from ortet.journal.events import Draft, Tip, check_plain
from ortet.journal.state.records import Message
from ortet.sessions.actions.budget import initial_budget_rows
from ortet.sessions.actions.budget_math import budget_event_data, parse_limits
from ortet.sessions.actions.ledger import ledger_of
from ortet.sessions.context import SessionContext, SessionHub, SessionServices
from ortet.sessions.history.commit import BranchWriter
from ortet.sessions.history.load import LoadedSession
from ortet.sessions.history.participants import DetachedSessionParticipant
from ortet.sessions.profiles import DEFAULT_OPTIONS, OpenOptions, Profile, find_profile
from ortet.sessions.reader import SessionReader
from ortet.sessions.session import Session
from ortet.sessions.starting import (
    NO_FILES,
    NO_INITIAL_CONTENT,
    FilesLocation,
    InitialContent,
    apply_limits,
    budget_parent,
    check_fits,
)
from ortet.sessions.table import (
    ACTIVE,
    OPEN,
    SessionRow,
    SessionTable,
    check_agent,
    check_session,
)
from ortet.sessions.writing.event_writer import EventWriter
from ortet.sessions.writing.lease_handover import HANDOVER_OWNER_PREFIX, acquire_or_request_lease
from ortet.store.lease import (
    LEASE_TTL_NS,
    ClaimingLease,
    HeldLease,
    LeaseRenewer,
    NoLease,
    is_lease_held,
    is_orphaned,
    owner_prefix,
    session_in_use,
)
from ortet.workspaces.commit_participant import CommitParticipant, NoParticipant
from ortet.workspaces.manager import WorkspaceManager

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ortet.journal.reports.checkpoint import AgentCheckpoint
    from ortet.memory.base import IndexFactory
    from ortet.memory.embedders.base import Embedder
    from ortet.sessions.swarm_api import SwarmRequest, SwarmResult
    from ortet.store.context import ReplayRequest, StoreContext

_TRIES = 100

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.002, 0.05
"""Pauses between two attempts to get a session that another handle has open."""


class SwarmRunner(Protocol):
    """Runs swarms. `config` gives one to the hub, so that sessions do not import `swarm`."""

    def run(self, session: Session, wish: SwarmRequest) -> SwarmResult:
        """Run a swarm; see `Session.swarm`."""
        ...

    def all(self, session: SessionReader) -> list[SwarmResult]:
        """Return the swarms of a session, oldest first, as they are now."""
        ...

    def get(self, session: SessionReader, name: str) -> SwarmResult:
        """Return one swarm. Raise NotFound("no_swarm") if the session has none of this name."""
        ...


class SessionManager:
    """The sessions of one hub."""

    def __init__(
        self,
        store: StoreContext,
        workspaces: WorkspaceManager,
        *,
        swarms: SwarmRunner,
        hub: SessionHub,
        embedder: Embedder | str | None = None,
        index_factory: IndexFactory | None = None,
        replay_request: ReplayRequest | None = None,
    ) -> None:
        self.store = store
        self.workspaces = workspaces
        self.swarms = swarms
        self.services = SessionServices(
            store, workspaces, hub=hub, embedder=embedder, index_factory=index_factory
        )
        self.table = self.services.table
        self._replay_request = replay_request
        self._host = store.host
        self._lease_renewer = LeaseRenewer()
        self._open: list[Session] = []
        self._process_owner = (0, "")

    def open(
        self,
        name: str,
        *,
        agent: str = "default",
        goal: str = "",
        budget: Mapping[str, Any] | None = None,
        location: FilesLocation = NO_FILES,
        options: OpenOptions = DEFAULT_OPTIONS,
    ) -> Session:
        """Open a session, or create it. This process holds its lease.

        Args:
            name: the name of the session.
            agent: the agent it belongs to.
            goal: sets the goal if given.
            budget: limits for a new session.
            location: where its files are.
            options: policies, parent, replay mode and shared scopes.

        Raises:
            Refused: "lease_held" if another process has it open.
            Conflict: it is finished, or has another directory or parent.
        """
        check_text(goal=goal)
        row = self.table.find(agent, name)
        profile = options.resolve_profile(row.profile if row else "")
        if (
            row is not None
            and self._replay_request is not None
            and self._replay_request.session == row.id
        ):
            return self._replay(row, profile, live=False, report=self._replay_request.report)
        if row is None:
            if options.replay is True:
                raise NotFound("no_session", f"there is no session {name!r} to replay")
            try:
                session = self.create(
                    check_session(name),
                    check_agent(agent),
                    goal=goal,
                    budget=budget,
                    location=location,
                    options=options,
                )
                session.internals.environment.probe_on_open()
                return session
            except Conflict as error:
                row = self.table.find(agent, name)
                if error.kind != "row_moved" or row is None:
                    raise
        if options.replay is True:
            return self._replay(row, profile, live=False)
        check_fits(row, location, options)
        if options.replay:
            return self._replay(row, profile, live=True)
        held = self.store.catalog.lease(f"session:{row.id}")
        alive = held.expires - LEASE_TTL_NS if held else 0
        with self._lease_while_opening(row, options.wait) as lease:
            # the row may have changed before the lease was ours
            row = apply_limits(self.workspaces.table, self.table.get(row.id), location)
            shared = row.scopes if options.scopes is None else list(options.scopes)
            row = msgspec.structs.replace(row, profile=profile.name, scopes=shared)
            session = self.resume(row, lease, profile)
            session.internals.lifecycle.activate(alive)
            if goal and goal != session.goal:
                session.internals.pipeline.add("goal", {"text": goal})
            session.internals.environment.probe_on_open()
        return session

    def _replay(
        self, row: SessionRow, profile: Profile, *, live: bool, report: Path | None = None
    ) -> Session:
        """Open a session in replay mode, from its first event on."""
        # without going live nothing is written, so no lease is needed
        with self._lease_while_opening(row) if live else nullcontext() as lease:
            row = self.table.get(row.id)
            session = self.resume(row, lease, profile)
            session.internals.start_replay(live=live, report=report)
        return session

    def turn(
        self,
        name: str,
        message: Any,
        *,
        role: str,
        agent: str,
        reply: Callable[[Session], Any] | None,
        wait: float,
    ) -> list[Message]:
        """Run one turn; see `Hub.turn`."""
        check_text(role=role)
        check_plain(message)
        with self.open(name, agent=agent, options=OpenOptions(wait=wait)) as session:
            said = [session.say(role, message)]
            if reply is not None:
                answer = reply(session)
                if answer is None:
                    raise Invalid("no_reply", "reply gave None: return what the assistant says")
                said.append(session.say("assistant", answer))
            session.commit("turn")
            return [Message(e.seq, e.data["role"], e.data["content"], e.time) for e in said]

    def from_carry(self, text: str) -> Session:
        """Open the session of a carry token; see `Transfer.from_carry`."""
        from ortet.sessions.portable.carry_token import check_fresh, read_carry

        record = read_carry(self.store, text)
        try:
            self.table.get(record.session)
        except NotFound as error:
            raise NotFound(
                "no_session",
                f"session {record.name!r} is no more in this store: begin another",
            ) from error
        check_fresh(self.services.read(record.session), record)
        session = self.open(record.name, agent=record.agent)
        try:
            check_fresh(session.internals.context, record)
        except BaseException:
            session.pause()
            raise
        return session

    def from_checkpoint(
        self, checkpoint: AgentCheckpoint | str | bytes, name: str, agent: str
    ) -> Session:
        """Create a session from a checkpoint in one transaction.

        See `Transfer.from_checkpoint`.
        """
        from ortet.sessions.portable.checkpoint import from_checkpoint

        return from_checkpoint(self.services, self.create, checkpoint, name, agent)

    def get(self, id_: str) -> SessionReader:
        """Open a session for reading, without a lease."""
        return SessionReader(self.services.read(id_))

    def all(self) -> list[SessionRow]:
        return self.table.all()

    def close(self) -> None:
        """Pause every open session and close the search index."""
        with ExitStack() as last:
            last.callback(self.services.close)
            last.callback(self._lease_renewer.close)
            last.callback(self.pause_all)

    def pause_all(self, keep_open: Session | None = None) -> None:
        """Pause every open session except `keep_open`. One that fails does not stop the others."""
        with ExitStack() as last:
            for session in list(self._open):
                if session is not keep_open:
                    last.callback(session.pause)

    @property
    def open_sessions(self) -> Sequence[Session]:
        """Return the open handles."""
        return self._open

    @property
    def has_open(self) -> bool:
        """True if at least one session is open."""
        return bool(self._open)

    def release(self, session: Session) -> None:
        """Release the lease of a session and forget the handle."""
        if session in self._open:
            self._open.remove(session)
        self._lease_renewer.remove(session.internals.held_lease)
        try:
            session.internals.held_lease.release()
        except OrtetError as error:  # the lease expires, or this process takes it again
            get_logger(__name__).warning(
                "the lease of session %s was not released: %s", session.id, error.kind
            )

    @contextmanager
    def _lease_while_opening(self, row: SessionRow, wait: float = 0.0) -> Iterator[Lease]:
        """Hold the lease while a session is opened, and release it if that fails.

        Args:
            row: the session.
            wait: seconds to wait until another handle releases the session.
        """
        deadline, pause = time.monotonic() + wait, _FIRST_PAUSE_SECONDS
        while True:
            with ClaimingLease():
                try:
                    lease = self.acquire_lease(row)
                except Refused as error:
                    if error.kind != "lease_held" or time.monotonic() >= deadline:
                        raise
                else:
                    with self._released_on_failure(lease):
                        yield lease
                    return
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    @contextmanager
    def _released_on_failure(self, lease: Lease) -> Iterator[None]:
        try:
            yield
        except BaseException:
            for session in self._open:
                if session.internals.held_lease.lease.owner == lease.owner:
                    session.internals.lifecycle.abandon()
                    break
            else:
                with suppress(OrtetError):
                    self.store.catalog.release(lease)
            raise

    def resume_handed_over(
        self,
        row: SessionRow,
        *,
        location: FilesLocation = NO_FILES,
        options: OpenOptions = DEFAULT_OPTIONS,
    ) -> Session:
        """Open a session that passes from process to process.

        No lifecycle event is written and the status does not change. Open tool calls stay open for
        the process that answers them.
        """
        with self._lease_while_opening(row) as lease:
            row = self.table.get(row.id)  # the row may have changed before the lease was ours
            check_fits(row, location, options)
            session = self.resume(row, lease, options.resolve_profile(row.profile))
            session.internals.drain_inbox()
        return session

    def is_leased(self, id_: str) -> bool:
        """Return True if a process, possibly this one, has the session open."""
        return is_lease_held(
            self.store.catalog, f"session:{id_}", self._host, self.store.clock.now_ns()
        )

    def find_open(self, id_: str) -> Session | None:
        """Return the open handle of this hub, or None."""
        return next((session for session in self._open if session.id == id_), None)

    @contextmanager
    def leased_session(self, row: SessionRow) -> Iterator[Session]:
        """Open a session under its lease for this block, without changing its status."""
        with self._lease_while_opening(row) as lease:
            session = self.resume(self.table.get(row.id), lease, find_profile(""))
        try:
            yield session
        finally:
            session.internals.lifecycle.release()

    # create and load

    def create(
        self,
        name: str,
        agent: str,
        *,
        goal: str = "",
        budget: Mapping[str, Any] | None = None,
        location: FilesLocation = NO_FILES,
        options: OpenOptions = DEFAULT_OPTIONS,
        initial: InitialContent = NO_INITIAL_CONTENT,
    ) -> Session:
        """Create a session. Conflict("row_moved") if the name is taken."""
        location.check(self.workspaces)
        id_, timeline = self.services.new_id(), self.services.new_id()
        profile, limits = options.resolve_profile(""), parse_limits(budget or {})
        outer = budget_parent(self.table, options.parent)
        row = SessionRow(
            id=id_,
            name=name,
            agent=agent,
            timeline=timeline,
            branch=self._branch_at(location) or self.free_branch(name),
            path=location.path,
            engine=location.engine,
            files=location.files or "",
            status=ACTIVE,
            created=self.store.clock.now_ns(),
            family=initial.family or id_,
            parent=options.parent or initial.parent,
            profile=profile.name,
            scopes=list(options.scopes or ()),
            ledgers=[*initial.ledgers, ledger_of(timeline)],
        )
        row = apply_limits(self.workspaces.table, row, location)
        drafts = [Draft("lifecycle", {"from": OPEN, "to": ACTIVE, "why": ""}, self.store.author)]
        if goal:
            drafts.append(Draft("goal", {"text": goal}, self.store.author))
        if budget:
            drafts.append(Draft("budget", budget_event_data(limits), self.store.author))
        drafts += initial.drafts
        with ClaimingLease():
            (lease,) = self.store.catalog.move(
                [],
                verb="open",
                actor=self.store.author,
                detail=name,
                timelines=[Timeline(timeline)],
                appends=[Append(timeline, self._first_events(drafts))],
                rows=[
                    *SessionTable.insert_changes(row),
                    *initial_budget_rows(row, limits, outer, initial.spent),
                    *initial.rows(row),
                ],
                claims=[LeaseClaim(f"session:{id_}", self.owner(), LEASE_TTL_NS)],
            )
            return self.resume(row, lease, profile)

    def _first_events(self, drafts: Sequence[Draft]) -> list[EventRow]:
        """Return the rows of the first events of a timeline."""
        tip, rows = Tip(), []
        for draft in drafts:
            redacted = msgspec.structs.replace(draft, data=self.store.secrets.redact(draft.data))
            row, event = self.services.chain.make(tip, redacted, self.store.clock.now_ns())
            tip = Tip(event.seq, event.hash, event.time)
            rows.append(row)
        return rows

    def _branch_at(self, location: FilesLocation) -> str:
        """Return the branch of a directory that is already a workspace, or ""."""
        if not location.path:
            return ""
        row = self.workspaces.find_row(location.path, location.engine, location.files)
        if row is not None and (other := self.table.find_by_branch(row.name)):
            raise location.taken_by(other)
        return row.name if row else ""

    def free_branch(self, name: str) -> str:
        """Return a free branch name: the name of the session, with a number if needed."""
        for number in range(1, _TRIES):
            branch = name if number == 1 else f"{name}-{number}"
            store = self.store
            if not (
                store.catalog.head(f"branch:{branch}")
                or self.workspaces.table.get(branch)
                or self.table.find_by_branch(branch)
            ):
                return branch
        raise Conflict("name_taken", f"too many branches are called {name!r}: take another name")

    def resume(
        self,
        row: SessionRow,
        lease: Lease | None,
        profile: Profile,
        *,
        loaded: LoadedSession | None = None,
        head: Oid | None = None,
    ) -> Session:
        """Build the handle of a session.

        Args:
            row: the session.
            lease: the lease to write with; None for a replay.
            profile: its policies.
            loaded: its state, if already loaded.
            head: its head, if already known.
        """
        store = self.store
        holding = (
            NoLease(f"session:{row.id}")
            if lease is None
            else HeldLease(store.catalog, store.clock, lease)
        )
        branch = self.branch_of(row, head)
        loaded = loaded or self.services.load(row)
        writer = EventWriter(
            store.catalog,
            loaded.line,
            self.services.chain,
            clock=store.clock,
            state=loaded.mind,
            tip=loaded.tip,
            held_lease=holding,
            durability=profile.durability,
            on_durable=lambda: store.notify(f"session:{row.id}"),
            redact=store.secrets.redact,
        )
        context = SessionContext(self.services, row, loaded.line, loaded.mind, writer=writer)
        session = Session(
            self,
            context,
            writer=writer,
            branch=branch,
            held_lease=holding,
            loaded=loaded,
            profile=profile,
            host=self._host,
        )
        self._open.append(session)
        if lease is not None:
            self._lease_renewer.add(holding)
        return session

    def acquire_lease(self, row: SessionRow) -> Lease:
        """Acquire the lease of a session.

        Raises:
            Refused: another process has it open.
        """
        try:
            return acquire_or_request_lease(self.store, row.id, self.owner, self._host)
        except Refused as error:
            if error.kind != "lease_held":
                raise
            held = self.store.catalog.lease(f"session:{row.id}")
            if held is None or not is_orphaned(held, self._owner_prefix()):
                raise session_in_use(error, row.name, self._host) from error
        self.store.catalog.seize(held)
        return acquire_or_request_lease(self.store, row.id, self.owner, self._host)

    def detached_participant(self, branch: str) -> CommitParticipant:
        """Return the participant of a branch whose session this process has not opened."""
        row = self.table.find_by_branch(branch)
        return NoParticipant() if row is None else DetachedSessionParticipant(self, row)

    def branch_of(self, row: SessionRow, head: Oid | None = None) -> BranchWriter:
        store = self.store
        return BranchWriter(
            store.catalog,
            store.objects,
            store.history,
            name=row.branch,
            clock=store.clock,
            author=store.author,
            on_move=store.notify,
            head=head,
        )

    # private

    def _owner_prefix(self) -> str:
        if self._process_owner[0] != os.getpid():
            self._process_owner = (os.getpid(), owner_prefix(self._host))
        return self._process_owner[1]

    def owner(self) -> str:
        prefix = HANDOVER_OWNER_PREFIX if self.store.allows_lease_handover else ""
        return f"{self._owner_prefix()}:{prefix}{self.services.new_id()}"
