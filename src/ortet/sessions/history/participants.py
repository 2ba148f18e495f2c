"""The mind that goes with a branch: what it adds to a commit, how it goes where the files go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from ortet._util.codec import Record, decode, encode
from ortet._util.failpoints import reach
from ortet.backends.base import Catalog, Lease, RowChange, Timeline
from ortet.errors import NotFound, Refused
from ortet.history.records import Fold, Journal, State
from ortet.ids import Oid
from ortet.journal.environment import Variable
from ortet.journal.event_log import NOTHING, Line
from ortet.journal.events import Event, Tip
from ortet.journal.state.reducers import fold
from ortet.journal.state.state import Mind
from ortet.objects.base import Kind
from ortet.sessions.actions.asking import inherited
from ortet.sessions.environment.environments import recorded_of
from ortet.sessions.environment.variables import Variables
from ortet.sessions.memory.believing import is_told, sealed_by
from ortet.sessions.table import Roll, SessionRow
from ortet.sessions.writing.inbox import waiting
from ortet.sessions.writing.state_cache import LEAST, epoch_of, find, keep
from ortet.workspaces.commit_participant import Together

if TYPE_CHECKING:
    from ortet.sessions.manager import Sessions

_GOING = "going"
"""Rows of this kind are there while files move without their branch."""


def is_quiet(event: Event) -> bool:
    """Whether an event alone is no reason for a commit: it was opened or let go, or its
    surroundings were looked at although nobody asked."""
    return event.kind == "lifecycle" or (
        event.kind == "environment" and not event.data.get("asked")
    )


_FEW = 16

_KEEP = 1000
"""Segments whose timeline is remembered."""


class Standing(msgspec.Struct, frozen=True):
    """Where a session is: its events so far, what they add up to, and the files of its head."""

    line: Line
    mind: Mind
    tip: Tip
    machine: bytes
    epoch: int = -1  # of before it was read, see session/hotfold


def sealed(sessions: Sessions, row: SessionRow, head: Oid | None) -> tuple[Journal, bytes]:
    """What commits hold of a session's line, and the files of its head.

    The head's journal, if that was made on this timeline; else the one the timeline began with.
    """
    objects = sessions.hub.objects
    began = decode(Journal, objects.get(Oid(row.sealed))) if row.sealed else NOTHING
    if head is None:
        return began, b""
    state = sessions.hub.history.state(head)
    if state.journal and state.journal != row.sealed:
        journal = decode(Journal, objects.get(Oid(state.journal)))
        if _is_on(sessions, row.timeline, journal):
            return journal, state.machine
    return began, state.machine


class Beginning(msgspec.Struct, frozen=True):
    """What timelines begin with that start at one commit: its journal, and the fold read."""

    oid: bytes
    heir: bytes  # of the fold: erasure puts another in its place
    journal: Journal
    fold: Fold | None


def beginning(sessions: Sessions, oid: bytes) -> Beginning:
    """The last one is remembered: a swarm starts many times at the same commit."""
    objects, known, journal = sessions.hub.objects, sessions.began, _journal(sessions, oid)
    heir = objects.heir(Oid(journal.fold)) if journal.fold else b""
    if known is None or known.oid != oid or known.heir != heir:
        fold = decode(Fold, objects.get(Oid(heir))) if heir else None
        known = sessions.began = Beginning(oid, heir, journal, fold)
    return known


def _journal(sessions: Sessions, oid: bytes) -> Journal:
    if sessions.began is not None and sessions.began.oid == oid:
        return sessions.began.journal
    return decode(Journal, sessions.hub.objects.get(Oid(oid))) if oid else NOTHING


def fresh(sessions: Sessions, row: SessionRow, began: Beginning, machine: bytes) -> Standing:
    """Where a session is on whose timeline nothing happened yet; its mind is its own."""
    hub, journal = sessions.hub, began.journal
    line = Line(hub.catalog, hub.objects, sessions.chain, timeline=row.timeline, base=journal)
    tip = Tip(journal.seq, journal.hash, 0)
    epoch = hub.objects.gate.epoch() if hub.cache.shared else -1  # heard: asked when it is kept
    return Standing(line, Mind(sessions.maps, began.fold), tip, machine, epoch)


def line_of(sessions: Sessions, row: SessionRow) -> tuple[Line, bytes]:
    """The events of a session so far, and the files of its head."""
    hub = sessions.hub
    found = hub.catalog.head(f"branch:{row.branch}")
    journal, machine = sealed(sessions, row, found.oid if found else None)
    line = Line(hub.catalog, hub.objects, sessions.chain, timeline=row.timeline, base=journal)
    return line, machine


def standing_of(sessions: Sessions, row: SessionRow) -> Standing:
    """Where a session is now."""
    hub, epoch = sessions.hub, epoch_of(sessions)
    line, machine = line_of(sessions, row)
    journal = line.base
    mind = Mind.load(sessions.maps, hub.objects, journal.fold)
    kept = find(sessions, line, mind, epoch)
    tip = begun = kept or Tip(journal.seq, journal.hash, 0)
    for event in line.events(tip.seq):
        fold(mind, [event])
        tip = Tip(event.seq, event.hash, event.time)
    if tip.seq - begun.seq >= LEAST:
        keep(sessions, line, mind, tip, epoch=epoch)
    return Standing(line, mind, tip, machine, epoch)


def behind(line: Line) -> Iterator[Event]:
    """What no commit holds yet. Who only looks whether there is something reads a few of them."""
    base = line.base.seq
    return chain(line.events(base, base + _FEW), line.events(base + _FEW))


def seal(sessions: Sessions, line: Line, mind: Mind, tip: Tip) -> Journal:
    """Put what is not sealed yet into the store."""
    reach("journal.before-seal")
    segment = line.seal(tip)  # which refuses what must not be stored
    return Journal(segment, tip.seq, tip.hash, mind.save(sessions.hub.objects))


def put(sessions: Sessions, journal: Journal) -> Oid:
    return sessions.hub.objects.put(Kind.JOURNAL, encode(journal))


def elsewhere(sessions: Sessions, row: SessionRow, target: Oid) -> SessionRow:
    """The same session on a new timeline, which begins where `target` was committed."""
    objects = sessions.hub.objects
    state = decode(State, objects.get(sessions.hub.history.read(target).state))
    return msgspec.structs.replace(
        row, timeline=sessions.new_id(), sealed=state.journal, beliefs=state.memory
    )


def going_on(sessions: Sessions, old: SessionRow, new: SessionRow) -> list[RowChange]:
    """What says that a session is there from now on, and what it may ask for there."""
    return [*Roll.moved(old, new), *inherited([new], beginning(sessions, new.sealed).fold)]


def start_of(sessions: Sessions, row: SessionRow, here: str = "") -> Timeline:
    """The timeline of a row that is new: behind what its `sealed` holds. `here`: one that is sure
    to be in this catalog."""
    if not row.sealed:
        return Timeline(row.timeline)
    journal = _journal(sessions, row.sealed)
    parent = _timeline(sessions, journal) if journal.segment else ""
    if parent not in ("", here) and sessions.hub.catalog.timeline(parent) is None:
        parent = ""  # another host's: its events are in the commit
    return Timeline(row.timeline, parent, journal.seq)


class _Start(Record, frozen=True):
    """What a Segment begins with: the rest, every header of it, is not looked at."""

    timeline: bytes


def _is_on(sessions: Sessions, timeline: str, journal: Journal) -> bool:
    """Whether a journal ends on this timeline. Its row there says so without a look at the segment,
    which holds a header of every event it seals."""
    if not journal.segment:
        return False
    rows = sessions.hub.catalog.events(timeline, journal.seq - 1, 1)
    if rows and sessions.hub.objects.hasher.oid(rows[0].head) == journal.hash:
        return True
    return _timeline(sessions, journal) == timeline


def _timeline(sessions: Sessions, journal: Journal) -> str:
    known = sessions.timelines.get(journal.segment)
    if known is None:
        objects = sessions.hub.objects
        if len(sessions.timelines) >= _KEEP:
            sessions.timelines.clear()
        start = decode(_Start, objects.get(objects.heir(Oid(journal.segment))))
        known = sessions.timelines[journal.segment] = start.timeline.hex()
    return known


def going(catalog: Catalog, branch: str) -> Oid | None:
    """The commit whose files have to come back: a process was killed when it moved them."""
    row = catalog.row(_GOING, branch)
    return Oid(row.value) if row else None


def set_going(catalog: Catalog, branch: str, safety: Oid) -> None:
    catalog.put_row(_GOING, branch, safety)
    reach("restore.going")


def end_going(catalog: Catalog, branch: str) -> None:
    catalog.drop_row(_GOING, branch)


def gone(branch: str) -> RowChange:
    """The same, for the transaction that moves the branch."""
    return RowChange(_GOING, branch, None)


class Guest:
    """The session of a directory that this process has not opened: its mind is committed with the
    files, and goes with them when nobody else is at work."""

    def __init__(self, sessions: Sessions, row: SessionRow) -> None:
        self._sessions = sessions
        self._row = row
        self._lease: Lease | None = None
        self._next: SessionRow | None = None
        self._where: Standing | None = None  # of the commit that is being made
        self._variables = Variables(sessions.hub.environ, sessions.hub.opening)

    def journal(self, head: bytes) -> bytes:
        with suppress(NotFound):  # it may have gone elsewhere, or be no more
            self._row = self._sessions.roll.get(self._row.id)
        self._take_in()
        where = self._sessions.standing(self._row)
        new = where.line.events(where.line.base.seq)
        self._where = None
        if all(is_quiet(event) for event in new):
            return head
        self._where = where
        return put(self._sessions, seal(self._sessions, where.line, where.mind, where.tip))

    def memory(self, head: bytes) -> bytes:
        if self._where is None:
            return head
        return sealed_by(self._sessions, self._row, self._where.mind)

    def recorded(self) -> None:
        if self._where is not None:
            where, self._where = self._where, None
            self._sessions.scopes.recorded()
            if is_told(self._sessions, self._row, where.line, where.mind, where.tip.seq):
                return
            with suppress(Refused), self._sessions.borrowed(self._row) as session:
                session._publish()  # unless someone else writes, and tells it then
                self._row = session.row

    def _take_in(self) -> None:
        """What people left for the session belongs to this commit, unless someone else writes."""
        if next(waiting(self._sessions.hub.catalog, self._row.id), None) is not None:
            with suppress(Refused), self._sessions.borrowed(self._row) as session:
                session.take_in()

    def going(self, safety: Oid) -> None:
        set_going(self._sessions.hub.catalog, self._row.branch, safety)

    def stayed(self) -> None:
        end_going(self._sessions.hub.catalog, self._row.branch)

    def leaving(self, target: Oid) -> Together:
        self._lease = self._sessions.lease(self._row)
        self._row = self._sessions.roll.get(self._row.id)
        self._next = elsewhere(self._sessions, self._row, target)
        return Together(
            self._lease,
            [*going_on(self._sessions, self._row, self._next), gone(self._row.branch)],
            [start_of(self._sessions, self._next)],
        )

    def arrived(self) -> None:
        if self._lease is not None and self._next is not None:
            self._row, self._next = self._next, None
            self._sessions.hub.catalog.release(self._lease)
            self._variables.restored(self._recorded())

    def lease(self) -> Lease | None:
        return None

    def variables(self) -> Mapping[str, str | None]:
        return self._variables.over(self._recorded() or {})

    def _recorded(self) -> Mapping[str, Variable] | None:
        """As its session knows them now, whoever writes to it."""
        with suppress(NotFound):  # it was removed meanwhile
            known = recorded_of(self._sessions.get(self._row.id))[1]
            return known.variables if known is not None else None
        return None
