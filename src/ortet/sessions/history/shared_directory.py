"""Files of a directory that several sessions work in, one after the other: each commit of a session
holds them, and none of them owns the directory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ortet._util.codec import decode, encode
from ortet._util.failpoints import reach
from ortet.history.commits import CommitInfo
from ortet.history.records import Commit, Journal
from ortet.ids import Oid, from_hex, to_hex
from ortet.machines.base import Report
from ortet.objects.base import Kind
from ortet.sessions.history.rewind import commit_at, is_on
from ortet.store.sweep_retry import anew

if TYPE_CHECKING:
    from ortet.sessions.reader import View
    from ortet.sessions.session import Session
    from ortet.workspaces.workspace import Workspace


def commit_with(session: Session, files: Workspace, message: str) -> CommitInfo:
    """Mind and these files as one commit of the session; the directory keeps a history of its own,
    whoever changed it. With nothing new, the head is returned."""
    session._image = _present(files, message)
    return session.commit(message)


class Around(NamedTuple):
    """The commits of a session before and behind an event, each with the event that it ends at."""

    before: tuple[Oid, int] | None
    after: tuple[Oid, int] | None


def commits_of(view: View) -> Iterator[tuple[Oid, int]]:
    """Those of a session that its journal goes through, the newest first, each with the event that
    it ends at."""
    hub = view.hub
    head = hub.catalog.head(f"branch:{view.row.branch}")
    for oid in hub.history.line(head.oid) if head else ():
        state = hub.history.state(oid)
        if state.journal:
            journal = decode(Journal, hub.objects.get(Oid(state.journal)))
            if is_on(hub._minds(), view.line, journal):
                yield oid, journal.seq


def commits_around(
    view: View,
    seq: int,
    *,
    among: Iterable[tuple[Oid, int]] | None = None,
    counts: Callable[[Commit], bool] = lambda _: True,
) -> Around:
    """The newest commit that knows nothing from behind event `seq`, and the oldest that does; of
    those before, one that `counts`. `among`: all of them, if they are known."""
    after = None
    for oid, at in commits_of(view) if among is None else among:
        if at > seq:
            after = (oid, at)
        elif counts(view.hub.history.read(oid)):
            return Around((oid, at), after)
    return Around(None, after)


def hold(session: Session, files: Workspace, message: str) -> None:
    """The files as the directory's last commit has them are those of the session, which commits."""
    head = files.head
    if head is not None:
        session._image = files.hub.history.state(from_hex(head.oid)).machine
        session.commit(message)


@anew
def rewind_with(
    session: Session, files: Workspace | None, seq: int, of: Oid | None
) -> tuple[CommitInfo, Report]:
    """Back to where the mind was behind event `seq`, and the files to those of the commit `of`.
    Both as they are now are kept first, in the commit that is returned."""
    hub = session.hub
    was = _keep(session, files)
    with hub.writing():  # until the head is there, only its id leads to the commit
        target = commit_at(hub._minds(), session.row, session.line, seq)
        if of is not None:
            target = _with_files_of(session, target, of)
        return was, _go(session, files, target)


def restore_with(
    session: Session, files: Workspace | None, target: Oid
) -> tuple[CommitInfo, Report]:
    """The same to a commit."""
    return _keep(session, files), _go(session, files, target)


def _keep(session: Session, files: Workspace | None) -> CommitInfo:
    if files is None:
        return session.commit("before rewind")
    return commit_with(session, files, "before rewind")


def _go(session: Session, files: Workspace | None, target: Oid) -> Report:
    """Files go first: cut short, the same call again ends it."""
    report = Report()
    if files is not None and session.hub.history.state(target).machine:
        report = files.bring(target, processes=False)
        files.commit(f"rewound by {session.name}")
        reach("rewind.files")
    session.restore(to_hex(target))
    return report


def _present(files: Workspace, message: str) -> bytes:
    oid = from_hex(files.commit(message).oid)
    return files.hub.history.state(oid).machine


def _with_files_of(session: Session, target: Oid, of: Oid) -> Oid:
    hub = session.hub
    there, wanted = hub.history.state(target), hub.history.state(of).machine
    if there.machine == wanted:
        return target
    state = msgspec.structs.replace(there, machine=wanted)
    was = hub.history.read(target)
    commit = Commit(
        state=hub.objects.put(Kind.STATE, encode(state)),
        parents=was.parents,
        message=was.message,
        time=hub.clock.now_ns(),
        author=hub.author,
    )
    oid = hub.history.put(commit)
    hub.objects.flush()
    return oid
