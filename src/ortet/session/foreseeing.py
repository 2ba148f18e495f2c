"""What a restore would do, told before it is done: what changes, and what will not come back."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import msgspec

from ortet.codec import decode
from ortet.errors import NotFound, Unsupported
from ortet.graph.diff import Change, is_touch
from ortet.graph.records import Image, Processes
from ortet.ids import Oid, from_hex, to_hex
from ortet.journal.apart import part
from ortet.journal.around import Collaboration
from ortet.journal.things import Effect
from ortet.machine.abc import Loss
from ortet.session.around import staying
from ortet.session.comparing import between_images, files_now
from ortet.session.environments import recorded_in
from ortet.session.guest import is_quiet
from ortet.session.joining import journal_of
from ortet.session.lapsed import deeds_since, lapsed
from ortet.session.outcome import Lapsed, check_parts

if TYPE_CHECKING:
    from ortet.session.session import Session


class Foreseen(msgspec.Struct, frozen=True):
    """What going to a commit would do. `uncommitted`: something is kept in a commit first.
    `forgotten` counts the events that the mind would not know of. `ends` are programs that run now
    and would not then; `starts`, those of the commit that go on; `lost` cannot come back. Deeds
    that were done since stay done, and others still see what those made."""

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


def foresee(session: Session, target: Oid, only: Collection[str] | None = None) -> Foreseen:
    """Of `session.restore(target, only=only)`; nothing is moved by it."""
    parts, hub = check_parts(only), session.hub
    machine = hub.history.state(target).machine
    then = hub.read_image(Oid(machine)) if machine else None
    now = files_now(session)
    has_files = session.opened_files is not None
    changes = between_images(hub, now, then) if "files" in parts and has_files else []
    head = session.head
    starts, lost = _programs(session, then) if "processes" in parts and has_files else ([], [])
    deeds = deeds_since(hub, session.row, target)
    return Foreseen(
        to=to_hex(target),
        head=head.oid if head is not None else "",
        changes=changes,
        uncommitted=_is_dirty(session, now),
        forgotten=_forgotten(session, target) if "mind" in parts else 0,
        starts=starts,
        ends=_running(session) if "processes" in parts else [],
        lost=lost,
        deeds=deeds,
        collaborations=staying(session, deeds),
        secrets=lapsed(hub._minds(), target, recorded_in(hub._minds(), target)),
    )


def foresee_rewind(session: Session, n: int) -> Foreseen:
    """Of `session.rewind(n)`."""
    head = session.head
    if head is None:
        raise NotFound("no_commit", f"{session.name!r} has no commit yet: commit first")
    return foresee(session, session.hub.history.nth_parent(from_hex(head.oid), n))


def _is_dirty(session: Session, now: Image | None) -> bool:
    head = session.head
    if head is None or any(not is_quiet(one) for one in session.events(session.line.base.seq)):
        return True
    machine = session.hub.history.state(from_hex(head.oid)).machine
    then = session.hub.read_image(Oid(machine)) if machine else None
    return not all(map(is_touch, between_images(session.hub, then, now)))


def _forgotten(session: Session, target: Oid) -> int:
    hub, sessions, line = session.hub, session.hub._minds(), session.line
    then = journal_of(sessions, hub.history.state(target))
    left = part(hub.objects, line.base, then)[0].newest(hub.objects, sessions.chain)
    return sum(not is_quiet(event) for event in (*left, *line.events(line.base.seq)))


def _running(session: Session) -> list[str]:
    files = session.opened_files
    try:
        jobs = files.jobs() if files is not None else []
    except Unsupported:  # beside a directory in place nothing goes on
        return []
    return [job.name for job in jobs if job.code is None]


def _programs(session: Session, then: Image | None) -> tuple[list[str], list[Loss]]:
    """Those of a commit that would go on here, and those that would not."""
    from ortet.machine.carried import left_behind, programs_of
    from ortet.machine.likehost import check_host, this_host

    files, objects = session.opened_files, session.hub.objects
    if then is None or files is None:
        return [], []
    if files.engine != "criu" or not then.processes:
        return [], left_behind(objects, then, files.engine)
    record = decode(Processes, objects.get(Oid(then.processes)))
    why = check_host(record, this_host(record.version))
    losses = [Loss("", "process", f"it cannot go on here: {one.text}") for one in why]
    return [] if why else programs_of(objects, then), losses
