"""Operations that change the state of a session: commit, fork, restore, rewind, undo, redo."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from ortet.errors import Invalid
from ortet.history.commits import CommitInfo
from ortet.hub.hub import hub_of
from ortet.ids import from_hex, to_hex
from ortet.journal.environment import EnvironmentDifference
from ortet.journal.state.records import Collaboration, Effect
from ortet.machines.base import Loss, Report
from ortet.server.auth.host_access import FORK_PARTS, check_move_access
from ortet.server.auth.tokens import Caller
from ortet.server.operations.history import FileChanges, file_changes, resolve_ref
from ortet.server.operations.registry import operation
from ortet.server.operations.sessions import Listed, session_summary
from ortet.server.schemas import OperationRequest, Ref
from ortet.sessions.history.fork_session import fork_at, fork_behind
from ortet.sessions.history.preview import (
    RestorePreview,
    count_forgotten_events,
    preview_restore,
    preview_rewind,
    preview_undo,
)
from ortet.sessions.reader import SessionReader
from ortet.sessions.session import Session
from ortet.workspaces.results import RestoreResult, UnavailableSecret
from ortet.workspaces.undo import UndoResult, UndoStep

_MAX_FILES_LISTED = 1000
"""Maximum number of files that an answer lists; the counts include all."""

Part = Literal["files", "mind", "processes"]
Times = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
ForkName = Annotated[
    str,
    msgspec.Meta(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._@+-]*$"),
]


class CommitRequest(OperationRequest, frozen=True):
    """`allow_secrets`: commit even if the files contain a known secret. `durable`: where a shared
    store has stored the commit when the request returns: in its bucket (remote), or on the server's
    disk (local), where other hosts cannot read it yet and where it can be lost. By default, the
    setting with which the server opened the store.
    """

    message: Annotated[str, msgspec.Meta(max_length=1 << 16)] = ""
    allow_secrets: bool = False
    durable: Literal["remote", "local"] | None = None


@operation("POST", "/sessions/{session}/commits", status=201, moves_head=True)
def commit(session: Session, ask: CommitRequest) -> CommitInfo:
    """Commit the state and the files of a session together. If nothing is new, the head is
    returned.
    """
    return session.commit(ask.message, allow_secrets=ask.allow_secrets, durable=ask.durable)


class ForkSessionRequest(OperationRequest, frozen=True):
    """`n`: the number of forks. `names`: a name for each fork instead; each becomes NAME/name, with
    the name of the session first. `at`: fork from this commit, not from the present state. `event`:
    fork from the state after this event, with the files of the last commit before it. `machine`:
    copy files and processes too, if the session has them.
    """

    n: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    names: Annotated[list[ForkName], msgspec.Meta(max_length=1000)] = []
    machine: bool = True
    at: Ref | None = None
    event: Annotated[int, msgspec.Meta(ge=1, le=1 << 53)] | None = None


class SessionForks(msgspec.Struct, frozen=True):
    """The new sessions. Any process may open them."""

    forks: list[Listed]


@operation("POST", "/sessions/{session}/forks", status=201, moves_head=True)
def fork(session: Session, ask: ForkSessionRequest, caller: Caller) -> SessionForks:
    """Make sessions that continue from the present state, or from a commit. Either all forks are
    made or none.
    """
    if ask.names and ask.n not in (1, len(ask.names)):
        raise Invalid("bad_count", f"{ask.n} forks, {len(ask.names)} names: leave one of them out")
    if ask.at is not None and ask.event is not None:
        raise Invalid("bad_request", "`at` and `event` exclude each other: leave one of them out")
    commit_oid = resolve_ref(session, ask.at) if ask.at is not None else None
    if ask.machine:
        check_move_access(
            caller, session.internals.row, hub=hub_of(session), parts=FORK_PARTS, commit=commit_oid
        )
    if ask.event is not None:
        forks = fork_behind(session, ask.event, n=ask.n, names=ask.names, machine=ask.machine)
    elif ask.names or commit_oid is not None:
        forks = fork_at(session, commit_oid, n=ask.n, names=ask.names, machine=ask.machine)
    else:
        forks = session.fork(ask.n, machine=ask.machine)
    return SessionForks([session_summary(one.internals.row) for one in forks])


class MoveOutcome(msgspec.Struct, frozen=True):
    """The result of a restore, rewind, undo or redo, or of its preview. `done`: false if it is a
    preview. `head`: the newest commit of the session afterwards. `was`: the commit with the state
    before. `kept`: uncommitted changes are committed first. `files`: the changes of files, in a
    preview. `forgotten`: the number of events that the session's state no longer includes. `lost`:
    parts that cannot be restored. `ends`: running programs that end. `deeds`: effects since then,
    which stay done. `collaborations`: their results that others see. `secrets`: secrets of that
    state that are not available now. `environment`: differences from the environment of that state.
    `steps`: the moves that an undo takes back. `looked`: false if the machine was not opened, or
    belongs to another process; its newest commit is then used instead.
    """

    done: bool
    to: str
    head: str
    was: str
    kept: bool
    files: FileChanges | None
    written: int
    removed: int
    forgotten: int
    started: list[str]
    ends: list[str]
    lost: list[Loss]
    deeds: list[Effect]
    collaborations: list[Collaboration]
    secrets: list[UnavailableSecret]
    environment: list[EnvironmentDifference]
    steps: list[UndoStep]
    looked: bool
    text: str


def restore_info(
    session: Session,
    restored: RestoreResult,
    undone: UndoResult | None = None,
    *,
    forgotten_events: int = 0,
) -> MoveOutcome:
    """Return the outcome of a restore or an undo.

    Args:
        session: The session that moved.
        restored: The result of the restore.
        undone: The result of the undo, if it was one.
        forgotten_events: Number of events that the session state no longer includes.
    """
    head = session.head
    return MoveOutcome(
        done=True,
        to=restored.to,
        head=head.oid if head is not None else "",
        was=undone.was if undone is not None else "",
        kept=undone is not None and undone.kept,
        files=_listed_changes(session, undone) if undone is not None else None,
        written=restored.files.written,
        removed=restored.files.removed,
        forgotten=undone.events if undone is not None else forgotten_events,
        started=restored.files.started,
        ends=[],
        lost=restored.files.losses,
        deeds=restored.deeds,
        collaborations=restored.collaborations,
        secrets=restored.secrets,
        environment=restored.environment,
        steps=undone.steps if undone is not None else [],
        looked=True,
        text=str(restored),
    )


def undo_info(session: Session, undone: UndoResult) -> MoveOutcome:
    """Return the outcome of an undo or redo."""
    return restore_info(session, undone.restored, undone)


def _listed_changes(view: SessionReader, move: UndoResult | RestorePreview) -> FileChanges:
    return file_changes(hub_of(view), move.changes, limit=_MAX_FILES_LISTED)


def preview_info(view: SessionReader, preview: RestorePreview) -> MoveOutcome:
    """Return what a move would do, without moving the session."""
    return MoveOutcome(
        done=False,
        to=preview.to,
        head=preview.head,
        was=preview.head,
        kept=preview.uncommitted,
        files=_listed_changes(view, preview),
        written=0,
        removed=0,
        forgotten=preview.forgotten,
        started=preview.starts,
        ends=preview.ends,
        lost=preview.lost,
        deeds=preview.deeds,
        collaborations=preview.collaborations,
        secrets=preview.secrets,
        environment=[],
        steps=preview.steps,
        looked=preview.looked,
        text=str(
            RestoreResult(
                preview.to, Report(losses=preview.lost), preview.deeds, secrets=preview.secrets
            )
        ),
    )


class Restore(OperationRequest, frozen=True):
    """`only`: restore only these parts. `restart`: start services that ran then and do not run now.
    `dry_run`: only report what would change and what cannot be restored.
    """

    ref: Ref
    only: Annotated[list[Part], msgspec.Meta(min_length=1)] | None = None
    restart: bool = False
    dry_run: bool = False


def _preview_restore(view: SessionReader, ask: Restore) -> MoveOutcome:
    return preview_info(view, preview_restore(view, resolve_ref(view, ask.ref), ask.only))


@operation("POST", "/sessions/{session}/restore", moves_head=True, preview=_preview_restore)
def restore(session: Session, ask: Restore, caller: Caller) -> MoveOutcome:
    """Restore a commit: state, files and processes. Uncommitted changes are committed first."""
    target = resolve_ref(session, ask.ref)
    if ask.restart:
        caller.need_host()
    check_move_access(
        caller, session.internals.row, hub=hub_of(session), parts=ask.only, commit=target
    )
    left = count_forgotten_events(session, target) if ask.only is None or "mind" in ask.only else 0
    restored = session.restore(to_hex(target), only=ask.only, restart=ask.restart)
    return restore_info(session, restored, forgotten_events=left)


class Back(OperationRequest, frozen=True):
    """`n`: the number of steps. `dry_run`: only report what would change."""

    n: Times = 1
    dry_run: bool = False


def _preview_rewind(view: SessionReader, ask: Back) -> MoveOutcome:
    return preview_info(view, preview_rewind(view, ask.n))


@operation("POST", "/sessions/{session}/rewind", moves_head=True, preview=_preview_rewind)
def rewind(session: Session, ask: Back, caller: Caller) -> MoveOutcome:
    """Restore the n-th commit before the head of the branch."""
    check_move_access(caller, session.internals.row, hub=hub_of(session))
    head = session.head
    target = (
        session.internals.store.history.nth_parent(from_hex(head.oid), ask.n)
        if head is not None
        else None
    )
    left = count_forgotten_events(session, target) if target is not None else 0
    return restore_info(session, session.rewind(ask.n), forgotten_events=left)


def _preview_undo(view: SessionReader, ask: Back) -> MoveOutcome:
    return preview_info(view, preview_undo(view, "undo", ask.n))


@operation("POST", "/sessions/{session}/undo", moves_head=True, preview=_preview_undo)
def undo(session: Session, ask: Back, caller: Caller) -> MoveOutcome:
    """Undo the last n moves of the branch. Uncommitted changes count as the first of them."""
    check_move_access(caller, session.internals.row, hub=hub_of(session))
    return undo_info(session, session.undo(ask.n))


def _preview_redo(view: SessionReader, ask: Back) -> MoveOutcome:
    return preview_info(view, preview_undo(view, "redo", ask.n))


@operation("POST", "/sessions/{session}/redo", moves_head=True, preview=_preview_redo)
def redo(session: Session, ask: Back, caller: Caller) -> MoveOutcome:
    """Redo the last n moves that were undone. This is not possible after a new move of the
    branch.
    """
    check_move_access(caller, session.internals.row, hub=hub_of(session))
    return undo_info(session, session.redo(ask.n))
