"""The answer of operations that move a session: restore, rewind, undo, redo and their previews."""

from __future__ import annotations

import msgspec

from ortet.hub.hub import hub_of
from ortet.journal.environment import EnvironmentDifference
from ortet.journal.state.external_state import Collaboration
from ortet.journal.state.records import Effect
from ortet.machines.base import Loss, Report
from ortet.server.operations.history import FileChanges, file_changes
from ortet.sessions.history.preview import RestorePreview
from ortet.sessions.reader import SessionReader
from ortet.sessions.session import Session
from ortet.workspaces.results import RestoreResult, UnavailableSecret
from ortet.workspaces.undo import UndoResult, UndoStep

_MAX_FILES_LISTED = 1000
"""Maximum number of files that an answer lists; the counts include all."""


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
