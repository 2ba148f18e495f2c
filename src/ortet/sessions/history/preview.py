"""Dry runs of restore, rewind and undo: what changes, and what does not come back.

A preview only reads. It takes no lease, writes no event and starts no program.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ortet._util.codec import decode
from ortet.errors import Conflict, NotFound, Refused, Unavailable, Unsupported
from ortet.history.diff.tree_diff import TreeChange, is_directory_touch
from ortet.history.records import Image, Processes
from ortet.ids import Oid, from_hex, to_hex
from ortet.journal.state.records import Collaboration, Effect
from ortet.machines.base import Loss
from ortet.sessions.environment.environments import environment_at_commit
from ortet.sessions.environment.external_state import surviving_collaborations
from ortet.sessions.history.compare import between_images
from ortet.sessions.history.event_commit import find_turn_start
from ortet.sessions.history.load import is_bookkeeping_event
from ortet.sessions.history.restore_report import (
    count_left_events,
    effects_since_commit,
    unavailable_secrets,
)
from ortet.sessions.profiles import DEFAULT_OPTIONS
from ortet.sessions.session import Session
from ortet.sessions.starting import NO_FILES, check_fits
from ortet.workspaces.results import UnavailableSecret, check_parts
from ortet.workspaces.undo import UndoDirection, UndoFiles, UndoStep, UndoUnit, plan_undo

if TYPE_CHECKING:
    from ortet.sessions.reader import SessionReader
    from ortet.workspaces.table import WorkspaceRow
    from ortet.workspaces.workspace import Workspace


class RestorePreview(msgspec.Struct, frozen=True):
    """The effects of a restore that has not been done.

    - `uncommitted`: present work would be committed first.
    - `forgotten`: the number of events that the state would lose.
    - `starts`, `ends`, `lost`: programs that would start, end, or cannot be restored.
    - `deeds`, `collaborations`: effects since then, which stay done, and what others still see.
    - `steps`: the steps of an undo.
    - `looked`: False if the machine could not be read; the head's files are used instead.
    """

    to: str
    head: str
    changes: list[TreeChange]
    uncommitted: bool
    forgotten: int
    starts: list[str]
    ends: list[str]
    lost: list[Loss]
    deeds: list[Effect]
    collaborations: list[Collaboration]
    secrets: list[UnavailableSecret]
    steps: list[UndoStep] = []
    looked: bool = True


def preview_restore(
    view: SessionReader, target: Oid, only: Collection[str] | None = None
) -> RestorePreview:
    """Preview `session.restore(target, only=only)`."""
    with _open_present_files(view) as now:
        return _build_preview(view, now, target, check_parts(only))


def preview_rewind(view: SessionReader, n: int) -> RestorePreview:
    """Preview `session.rewind(n)`."""
    head = view.head
    if head is None:
        raise NotFound("no_commit", f"{view.name!r} has no commit yet: commit first")
    return preview_restore(view, view.internals.store.history.nth_parent(from_hex(head.oid), n))


def preview_undo(
    view: SessionReader, direction: UndoDirection, n: int, *, by: UndoUnit = "move"
) -> RestorePreview:
    """Preview `session.undo(n, by=by)` or `session.redo(n)`."""
    with _open_present_files(view) as now, view.internals.store.writing():
        files = None
        if now.image is not None and now.row is not None:
            objects, nothing = view.internals.store, now.row.empty_image
            files = UndoFiles(
                now.image, lambda oid: objects.read_image(objects.image_oid(oid, nothing))
            )
        dirty = _has_uncommitted_events(view)
        turn, store, own = None, view.internals.store, view.internals.row
        if by == "turn":
            turn = find_turn_start(view.internals.services, own, view.internals.event_log, n)
        found = plan_undo(store, own.branch, direction, n, files=files, dirty=dirty, turn=turn)
        told = _build_preview(view, now, found.target, check_parts(None))
        return msgspec.structs.replace(told, steps=found.steps, uncommitted=found.dirty)


class _PresentFiles(NamedTuple):
    """The present files of a session, or those of its head if `is_current` is False.

    `files` is the workspace, if it is open.
    """

    image: Image | None = None
    row: WorkspaceRow | None = None
    files: Workspace | None = None
    is_current: bool = True


@contextmanager
def _open_present_files(view: SessionReader) -> Iterator[_PresentFiles]:
    """Yield the present files. Raise Conflict("session_closed") if the session cannot be opened."""
    check_fits(view.internals.row, NO_FILES, DEFAULT_OPTIONS)
    store = view.internals.store
    opened = view.internals.files.attached if isinstance(view, Session) else None
    row = (
        view.internals.services.workspaces.table.get(view.internals.row.branch)
        if view.internals.row.has_files
        else None
    )
    if opened is not None:
        yield _PresentFiles(opened.files.current_image(), row, opened)
        return
    found = _try_open_workspace(view, row) if row is not None and row.engine != "criu" else None
    if found is not None:
        with found:
            yield _PresentFiles(found.files.current_image(), row, found)
        return
    head = view.head
    machine = store.history.state(from_hex(head.oid)).machine if head is not None else b""
    image = store.read_image(Oid(machine)) if machine else None
    yield _PresentFiles(image, row, None, row is None and not view.internals.row.path)


def _try_open_workspace(view: SessionReader, row: WorkspaceRow) -> Workspace | None:
    """Open the workspace for reading, or return None.

    None means that another process has the machine, or that the directory is missing or on another
    host.
    """
    try:
        return view.internals.services.workspaces.open(name=row.name)
    except (Conflict, NotFound, Refused, Unavailable, Unsupported):
        return None


def _build_preview(
    view: SessionReader, now: _PresentFiles, target: Oid, parts: Collection[str]
) -> RestorePreview:
    store = view.internals.store
    machine = store.history.state(target).machine
    then = store.read_image(Oid(machine)) if machine else None
    has_files = now.row is not None
    changes = between_images(store, now.image, then) if "files" in parts and has_files else []
    starts, lost = _programs(view, now, then) if "processes" in parts else ([], [])
    minds, head = view.internals.services, view.head
    effects = effects_since_commit(minds, view.internals.row, target)
    return RestorePreview(
        to=to_hex(target),
        head=head.oid if head is not None else "",
        changes=changes,
        uncommitted=_has_uncommitted_events(view) or _is_dirty(view, now.image),
        forgotten=count_forgotten_events(view, target) if "mind" in parts else 0,
        starts=starts,
        ends=_running(now.files) if "processes" in parts else [],
        lost=lost,
        deeds=effects,
        collaborations=surviving_collaborations(view.internals.context, effects),
        secrets=unavailable_secrets(minds, target, environment_at_commit(minds, target)),
        looked=now.is_current,
    )


def _has_uncommitted_events(view: SessionReader) -> bool:
    """Return True if the session has events that no commit holds."""
    return any(
        not is_bookkeeping_event(one) for one in view.events(view.internals.event_log.base.seq)
    )


def _is_dirty(view: SessionReader, now: Image | None) -> bool:
    head, store = view.head, view.internals.store
    if head is None:
        return True
    machine = store.history.state(from_hex(head.oid)).machine
    then = store.read_image(Oid(machine)) if machine else None
    return not all(map(is_directory_touch, between_images(store, then, now)))


def _running(files: Workspace | None) -> list[str]:
    try:
        jobs = files.programs.jobs() if files is not None else []
    except Unsupported:  # the folder engine has no services
        return []
    return [job.name for job in jobs if job.code is None]


def _programs(
    view: SessionReader, now: _PresentFiles, then: Image | None
) -> tuple[list[str], list[Loss]]:
    """Return the programs of a commit that would start here, and those that would not."""
    from ortet.machines.host_compat import check_host, this_host
    from ortet.machines.services import running_program_names, service_losses

    objects = view.internals.store.objects
    if then is None or now.row is None:
        return [], []
    if now.row.engine != "criu" or not then.processes:
        return [], service_losses(objects, then, now.row.engine)
    record = decode(Processes, objects.get(Oid(then.processes)))
    why = check_host(record, this_host(record.version))
    losses = [Loss("", "process", f"it cannot go on here: {one.text}") for one in why]
    return [] if why else running_program_names(objects, then), losses


def count_forgotten_events(view: SessionReader, commit: Oid) -> int:
    """Return the number of events that the state would lose by a restore of a commit.

    Lifecycle events and automatic environment events are not counted.
    """
    base = view.internals.event_log.base
    return count_left_events(view.internals.services, base, commit, view.events(base.seq))
