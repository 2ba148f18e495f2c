"""What a restore, rewind or undo would do, told before it is done: what changes, and what will not
come back. It reads: no lease is taken, no event is written, no program is started."""

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
from ortet.journal.state.around import Collaboration
from ortet.journal.state.records import Effect
from ortet.machines.base import Loss
from ortet.sessions.environment.environments import environment_at_commit
from ortet.sessions.environment.external_state import surviving_collaborations
from ortet.sessions.history.compare import between_images
from ortet.sessions.history.lapsed import (
    count_forgotten_events,
    effects_since_commit,
    unavailable_secrets,
)
from ortet.sessions.history.participants import is_bookkeeping_event
from ortet.sessions.results import UnavailableSecret, check_parts
from ortet.sessions.session import Session
from ortet.sessions.starting import NO_FILES, check_fits
from ortet.workspaces.undo import UndoDirection, UndoFiles, UndoStep, plan_undo

if TYPE_CHECKING:
    from ortet.sessions.reader import SessionReader
    from ortet.workspaces.table import WorkspaceRow
    from ortet.workspaces.workspace import Workspace


class RestorePreview(msgspec.Struct, frozen=True):
    """What going to a commit would do. `uncommitted`: something is kept in a commit first.
    `forgotten` counts the events that the mind would not know of. `ends` are programs that run now
    and would not then; `starts`, those of the commit that go on; `lost` cannot come back. Deeds
    that were done since stay done, and others still see what those made. `steps` are what an undo
    takes back. Not `looked`: a machine is at rest or another's, and the files of the head stand
    for what is in it."""

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
    """Of `session.restore(target, only=only)`."""
    with _open_present_files(view) as now:
        return _build_preview(view, now, target, check_parts(only))


def preview_rewind(view: SessionReader, n: int) -> RestorePreview:
    """Of `session.rewind(n)`."""
    head = view.head
    if head is None:
        raise NotFound("no_commit", f"{view.name!r} has no commit yet: commit first")
    return preview_restore(view, view.hub.history.nth_parent(from_hex(head.oid), n))


def preview_undo(view: SessionReader, direction: UndoDirection, n: int) -> RestorePreview:
    """Of `session.undo(n)` or `session.redo(n)`."""
    with _open_present_files(view) as now:
        files = None
        if now.image is not None and now.row is not None:
            hub, nothing = view.hub, now.row.empty_image
            files = UndoFiles(now.image, lambda oid: hub.read_image(hub.image_oid(oid, nothing)))
        dirty = _has_uncommitted_events(view)
        found = plan_undo(view.hub, view.row.branch, direction, n, files=files, dirty=dirty)
        told = _build_preview(view, now, found.target, check_parts(None))
        return msgspec.structs.replace(told, steps=found.steps, uncommitted=found.dirty)


class _PresentFiles(NamedTuple):
    """The files of a session as they are, or (not `looked`) as its head has them; `files`, where
    they are open."""

    image: Image | None = None
    row: WorkspaceRow | None = None
    files: Workspace | None = None
    is_current: bool = True


@contextmanager
def _open_present_files(view: SessionReader) -> Iterator[_PresentFiles]:
    """Conflict("session_closed") where nobody can go on, so that there is nothing to foresee."""
    check_fits(view.row, NO_FILES, "")
    hub = view.hub
    opened = view.attached_files if isinstance(view, Session) else None
    row = hub.workspace_table.get(view.row.branch) if view.row.has_files else None
    if opened is not None:
        yield _PresentFiles(opened.current_image(), row, opened)
        return
    found = _try_open_workspace(view, row) if row is not None and row.engine != "criu" else None
    if found is not None:
        with found:
            yield _PresentFiles(found.current_image(), row, found)
        return
    head = view.head
    machine = hub.history.state(from_hex(head.oid)).machine if head is not None else b""
    image = hub.read_image(Oid(machine)) if machine else None
    yield _PresentFiles(image, row, None, row is None and not view.row.path)


def _try_open_workspace(view: SessionReader, row: WorkspaceRow) -> Workspace | None:
    """To look at for a moment; None where that cannot be: another process has the machine, its
    directory is gone, or of another host."""
    try:
        return view.hub.workspace(name=row.name)
    except (Conflict, NotFound, Refused, Unavailable, Unsupported):
        return None


def _build_preview(
    view: SessionReader, now: _PresentFiles, target: Oid, parts: Collection[str]
) -> RestorePreview:
    hub = view.hub
    machine = hub.history.state(target).machine
    then = hub.read_image(Oid(machine)) if machine else None
    has_files = now.row is not None
    changes = between_images(hub, now.image, then) if "files" in parts and has_files else []
    starts, lost = _programs(view, now, then) if "processes" in parts else ([], [])
    deeds, minds, head = (
        effects_since_commit(hub, view.row, target),
        hub._session_manager(),
        view.head,
    )
    return RestorePreview(
        to=to_hex(target),
        head=head.oid if head is not None else "",
        changes=changes,
        uncommitted=_has_uncommitted_events(view) or _is_dirty(view, now.image),
        forgotten=count_forgotten_events(view, target) if "mind" in parts else 0,
        starts=starts,
        ends=_running(now.files) if "processes" in parts else [],
        lost=lost,
        deeds=deeds,
        collaborations=surviving_collaborations(view, deeds),
        secrets=unavailable_secrets(minds, target, environment_at_commit(minds, target)),
        looked=now.is_current,
    )


def _has_uncommitted_events(view: SessionReader) -> bool:
    """Whether its mind knows something that no commit holds."""
    return any(not is_bookkeeping_event(one) for one in view.events(view.event_log.base.seq))


def _is_dirty(view: SessionReader, now: Image | None) -> bool:
    head, hub = view.head, view.hub
    if head is None:
        return True
    machine = hub.history.state(from_hex(head.oid)).machine
    then = hub.read_image(Oid(machine)) if machine else None
    return not all(map(is_directory_touch, between_images(hub, then, now)))


def _running(files: Workspace | None) -> list[str]:
    try:
        jobs = files.jobs() if files is not None else []
    except Unsupported:  # beside a directory in place nothing goes on
        return []
    return [job.name for job in jobs if job.code is None]


def _programs(
    view: SessionReader, now: _PresentFiles, then: Image | None
) -> tuple[list[str], list[Loss]]:
    """Those of a commit that would go on here, and those that would not."""
    from ortet.machines.live.host_compat import check_host, this_host
    from ortet.machines.services import running_program_names, service_losses

    objects = view.hub.objects
    if then is None or now.row is None:
        return [], []
    if now.row.engine != "criu" or not then.processes:
        return [], service_losses(objects, then, now.row.engine)
    record = decode(Processes, objects.get(Oid(then.processes)))
    why = check_host(record, this_host(record.version))
    losses = [Loss("", "process", f"it cannot go on here: {one.text}") for one in why]
    return [] if why else running_program_names(objects, then), losses
