"""Files of a directory in which several sessions work in turn.

Each commit of a session holds the files, but no session owns the directory. The directory has a
branch of its own.
"""

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
from ortet.sessions.history.event_commit import commit_at, contains_journal
from ortet.store.sweep_retry import run_with_sweep_retry

if TYPE_CHECKING:
    from ortet.sessions.reader import SessionReader
    from ortet.sessions.session import Session
    from ortet.workspaces.workspace import Workspace


def commit_with_files(session: Session, files: Workspace, message: str) -> CommitInfo:
    """Commit session state and these files as one commit of the session.

    The directory is committed on its own branch too. With nothing new, the head is returned.
    """
    session.internals.navigation.head_image = _commit_files(files, message)
    return session.commit(message)


class AdjacentCommits(NamedTuple):
    """The commits of a session before and after an event, each with its last event."""

    before: tuple[Oid, int] | None
    after: tuple[Oid, int] | None


def commits_of(view: SessionReader) -> Iterator[tuple[Oid, int]]:
    """Iterate over the commits on the session's journal, newest first, with their last event."""
    store = view.internals.store
    head = store.catalog.head(f"branch:{view.internals.row.branch}")
    for oid in store.history.first_parents(head.oid) if head else ():
        state = store.history.state(oid)
        if state.journal:
            journal = decode(JournalHead, store.objects.get(Oid(state.journal)))
            if contains_journal(view.internals.services, view.internals.event_log, journal):
                yield oid, journal.seq


def commits_around(
    view: SessionReader,
    seq: int,
    *,
    among: Iterable[tuple[Oid, int]] | None = None,
    counts: Callable[[Commit], bool] = lambda _: True,
) -> AdjacentCommits:
    """Return the newest commit up to event `seq`, and the oldest after it.

    Args:
        among: the commits of the session, if already known.
        counts: says which commits qualify as the one before.
    """
    after = None
    for oid, at in commits_of(view) if among is None else among:
        if at > seq:
            after = (oid, at)
        elif counts(view.internals.store.history.read(oid)):
            return AdjacentCommits((oid, at), after)
    return AdjacentCommits(None, after)


def commit_directory_head(session: Session, files: Workspace, message: str) -> None:
    """Commit the session with the files of the directory's last commit."""
    head = files.head
    if head is not None:
        session.internals.navigation.head_image = files.store.history.state(
            from_hex(head.oid)
        ).machine
        session.commit(message)


def rewind_with_files(
    session: Session, files: Workspace | None, seq: int, files_commit: Oid | None
) -> tuple[CommitInfo, Report]:
    """Restore the state after event `seq` and the files of the commit `files_commit`.

    Returns:
        The commit of the present state and files, which is made first, and the report.
    """
    return run_with_sweep_retry(
        session.internals.store, lambda: _rewind_with_files(session, files, seq, files_commit)
    )


def _rewind_with_files(
    session: Session, files: Workspace | None, seq: int, files_commit: Oid | None
) -> tuple[CommitInfo, Report]:
    store = session.internals.store
    was = _commit_present(session, files)
    with store.writing():  # until the head moves, only its id refers to the commit
        target = commit_at(
            session.internals.services, session.internals.row, session.internals.event_log, seq
        )
        if files_commit is not None:
            target = _replace_files(session, target, files_commit)
        return was, _restore_target(session, files, target)


def restore_with_files(
    session: Session, files: Workspace | None, target: Oid
) -> tuple[CommitInfo, Report]:
    """Restore state and files of a commit; returns as `rewind_with_files`."""
    return _commit_present(session, files), _restore_target(session, files, target)


def _commit_present(session: Session, files: Workspace | None) -> CommitInfo:
    if files is None:
        return session.commit("before rewind")
    return commit_with_files(session, files, "before rewind")


def _restore_target(session: Session, files: Workspace | None, target: Oid) -> Report:
    """Restore the files first, so that repeating an interrupted call completes it."""
    report = Report()
    if files is not None and session.internals.store.history.state(target).machine:
        report = files.files.checkout_files(target, processes=False)
        files.commit(f"rewound by {session.name}")
        failpoint("rewind.files")
    session.restore(to_hex(target))
    return report


def _commit_files(files: Workspace, message: str) -> bytes:
    oid = from_hex(files.commit(message).oid)
    return files.store.history.state(oid).machine


def _replace_files(session: Session, target: Oid, files_commit: Oid) -> Oid:
    store = session.internals.store
    there, wanted = store.history.state(target), store.history.state(files_commit).machine
    if there.machine == wanted:
        return target
    state = msgspec.structs.replace(there, machine=wanted)
    was = store.history.read(target)
    commit = Commit(
        state=store.objects.put(Kind.STATE, encode(state)),
        parents=was.parents,
        message=was.message,
        time=store.clock.now_ns(),
        author=store.author,
    )
    oid = store.history.put(commit)
    store.objects.flush()
    return oid
