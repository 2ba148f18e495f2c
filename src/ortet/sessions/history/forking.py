"""Forks: sessions that continue from a commit of another session, all or none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ortet.backends.base import Append, Lease, LeaseClaim, Move, RowChange
from ortet.errors import Conflict, Invalid
from ortet.history.records import State
from ortet.ids import Oid, from_hex
from ortet.journal.events import Draft, Tip
from ortet.sessions.actions.approvals import inherited_approval_rows
from ortet.sessions.history.load import load_fork_point, load_fresh_fork, start_of
from ortet.sessions.profiles import Profile, find_profile
from ortet.sessions.reader import SessionReader
from ortet.sessions.session import Session
from ortet.sessions.table import ACTIVE, SCRATCH_FILES, SessionRow, SessionTable, check_session
from ortet.store.lease import LEASE_TTL_NS
from ortet.store.pin_commit import pin_commit
from ortet.store.sweep_retry import retry_on_sweep
from ortet.workspaces.commit_participant import TransactionExtras
from ortet.workspaces.table import fork_taken

if TYPE_CHECKING:
    from ortet.sessions.manager import SessionManager

_TRIES = 100
"""Number of attempts to find free names while other processes take names."""


class NamedForks(NamedTuple):
    """Forks with chosen names, and the rows to write with them.

    `rows` is called again for each attempt. An error that it raises ends the attempts.
    """

    suffixes: Sequence[str]
    rows: Callable[[Sequence[SessionRow]], Sequence[RowChange]]


def fork_named(
    sessions: SessionManager, parent: SessionReader, point: Oid, named: NamedForks
) -> list[Session]:
    """Fork a session at a commit with chosen names, without needing its lease.

    The forks have files if the parent has files.

    Raises:
        Conflict: "name_taken" if a name is in use.
    """
    return _fork_named(sessions, parent, point, named)


@retry_on_sweep
def _fork_named(
    sessions: SessionManager, parent: SessionReader, point: Oid, named: NamedForks
) -> list[Session]:
    fork = fork_files if parent.row.has_files else fork_state_only
    with sessions.store.writing():
        _pin_fork_point(parent, point)
        return fork(sessions, parent, point, len(named.suffixes), named=named)


def fork_at(
    parent: Session, at: Oid | None, *, n: int = 1, names: Sequence[str] = (), machine: bool = True
) -> list[Session]:
    """Fork an open session at the commit `at`, or at its present state if `at` is None.

    Args:
        n: the number of forks, if there are no `names`.
        names: the last part of the name of each fork.
        machine: False forks only the session state.
    """
    if len(set(names)) < len(names):
        raise Invalid("bad_name", "two forks cannot have one name: give each its own")
    parent._check_open()
    parent._drain_inbox()
    forks = _fork_at(parent, at, n=n, names=names, machine=machine)
    for one in forks:
        one.inherit_variables(parent)
    return forks


@retry_on_sweep
def _fork_at(
    parent: Session, at: Oid | None, *, n: int, names: Sequence[str], machine: bool
) -> list[Session]:
    sessions = parent.sessions
    with sessions.store.writing():  # only its id may refer to the commit
        point = from_hex(parent.commit("fork point").oid) if at is None else at
        _pin_fork_point(parent, point)
        parent._budget.return_unspent()  # return reserved budget so that the forks can use it
        named, count = NamedForks(names, lambda _: ()) if names else None, len(names) or n
        if machine and parent.row.has_files:
            return fork_files(sessions, parent, point, count, named=named, present=False)
        return fork_state_only(sessions, parent, point, count, named=named)


def _pin_fork_point(parent: SessionReader, point: Oid) -> None:
    branch = parent.row.branch
    head = parent.store.catalog.head(f"branch:{branch}") if parent.store.objects.is_remote else None
    pin_commit(parent.store, point, reachable_from=head.oid if head else None, branch=branch)


def fork_state_only(
    sessions: SessionManager,
    parent: SessionReader,
    point: Oid,
    n: int,
    *,
    first: tuple[Tip, Draft] | None = None,
    named: NamedForks | None = None,
) -> list[Session]:
    """Create n sessions without files, on new timelines that start at a commit.

    Args:
        first: the position where the commit ends, and an event to append to each fork.
    """
    state = sessions.store.history.state(point)
    for number in range(_TRIES):
        rows = [
            msgspec.structs.replace(_child(sessions, parent.row, name, state), path="", files="")
            for name in _names(sessions, parent, n, named=named, refresh=number > 0)
        ]
        together = _fork_extras(sessions, parent, rows, first, named)
        try:
            leases = _create_forks(sessions, parent, rows, point, together)
            break
        except Conflict as error:
            if error.kind == "swept":
                raise
            taken = error
    else:
        raise taken
    pairs, profile = zip(rows, leases, strict=True), _profile(parent)
    if first is not None:
        return [sessions.resume(row, lease, profile) for row, lease in pairs]
    began, machine = load_fork_point(sessions, state.journal), state.machine
    return [
        sessions.resume(
            row, lease, profile, loaded=load_fresh_fork(sessions, row, began, machine), head=point
        )
        for row, lease in pairs
    ]


def fork_named_session(parent: Session, name: str, point: Oid) -> Session:
    """Fork a session under a free name, without files, from a commit.

    Raises:
        Conflict: "name_taken" if the name is in use.
    """
    sessions = parent.sessions
    if sessions.table.is_taken(parent.agent, check_session(name)):
        raise fork_taken(name)
    state = sessions.store.history.state(point)
    child = _child(sessions, parent.row, name, state)
    row = msgspec.structs.replace(child, branch=sessions._free_branch(name), path="", files="")
    together = _fork_extras(sessions, parent, [row], None, None)
    (lease,) = _create_forks(sessions, parent, [row], point, together)
    return sessions.resume(row, lease, _profile(parent))


def _create_forks(
    sessions: SessionManager,
    parent: SessionReader,
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


def fork_files(
    sessions: SessionManager,
    parent: SessionReader,
    point: Oid,
    n: int,
    *,
    first: tuple[Tip, Draft] | None = None,
    named: NamedForks | None = None,
    present: bool = True,
) -> list[Session]:
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
            msgspec.structs.replace(_child(sessions, parent.row, name, state), files=files)
            for name in names
        ]
        if named is not None:
            _check_free(sessions, parent, names)
        return _fork_extras(sessions, parent, rows, first, named)

    if present and isinstance(parent, Session) and first is None and named is None:
        made, leases = parent.machine.fork_with_extras(point, n, extras=minds)
    else:  # the commit is not the present state of the machine
        known = sessions.workspaces.table.need(parent.row.branch)
        tails = named.suffixes if named is not None else ()
        made, leases = sessions.workspaces.fork_with_extras(
            known, None, point, n, extras=minds, suffixes=tails
        )
    made_of = []
    for row, lease, copy in zip(rows, leases, made, strict=True):
        session = sessions.resume(row, lease, _profile(parent))
        session.attach_files(copy)
        made_of.append(session)
    return made_of


def _names(
    sessions: SessionManager,
    parent: SessionReader,
    n: int,
    *,
    named: NamedForks | None,
    refresh: bool,
) -> list[str]:
    if named is None:
        return sessions.table.free_forks(parent.row, n, refresh=refresh)
    names = [f"{parent.name}/{tail}" for tail in named.suffixes]
    sessions.workspaces.table.free_forks(parent.row.branch, n, named.suffixes)
    _check_free(sessions, parent, names)
    return names


def _check_free(sessions: SessionManager, parent: SessionReader, names: Sequence[str]) -> None:
    for name in names:
        if sessions.table.is_taken(parent.agent, name):
            raise fork_taken(name)


def _fork_extras(
    sessions: SessionManager,
    parent: SessionReader,
    rows: Sequence[SessionRow],
    first: tuple[Tip, Draft] | None,
    named: NamedForks | None,
) -> TransactionExtras:
    """Return the catalog changes that create these forks."""
    start = start_of(sessions, rows[0], parent.row.timeline)
    appends = []
    if first is not None:
        event, _ = sessions.chain.make(*first, sessions.store.clock.now_ns())
        appends = [Append(row.timeline, [event]) for row in rows]
    return TransactionExtras(
        lease=parent.held_lease.lease if isinstance(parent, Session) else None,
        appends=appends,
        rows=[
            *(change for row in rows for change in SessionTable.insert_changes(row)),
            *inherited_approval_rows(rows, load_fork_point(sessions, rows[0].sealed).fold),
            *(named.rows(rows) if named is not None else ()),
        ],
        timelines=[msgspec.structs.replace(start, id=row.timeline) for row in rows],
        claims=[LeaseClaim(f"session:{row.id}", sessions.owner(), LEASE_TTL_NS) for row in rows],
    )


def _child(sessions: SessionManager, parent: SessionRow, name: str, state: State) -> SessionRow:
    return msgspec.structs.replace(
        parent,
        id=sessions.new_id(),
        name=name,
        timeline=sessions.new_id(),
        branch=parent.branch + name.removeprefix(parent.name),
        status=ACTIVE,
        created=sessions.store.clock.now_ns(),
        parent=parent.id,
        sealed=state.journal,
        beliefs=state.memory,
        version=0,
    )


def _profile(parent: SessionReader) -> Profile:
    """Return the policies for forks."""
    return parent.profile if isinstance(parent, Session) else find_profile(parent.row.profile)
