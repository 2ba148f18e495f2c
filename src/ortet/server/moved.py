"""Where a session went, or would go, as it is told."""

from __future__ import annotations

import msgspec

from ortet.journal.environment import Difference
from ortet.journal.state.around import Collaboration
from ortet.journal.state.records import Effect
from ortet.machines.base import Loss, Report
from ortet.server.operations.history import FileChanges, file_changes
from ortet.sessions.history.preview import Foreseen
from ortet.sessions.reader import View
from ortet.sessions.results import Lapsed, Restored
from ortet.sessions.session import Session
from ortet.workspaces.undo import Step, Undone

_SHOWN = 1000
"""Files that an answer names; all are counted."""


class Gone(msgspec.Struct, frozen=True):
    """Where a session went, or would go: not `done`, nothing was moved. `head` is its newest commit
    now; `was`, the one that holds what was there before. What was not committed is committed first
    (`kept`). `files` are the changes, where they are known: before it is done. `forgotten` counts
    events that its mind does not know of any more. `lost` did not, or will not, come back; `ends`
    are programs that run and will not then. `deeds` were done since and stay done, and others see
    `collaborations` that they made; `secrets` are named there and cannot be had here now;
    `environment` is what surrounds it now and did not then; `steps` are what an undo takes back.
    Not `looked`: its machine is at rest, or another process's, so its newest commit stands for what
    is in it."""

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
    secrets: list[Lapsed]
    environment: list[Difference]
    steps: list[Step]
    looked: bool
    text: str


def gone(session: Session, found: Restored, back: Undone | None = None, *, left: int = 0) -> Gone:
    """`left`: so many events that its mind does not know of any more."""
    head = session.head
    return Gone(
        done=True,
        to=found.to,
        head=head.oid if head is not None else "",
        was=back.was if back is not None else "",
        kept=back is not None and back.kept,
        files=_files(session, back) if back is not None else None,
        written=found.files.written,
        removed=found.files.removed,
        forgotten=back.events if back is not None else left,
        started=found.files.started,
        ends=[],
        lost=found.files.losses,
        deeds=found.deeds,
        collaborations=found.collaborations,
        secrets=found.secrets,
        environment=found.environment,
        steps=back.steps if back is not None else [],
        looked=True,
        text=str(found),
    )


def undone(session: Session, found: Undone) -> Gone:
    return gone(session, found.restored, found)


def _files(view: View, found: Undone | Foreseen) -> FileChanges:
    return file_changes(view.hub, found.changes, limit=_SHOWN)


def foreseen(view: View, found: Foreseen) -> Gone:
    return Gone(
        done=False,
        to=found.to,
        head=found.head,
        was=found.head,
        kept=found.uncommitted,
        files=_files(view, found),
        written=0,
        removed=0,
        forgotten=found.forgotten,
        started=found.starts,
        ends=found.ends,
        lost=found.lost,
        deeds=found.deeds,
        collaborations=found.collaborations,
        secrets=found.secrets,
        environment=[],
        steps=found.steps,
        looked=found.looked,
        text=str(Restored(found.to, Report(losses=found.lost), found.deeds, secrets=found.secrets)),
    )
