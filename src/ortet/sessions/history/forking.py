"""Forks: sessions that continue from a commit of another session, all or none.

`whatif` makes a fork at an event, with that event replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import msgspec

from ortet.backends.base import Append, Lease, LeaseClaim, Move, RowChange
from ortet.errors import Conflict, Invalid, NotFound
from ortet.history.records import State
from ortet.ids import Oid
from ortet.journal.events import Draft, Event, Tip
from ortet.sessions.actions.approvals import inherited_approval_rows
from ortet.sessions.history.event_commit import commit_at
from ortet.sessions.history.load import (
    LoadedSession,
    ledgers_after_move,
    load_fork_point,
    load_fresh_fork,
    start_of,
)
from ortet.sessions.profiles import Profile
from ortet.sessions.table import (
    ACTIVE,
    SCRATCH_FILES,
    SessionRow,
    SessionTable,
)
from ortet.store.lease import LEASE_TTL_NS, ClaimingLease
from ortet.store.sweep_retry import retry_on_sweep
from ortet.workspaces.commit_participant import TransactionExtras
from ortet.workspaces.table import fork_taken

if TYPE_CHECKING:
    from ortet.sessions.context import SessionContext, SessionServices
    from ortet.sessions.machine.session_files import SessionFiles
    from ortet.store.context import StoreContext
    from ortet.store.lease import WriterLease
    from ortet.workspaces.workspace import Workspace

_TRIES = 100
"""Number of attempts to find free names while other processes take names."""


class ForkedInternals(Protocol):
    """The parts of an open session that a fork calls."""

    def attach_files(self, files: Workspace) -> None: ...

    def close_dangling_effects(self) -> None: ...


class ForkedSession(Protocol):
    """An open session that was just created."""

    @property
    def internals(self) -> ForkedInternals: ...


S = TypeVar("S", bound=ForkedSession)
S_co = TypeVar("S_co", bound=ForkedSession, covariant=True)


class ForkingSessions(Protocol[S_co]):
    """Opens the sessions that a fork creates."""

    store: StoreContext
    services: SessionServices

    def resume(
        self,
        row: SessionRow,
        lease: Lease | None,
        profile: Profile,
        *,
        loaded: LoadedSession | None = None,
        head: Oid | None = None,
    ) -> S_co: ...

    def owner(self) -> str: ...


class ForkParent(NamedTuple):
    """The session that is forked. Without a lease it is only read."""

    context: SessionContext
    profile: Profile
    held_lease: WriterLease | None = None
    files: SessionFiles | None = None

    @property
    def row(self) -> SessionRow:
        return self.context.row

    @property
    def name(self) -> str:
        return self.context.name

    @property
    def agent(self) -> str:
        return self.context.agent


class NamedForks(NamedTuple):
    """Forks with chosen names, and the rows to write with them.

    `rows` is called again for each attempt. An error that it raises ends the attempts.
    """

    suffixes: Sequence[str]
    rows: Callable[[Sequence[SessionRow]], Sequence[RowChange]]


@ClaimingLease()
def fork_state_only(
    sessions: ForkingSessions[S],
    parent: ForkParent,
    point: Oid,
    n: int,
    *,
    first: tuple[Tip, Draft] | None = None,
    named: NamedForks | None = None,
) -> list[S]:
    """Create n sessions without files, on new timelines that start at a commit.

    Args:
        first: the position where the commit ends, and an event to append to each fork.
    """
    state = sessions.store.history.state(point)
    for number in range(_TRIES):
        rows = [
            msgspec.structs.replace(child_row(sessions, parent.row, name, state), path="", files="")
            for name in _names(sessions, parent, n, named=named, refresh=number > 0)
        ]
        together = fork_extras(sessions, parent, rows, first, named)
        try:
            leases = create_forks(sessions, parent, rows, point, together)
            break
        except Conflict as error:
            if error.kind == "swept":
                raise
            taken = error
    else:
        raise taken
    pairs, profile = zip(rows, leases, strict=True), parent.profile
    if first is not None:
        return [sessions.resume(row, lease, profile) for row, lease in pairs]
    began, machine = load_fork_point(sessions.services, state.journal), state.machine
    return [
        sessions.resume(
            row,
            lease,
            profile,
            loaded=load_fresh_fork(sessions.services, row, began, machine),
            head=point,
        )
        for row, lease in pairs
    ]


def create_forks(
    sessions: ForkingSessions[S],
    parent: ForkParent,
    rows: list[SessionRow],
    point: Oid,
    extras: TransactionExtras,
) -> list[Lease]:
    """Create all forks in one transaction, each on a new branch at `point`."""
    return sessions.store.catalog.move(
        [Move(f"branch:{row.branch}", None, point) for row in rows],
        verb="fork",
        actor=sessions.store.author,
        detail=parent.name,
        lease=extras.lease,
        timelines=extras.timelines,
        rows=extras.rows,
        claims=extras.claims,
        appends=extras.appends,
    )


@ClaimingLease()
def fork_files(
    sessions: ForkingSessions[S],
    parent: ForkParent,
    point: Oid,
    n: int,
    *,
    first: tuple[Tip, Draft] | None = None,
    named: NamedForks | None = None,
    present: bool = True,
) -> list[S]:
    """Create n sessions with files and processes of their own.

    Args:
        present: True if `point` was just committed, so that the running machine can be forked.
    """
    rows: list[SessionRow] = []
    files = "private" if parent.row.path else SCRATCH_FILES
    state = sessions.store.history.state(point)

    def minds(branches: Sequence[str]) -> TransactionExtras:
        names = [parent.name + branch.removeprefix(parent.row.branch) for branch in branches]
        rows[:] = [
            msgspec.structs.replace(child_row(sessions, parent.row, name, state), files=files)
            for name in names
        ]
        if named is not None:
            _check_free(sessions, parent, names)
        return fork_extras(sessions, parent, rows, first, named)

    if present and parent.files is not None and first is None and named is None:
        made, leases = parent.files.machine.fork_with_extras(point, n, extras=minds)
    else:  # the commit is not the present state of the machine
        known = sessions.services.workspaces.table.need(parent.row.branch)
        tails = named.suffixes if named is not None else ()
        made, leases = sessions.services.workspaces.fork_with_extras(
            known, None, point, n, extras=minds, suffixes=tails
        )
    made_of = []
    for row, lease, copy in zip(rows, leases, made, strict=True):
        session = sessions.resume(row, lease, parent.profile)
        session.internals.attach_files(copy)
        made_of.append(session)
    return made_of


def _names(
    sessions: ForkingSessions[S],
    parent: ForkParent,
    n: int,
    *,
    named: NamedForks | None,
    refresh: bool,
) -> list[str]:
    if named is None:
        return sessions.services.table.free_forks(parent.row, n, refresh=refresh)
    names = [f"{parent.name}/{tail}" for tail in named.suffixes]
    sessions.services.workspaces.table.free_forks(parent.row.branch, n, named.suffixes)
    _check_free(sessions, parent, names)
    return names


def _check_free(sessions: ForkingSessions[S], parent: ForkParent, names: Sequence[str]) -> None:
    for name in names:
        if sessions.services.table.is_taken(parent.agent, name):
            raise fork_taken(name)


def fork_extras(
    sessions: ForkingSessions[S],
    parent: ForkParent,
    rows: Sequence[SessionRow],
    first: tuple[Tip, Draft] | None,
    named: NamedForks | None,
) -> TransactionExtras:
    """Return the catalog changes that create these forks."""
    start = start_of(sessions.services, rows[0], parent.row.timeline)
    appends = []
    if first is not None:
        event, _ = sessions.services.chain.make(*first, sessions.store.clock.now_ns())
        appends = [Append(row.timeline, [event]) for row in rows]
    return TransactionExtras(
        lease=parent.held_lease.lease if parent.held_lease is not None else None,
        appends=appends,
        rows=[
            *(change for row in rows for change in SessionTable.insert_changes(row)),
            *inherited_approval_rows(rows, load_fork_point(sessions.services, rows[0].sealed).fold),
            *(named.rows(rows) if named is not None else ()),
        ],
        timelines=[msgspec.structs.replace(start, id=row.timeline) for row in rows],
        claims=[LeaseClaim(f"session:{row.id}", sessions.owner(), LEASE_TTL_NS) for row in rows],
    )


def child_row(
    sessions: ForkingSessions[S], parent: SessionRow, name: str, state: State
) -> SessionRow:
    return msgspec.structs.replace(
        parent,
        id=sessions.services.new_id(),
        name=name,
        timeline=sessions.services.new_id(),
        branch=parent.branch + name.removeprefix(parent.name),
        status=ACTIVE,
        created=sessions.store.clock.now_ns(),
        parent=parent.id,
        sealed=state.journal,
        beliefs=state.memory,
        ledgers=ledgers_after_move(sessions.services, parent, state.journal),
        version=0,
    )


@retry_on_sweep
def whatif(
    sessions: ForkingSessions[S],
    /,
    parent: ForkParent,
    at: int,
    *,
    machine: bool = True,
    **change: Any,
) -> S:
    """Create a session in which event `at` had another content; see `Session.whatif`.

    The replaced event is the first event of the new session, and it is marked. The files are those
    of the last commit before. The original session does not change.
    """
    view, store = parent.context, sessions.store
    event, draft = _changed(view, at, change)
    with store.writing():
        point = commit_at(sessions.services, view.row, view.event_log, event.seq - 1)
        before = next(iter(view.event_log.rows(event.seq - 2, event.seq - 1)))
        has_files = view.row.has_files and (
            view.row.files == SCRATCH_FILES or bool(store.history.state(point).machine)
        )
        fork = fork_files if machine and has_files else fork_state_only
        (session,) = fork(
            sessions, parent, point, 1, first=(sessions.services.chain.tip(before), draft)
        )
    session.internals.close_dangling_effects()
    return session


def _changed(view: SessionContext, at: int, change: dict[str, Any]) -> tuple[Event, Draft]:
    """Return the event to replace and its replacement."""
    if len(change) != 1 or not set(change) <= {"message", "result", "error"}:
        given = ", ".join(sorted(change)) or "nothing"
        raise Invalid(
            "bad_change", f"one change is needed: message=, result= or error=, not {given}"
        )
    ((what, value),) = change.items()
    if isinstance(at, bool) or not isinstance(at, int) or at < 1:
        raise Invalid("bad_seq", f"event {at!r}: give the number of an event, from 1")
    event = _event(view, at) if what == "message" else _end_of(view, _event(view, at))
    data = {**event.data, "whatif": {"session": view.id, "seq": event.seq}}
    if what == "message":
        if event.kind != "message":
            raise _no_such(event, "message")
        return event, Draft("message", {**data, "content": value}, event.actor)
    for key in ("outcome", "error", "code", "synthetic"):
        data.pop(key, None)
    if what == "error":
        return event, Draft("ended", {**data, "state": "failed", "error": str(value)}, event.actor)
    return event, Draft("ended", {**data, "state": "done", "outcome": value}, event.actor)


def _event(view: SessionContext, at: int) -> Event:
    for event in view.event_log.events(at - 1, at):
        if event.erased:
            raise NotFound("no_event", f"event {at} was erased: there is nothing to change")
        return event
    raise NotFound("no_event", f"session {view.name!r} has no event {at}: s.events() has all")


def _end_of(view: SessionContext, event: Event) -> Event:
    """Return the `ended` event of an action, given its `begun` or its `ended` event."""
    if event.kind == "ended":
        return event
    if event.kind != "begun":
        raise _no_such(event, "action")
    for later in view.event_log.events(event.seq):
        if later.kind == "ended" and later.data.get("id") == event.data["id"]:
            return later
    raise NotFound("no_event", f"the action begun by event {event.seq} has not ended")


def _no_such(event: Event, kind: str) -> Invalid:
    return Invalid(
        "bad_change", f"event {event.seq} is no {kind} but a {event.kind}: choose another"
    )
