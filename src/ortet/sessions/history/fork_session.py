"""Forks of an open session at any commit or event, and rewinds to before an event."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from ortet.backends.base import Append
from ortet.errors import Invalid, NotFound
from ortet.ids import Oid, from_hex
from ortet.journal.events import Draft, Event, Tip
from ortet.journal.kinds.registry import kind_of
from ortet.objects.base import Kind
from ortet.sessions.history.event_commit import commit_at
from ortet.sessions.history.forking import (
    ForkingSessions,
    ForkParent,
    NamedForks,
    child_row,
    create_forks,
    fork_extras,
    fork_files,
    fork_state_only,
)
from ortet.sessions.history.load import row_on_new_timeline, start_of
from ortet.sessions.profiles import find_profile
from ortet.sessions.reader import SessionReader
from ortet.sessions.session import Session
from ortet.sessions.table import SCRATCH_FILES, check_session
from ortet.store.pin_commit import pin_commit
from ortet.store.sweep_retry import retry_on_sweep, run_with_sweep_retry
from ortet.workspaces.table import fork_taken


def fork_named(
    sessions: ForkingSessions[Session], parent: SessionReader, point: Oid, named: NamedForks
) -> list[Session]:
    """Fork a session at a commit with chosen names, without needing its lease.

    The forks have files if the parent has files.

    Raises:
        Conflict: "name_taken" if a name is in use.
    """
    return _fork_named(sessions, parent, point, named)


@retry_on_sweep
def _fork_named(
    sessions: ForkingSessions[Session], parent: SessionReader, point: Oid, named: NamedForks
) -> list[Session]:
    fork = fork_files if parent.internals.row.has_files else fork_state_only
    with sessions.store.writing():
        _pin_fork_point(parent, point)
        return fork(sessions, fork_parent_of(parent), point, len(named.suffixes), named=named)


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
    parent.internals.pipeline.check_open()
    parent.internals.pipeline.drain_inbox()
    forks = run_with_sweep_retry(
        parent.internals.store, lambda: _fork_at(parent, at, n=n, names=names, machine=machine)
    )
    for one in forks:
        one.internals.environment.inherit_variables(parent.internals.environment)
    return forks


def _fork_at(
    parent: Session, at: Oid | None, *, n: int, names: Sequence[str], machine: bool
) -> list[Session]:
    sessions = parent.internals.manager
    with sessions.store.writing():  # only its id may refer to the commit
        point = from_hex(parent.commit("fork point").oid) if at is None else at
        _pin_fork_point(parent, point)
        parent.internals.pipeline.budget.return_unspent()  # so that the forks can use it
        named, count = NamedForks(names, lambda _: ()) if names else None, len(names) or n
        if machine and parent.internals.row.has_files:
            return fork_files(
                sessions, parent.internals.fork_parent(), point, count, named=named, present=False
            )
        return fork_state_only(sessions, parent.internals.fork_parent(), point, count, named=named)


def _pin_fork_point(parent: SessionReader, point: Oid) -> None:
    branch = parent.internals.row.branch
    head = (
        parent.internals.store.catalog.head(f"branch:{branch}")
        if parent.internals.store.objects.is_remote
        else None
    )
    pin_commit(
        parent.internals.store, point, reachable_from=head.oid if head else None, branch=branch
    )


def fork_named_session(parent: Session, name: str, point: Oid) -> Session:
    """Fork a session under a free name, without files, from a commit.

    Raises:
        Conflict: "name_taken" if the name is in use.
    """
    sessions, source = parent.internals.manager, parent.internals.fork_parent()
    if sessions.services.table.is_taken(parent.agent, check_session(name)):
        raise fork_taken(name)
    state = sessions.store.history.state(point)
    child = child_row(sessions, parent.internals.row, name, state)
    row = msgspec.structs.replace(child, branch=sessions.free_branch(name), path="", files="")
    together = fork_extras(sessions, source, [row], None, None)
    (lease,) = create_forks(sessions, source, [row], point, together)
    return sessions.resume(row, lease, parent.internals.profile)


def fork_behind(
    parent: Session, seq: int, *, n: int = 1, names: Sequence[str] = (), machine: bool = True
) -> list[Session]:
    """Fork a session right after one of its events; see `Session.fork`.

    The files are those of the last commit before the event.
    """
    view, store = parent.internals.context, parent.internals.store
    view.flush()

    def fork() -> list[Session]:
        with store.writing():
            point = commit_at(view.services, view.row, view.event_log, seq)
            files = view.row.files == SCRATCH_FILES or bool(store.history.state(point).machine)
            return fork_at(parent, point, n=n, names=names, machine=machine and files)

    return run_with_sweep_retry(store, fork)


def fork_parent_of(parent: SessionReader) -> ForkParent:
    """Return a session as the parent of forks."""
    if isinstance(parent, Session):
        return parent.internals.fork_parent()
    return ForkParent(parent.internals.context, find_profile(parent.internals.row.profile))


def rewind_before_event(
    session: Session, seq: int, replacements: Callable[[], Sequence[Draft]] = lambda: ()
) -> None:
    """Move the session to before event `seq` and append replacement events.

    Messages from `seq` on are left behind. Facts, decisions and custom records are kept, as their
    event kinds say; effects and spends belong to the family. The commit made first is the way back.

    Args:
        seq: the event; not the first one.
        replacements: gives the events to append. It is called inside `store.writing()`.

    Raises:
        NotFound: "no_event" if there is no such event.
    """
    run_with_sweep_retry(
        session.internals.store, lambda: _rewind_before_event(session, seq, replacements)
    )


def _rewind_before_event(
    session: Session, seq: int, replacements: Callable[[], Sequence[Draft]]
) -> None:
    parts = session.internals
    view, pipeline, navigation = parts.context, parts.pipeline, parts.navigation
    sessions, store, host = view.services, view.store, navigation.participant
    if not 1 < seq <= pipeline.writer.tip.seq:
        raise NotFound("no_event", f"event {seq} of {session.name!r} cannot be gone back before")
    later = [event for event in session.events(seq) if kind_of(event.kind).survives_rewind]
    with store.writing():
        session.commit("before messages were taken back")
        point = commit_at(sessions, view.row, view.event_log, seq - 1)
        before = next(iter(view.event_log.rows(seq - 2, seq - 1)))
        given = replacements()
        timeline = start_of(sessions, row_on_new_timeline(sessions, view.row, point))
        tip, rows = sessions.chain.tip(before), []
        for draft in [*given, *_renumbered_drafts(later, seq + len(given))]:
            row, event = sessions.chain.make(tip, pipeline.writer.redacted(draft), view.now())
            tip = Tip(event.seq, event.hash, event.time)
            rows.append(row)
        with host.with_timeline(timeline, Append(timeline.id, rows)):
            together = host.prepare_move(point)
        store.catalog.move(
            [],
            verb="rewind",
            actor=store.author,
            lease=together.lease,
            rows=together.rows,
            timelines=together.timelines,
            appends=together.appends if rows else [],
        )
        closing, host.on_moved = host.on_moved, navigation.switch_timeline
        try:
            host.finish_move()  # a call without its result stays open: another result may come
        finally:
            host.on_moved = closing
        view.dirty = True


def _renumbered_drafts(events: Sequence[Event], seq: int) -> list[Draft]:
    """Return drafts of the events with new numbers from `seq` on."""
    moved = {event.seq: seq + at for at, event in enumerate(events)}
    drafts = []
    for event in events:
        fields = kind_of(event.kind).seq_fields
        data = event.data | {name: moved.get(event.data[name], event.data[name]) for name in fields}
        refs = [(Oid(oid), Kind(kind)) for oid, kind in event.refs]
        drafts.append(Draft(event.kind, data, event.actor, refs, event.version))
    return drafts
