"""What a restore, rewind or undo would do, told before it is done: what changes, and what will not
come back. It reads: no lease is taken, no event is written, no program is started."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ortet._util.codec import decode
from ortet.errors import Conflict, NotFound, Refused, Unavailable, Unsupported
from ortet.history.diff.tree_diff import Change, is_touch
from ortet.history.records import Image, Processes
from ortet.ids import Oid, from_hex, to_hex
from ortet.journal.state.around import Collaboration
from ortet.journal.state.records import Effect
from ortet.machines.base import Loss
from ortet.sessions.environment.environments import recorded_in
from ortet.sessions.environment.external_state import staying
from ortet.sessions.history.compare import between_images
from ortet.sessions.history.lapsed import deeds_since, forgotten, lapsed
from ortet.sessions.history.participants import is_quiet
from ortet.sessions.results import Lapsed, check_parts
from ortet.sessions.session import Session
from ortet.sessions.starting import NOWHERE, check_fits
from ortet.workspaces.undo import Files, Step, Way, plan

if TYPE_CHECKING:
    from ortet.sessions.reader import View
    from ortet.workspaces.table import WorkspaceRow
    from ortet.workspaces.workspace import Workspace


class Foreseen(msgspec.Struct, frozen=True):
    """What going to a commit would do. `uncommitted`: something is kept in a commit first.
    `forgotten` counts the events that the mind would not know of. `ends` are programs that run now
    and would not then; `starts`, those of the commit that go on; `lost` cannot come back. Deeds
    that were done since stay done, and others still see what those made. `steps` are what an undo
    takes back. Not `looked`: a machine is at rest or another's, and the files of the head stand
    for what is in it."""

    to: str
    head: str
    changes: list[Change]
    uncommitted: bool
    forgotten: int
    starts: list[str]
    ends: list[str]
    lost: list[Loss]
    deeds: list[Effect]
    collaborations: list[Collaboration]
    secrets: list[Lapsed]
    steps: list[Step] = []
    looked: bool = True


def foresee(view: View, target: Oid, only: Collection[str] | None = None) -> Foreseen:
    """Of `session.restore(target, only=only)`."""
    with _present(view) as now:
        return _foreseen(view, now, target, check_parts(only))


def foresee_rewind(view: View, n: int) -> Foreseen:
    """Of `session.rewind(n)`."""
    head = view.head
    if head is None:
        raise NotFound("no_commit", f"{view.name!r} has no commit yet: commit first")
    return foresee(view, view.hub.history.nth_parent(from_hex(head.oid), n))


def foresee_undo(view: View, way: Way, n: int) -> Foreseen:
    """Of `session.undo(n)` or `session.redo(n)`."""
    with _present(view) as now:
        files = None
        if now.image is not None and now.row is not None:
            hub, nothing = view.hub, now.row.nothing
            files = Files(now.image, lambda oid: hub.read_image(hub.image_oid(oid, nothing)))
        dirty = _is_told(view)
        found = plan(view.hub, view.row.branch, way, n, files=files, dirty=dirty)
        told = _foreseen(view, now, found.target, check_parts(None))
        return msgspec.structs.replace(told, steps=found.steps, uncommitted=found.dirty)


class _Now(NamedTuple):
    """The files of a session as they are, or (not `looked`) as its head has them; `files`, where
    they are open."""

    image: Image | None = None
    row: WorkspaceRow | None = None
    files: Workspace | None = None
    looked: bool = True


@contextmanager
def _present(view: View) -> Iterator[_Now]:
    """Conflict("session_closed") where nobody can go on, so that there is nothing to foresee."""
    check_fits(view.row, NOWHERE, "")
    hub = view.hub
    opened = view.opened_files if isinstance(view, Session) else None
    row = hub.registry.get(view.row.branch) if view.row.has_files else None
    if opened is not None:
        yield _Now(opened.image(), row, opened)
        return
    found = _opened(view, row) if row is not None and row.engine != "criu" else None
    if found is not None:
        with found:
            yield _Now(found.image(), row, found)
        return
    head = view.head
    machine = hub.history.state(from_hex(head.oid)).machine if head is not None else b""
    image = hub.read_image(Oid(machine)) if machine else None
    yield _Now(image, row, None, row is None and not view.row.path)


def _opened(view: View, row: WorkspaceRow) -> Workspace | None:
    """To look at for a moment; None where that cannot be: another process has the machine, its
    directory is gone, or of another host."""
    try:
        return view.hub.workspace(name=row.name)
    except (Conflict, NotFound, Refused, Unavailable, Unsupported):
        return None


def _foreseen(view: View, now: _Now, target: Oid, parts: Collection[str]) -> Foreseen:
    hub = view.hub
    machine = hub.history.state(target).machine
    then = hub.read_image(Oid(machine)) if machine else None
    has_files = now.row is not None
    changes = between_images(hub, now.image, then) if "files" in parts and has_files else []
    starts, lost = _programs(view, now, then) if "processes" in parts else ([], [])
    deeds, minds, head = deeds_since(hub, view.row, target), hub._minds(), view.head
    return Foreseen(
        to=to_hex(target),
        head=head.oid if head is not None else "",
        changes=changes,
        uncommitted=_is_told(view) or _is_dirty(view, now.image),
        forgotten=forgotten(view, target) if "mind" in parts else 0,
        starts=starts,
        ends=_running(now.files) if "processes" in parts else [],
        lost=lost,
        deeds=deeds,
        collaborations=staying(view, deeds),
        secrets=lapsed(minds, target, recorded_in(minds, target)),
        looked=now.looked,
    )


def _is_told(view: View) -> bool:
    """Whether its mind knows something that no commit holds."""
    return any(not is_quiet(one) for one in view.events(view.line.base.seq))


def _is_dirty(view: View, now: Image | None) -> bool:
    head, hub = view.head, view.hub
    if head is None:
        return True
    machine = hub.history.state(from_hex(head.oid)).machine
    then = hub.read_image(Oid(machine)) if machine else None
    return not all(map(is_touch, between_images(hub, then, now)))


def _running(files: Workspace | None) -> list[str]:
    try:
        jobs = files.jobs() if files is not None else []
    except Unsupported:  # beside a directory in place nothing goes on
        return []
    return [job.name for job in jobs if job.code is None]


def _programs(view: View, now: _Now, then: Image | None) -> tuple[list[str], list[Loss]]:
    """Those of a commit that would go on here, and those that would not."""
    from ortet.machines.live.host_compat import check_host, this_host
    from ortet.machines.services import left_behind, programs_of

    objects = view.hub.objects
    if then is None or now.row is None:
        return [], []
    if now.row.engine != "criu" or not then.processes:
        return [], left_behind(objects, then, now.row.engine)
    record = decode(Processes, objects.get(Oid(then.processes)))
    why = check_host(record, this_host(record.version))
    losses = [Loss("", "process", f"it cannot go on here: {one.text}") for one in why]
    return [] if why else programs_of(objects, then), losses
