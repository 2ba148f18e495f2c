"""Files of a directory that several sessions work in, one after the other: each commit of a session
holds them, and none of them owns the directory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ortet._util.codec import decode, encode
from ortet._util.failpoints import failpoint
from ortet.history.commits import CommitInfo
from ortet.history.records import Commit, JournalHead
from ortet.ids import Oid, from_hex, to_hex
from ortet.machines.base import Report
from ortet.objects.base import Kind
from ortet.sessions.history.rewind import commit_at, contains_journal
from ortet.store.sweep_retry import retry_on_sweep

if TYPE_CHECKING:
    from ortet.sessions.reader import SessionReader
    from ortet.sessions.session import Session
    from ortet.workspaces.workspace import Workspace


def commit_with_files(session: Session, files: Workspace, message: str) -> CommitInfo:
    """Mind and these files as one commit of the session; the directory keeps a history of its own,
    whoever changed it. With nothing new, the head is returned."""
    session._head_image = _commit_files(files, message)
    return session.commit(message)


class AdjacentCommits(NamedTuple):
    """The commits of a session before and behind an event, each with the event that it ends at."""

    before: tuple[Oid, int] | None
    after: tuple[Oid, int] | None


def commits_of(view: SessionReader) -> Iterator[tuple[Oid, int]]:
    """Those of a session that its journal goes through, the newest first, each with the event that
    it ends at."""
    hub = view.hub
    head = hub.catalog.head(f"branch:{view.row.branch}")
    for oid in hub.history.first_parents(head.oid) if head else ():
        state = hub.history.state(oid)
        if state.journal:
            journal = decode(JournalHead, hub.objects.get(Oid(state.journal)))
            if contains_journal(hub._session_manager(), view.event_log, journal):
                yield oid, journal.seq


def commits_around(
    view: SessionReader,
    seq: int,
    *,
    among: Iterable[tuple[Oid, int]] | None = None,
    counts: Callable[[Commit], bool] = lambda _: True,
) -> AdjacentCommits:
    """The newest commit that knows nothing from behind event `seq`, and the oldest that does; of
    those before, one that `counts`. `among`: all of them, if they are known."""
    after = None
    for oid, at in commits_of(view) if among is None else among:
        if at > seq:
            after = (oid, at)
        elif counts(view.hub.history.read(oid)):
            return AdjacentCommits((oid, at), after)
    return AdjacentCommits(None, after)


def commit_directory_head(session: Session, files: Workspace, message: str) -> None:
    """The files as the directory's last commit has them are those of the session, which commits."""
    head = files.head
    if head is not None:
        session._head_image = files.hub.history.state(from_hex(head.oid)).machine
        session.commit(message)


@retry_on_sweep
def rewind_with_files(
    session: Session, files: Workspace | None, seq: int, files_commit: Oid | None
) -> tuple[CommitInfo, Report]:
    """Back to where the mind was behind event `seq`, and the files to those of the commit `of`.
    Both as they are now are kept first, in the commit that is returned."""
    hub = session.hub
    was = _commit_present(session, files)
    with hub.writing():  # until the head is there, only its id leads to the commit
        target = commit_at(hub._session_manager(), session.row, session.event_log, seq)
        if files_commit is not None:
            target = _replace_files(session, target, files_commit)
        return was, _restore_target(session, files, target)


def restore_with_files(
    session: Session, files: Workspace | None, target: Oid
) -> tuple[CommitInfo, Report]:
    """The same to a commit."""
    return _commit_present(session, files), _restore_target(session, files, target)


def _commit_present(session: Session, files: Workspace | None) -> CommitInfo:
    if files is None:
        return session.commit("before rewind")
    return commit_with_files(session, files, "before rewind")


def _restore_target(session: Session, files: Workspace | None, target: Oid) -> Report:
    """Files go first: cut short, the same call again ends it."""
    report = Report()
    if files is not None and session.hub.history.state(target).machine:
        report = files.checkout_files(target, processes=False)
        files.commit(f"rewound by {session.name}")
        failpoint("rewind.files")
    session.restore(to_hex(target))
    return report


def _commit_files(files: Workspace, message: str) -> bytes:
    oid = from_hex(files.commit(message).oid)
    return files.hub.history.state(oid).machine


def _replace_files(session: Session, target: Oid, files_commit: Oid) -> Oid:
    hub = session.hub
    there, wanted = hub.history.state(target), hub.history.state(files_commit).machine
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
