"""Erasing: bodies and salts are destroyed in rows, objects and folds; the chain of events stays."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import msgspec

from ortet._util.codec import decode, encode
from ortet._util.failpoints import reach
from ortet._util.validation import COUNT, must_be
from ortet.backends.base import Lease, RowChange
from ortet.errors import Invalid, NotFound
from ortet.hub.care import sweep_store
from ortet.hub.governance.archive import rewrite
from ortet.hub.governance.holds import check_hold, check_place
from ortet.hub.governance.rewrite_objects import replace_objects, sealed_rows, shared_segments
from ortet.hub.governance.tombstones import (
    PENDING,
    Erased,
    Pending,
    Receipt,
    Tombstone,
    kept,
    signer,
)
from ortet.ids import Oid
from ortet.journal.conversation.compaction import compaction_of, data_of, said
from ortet.journal.event_log import Line, Span
from ortet.journal.events import Draft, Event
from ortet.journal.segments import unseal
from ortet.journal.state.reducers import SHAREABLE
from ortet.memory.working import let_go
from ortet.sessions.actions.effects import Deed
from ortet.sessions.environment.traces import said_outside
from ortet.sessions.memory.documents import REMEMBERED, words_of
from ortet.sessions.memory.shared_scopes import scope_rows
from ortet.sessions.table import ARCHIVED, SessionRow
from ortet.sessions.writing import state_cache
from ortet.sessions.writing.inbox import drop, letters

if TYPE_CHECKING:
    from ortet.hub.hub import Hub
    from ortet.sessions.manager import Sessions

_NUMBERS = frozenset({"spend", "budget"})
"""Kinds that say how much and nothing else: a bill outlives who it is about."""

_PATIENCE = 60.0


def erase(
    sessions: Sessions, session: str | None, seqs: Sequence[int] | None, user: str | None
) -> Receipt:
    """See Hub.erase."""
    hub = sessions.hub
    check_place(hub)
    if session is None and user is None:
        raise Invalid("nothing_meant", "say what to erase: session=ID, or user=NAME, or both")
    if seqs is not None and session is None:
        raise Invalid("nothing_meant", "numbers of events mean those of a session: give session=ID")
    for seq in seqs or ():
        must_be(COUNT, **{"one of seqs": seq})
    receipt = finish(sessions)
    rows = [sessions.roll.get(session)] if session is not None else sessions.all()
    events, effects, outside = _meant(sessions, rows, seqs, user)
    waiting = _letters(sessions, rows, user) if seqs is None else []
    pending = Pending(
        id=sessions.new_id(),
        by=hub.author,
        session=session or "",
        events=events,
        effects=effects,
        letters=waiting,
        rows=outside,
    )
    if receipt is not None and {(e.timeline, e.seq) for e in events} <= {
        (e.timeline, e.seq) for e in receipt.events
    }:
        return receipt  # it is what the one that was cut short had begun
    with ExitStack() as held:
        known = _hold(sessions, events, held)
        pending = signer(hub).pending(pending)
        hub.catalog.put_row(PENDING, pending.id, encode(pending))
        reach("erase.begun")
        return _run(sessions, pending, known)


def finish(sessions: Sessions) -> Receipt | None:
    """End what another process had begun; the last receipt, None when there was nothing."""
    receipt: Receipt | None = None
    for row in sessions.hub.catalog.rows(PENDING):
        pending = decode(Pending, row.value)
        with ExitStack() as held:
            known = _hold(sessions, pending.events, held)
            receipt = _run(sessions, pending, known)
    return receipt


def _run(sessions: Sessions, pending: Pending, known: Sequence[SessionRow]) -> Receipt:
    hub = sessions.hub
    texts = _texts(sessions, pending.events)
    with hub.objects.gate.busy(alone=True), hub.objects.gate.exclusive(_PATIENCE):
        # nobody commits a mind that still knows what is to go
        replaced = replace_objects(sessions, pending.events, pending.by)
        pairs = dict(pending.replaced) | {r.old.hex(): r.new.hex() for r in replaced}
        pending = msgspec.structs.replace(pending, replaced=sorted(pairs.items()))
        pending = signer(hub).pending(pending)
        rows = [RowChange(PENDING, pending.id, encode(pending)), *_tombs(hub, replaced)]
        hub.catalog.move([], verb="erase", actor=pending.by, rows=rows)
        reach("erase.replaced")
        _wipe(hub, pending)
        reach("erase.wiped")
        hub.objects.forget(hub.objects.gate.bump())
        sessions.maps.forget()
        sessions.scopes.forget()
        hub.library.forget(texts, timelines={event.timeline for event in pending.events})
        let_go(hub.cache)
        state_cache.let_go(hub.cache)
    for row in known:
        rewrite(sessions, row.id)
    # what the old objects held goes with the packs they were in
    sweep_store(hub, dry_run=False, expire_ns=None, min_garbage=0.0, progress=None)
    reach("erase.swept")
    receipt = signer(hub).receipt(_receipt(hub, pending))
    hub.catalog.move(
        [],
        verb="erase",
        actor=pending.by,
        detail=receipt.id,
        rows=[kept(receipt), RowChange(PENDING, pending.id, None)],
    )
    return receipt


def _receipt(hub: Hub, pending: Pending) -> Receipt:
    left = [old for old, _ in pending.replaced if _is_there(hub, bytes.fromhex(old))]
    return Receipt(
        id=pending.id,
        time=hub.clock.now_ns(),
        by=pending.by,
        session=pending.session,
        events=pending.events,
        replaced=pending.replaced,
        left=left,
    )


def _is_there(hub: Hub, oid: bytes) -> bool:
    return next(iter(hub.objects.shelf.copies(Oid(oid))), None) is not None


def _tombs(hub: Hub, replaced: Iterable[Tombstone]) -> list[RowChange]:
    mine = signer(hub)
    return [kept(mine.tombstone(one)) for one in replaced]


def _texts(sessions: Sessions, events: Sequence[Erased]) -> list[str] | None:
    """What is to be forgotten; None when some of it cannot be read any more."""
    found: list[str] = []
    for event in events:
        if event.kind not in REMEMBERED:
            continue
        rows = sessions.hub.catalog.events(event.timeline, event.seq - 1, 1)
        if not rows or rows[0].seq != event.seq or not rows[0].salt:
            return None
        found.append(words_of(sessions.chain.read(rows[0], event.timeline)))
    return found


def _wipe(hub: Hub, pending: Pending) -> None:
    lines: dict[str, list[int]] = {}
    for event in pending.events:
        lines.setdefault(event.timeline, []).append(event.seq)
    for timeline, seqs in lines.items():
        hub.catalog.erase_events(timeline, seqs)
        reach("erase.rows")
    for family, id_ in pending.effects:
        row = hub.catalog.row(f"deed/{family}", id_)
        if row is not None:
            deed = decode(Deed, row.value)
            effect = msgspec.structs.replace(deed.effect, why="", command="")
            bare = msgspec.structs.replace(deed, effect=effect, outcome=None, error="")
            hub.catalog.put_row(f"deed/{family}", id_, encode(bare))
    for session, key in pending.letters:
        drop(hub.catalog, session, key)
    for kind, key in pending.rows:
        hub.catalog.drop_row(kind, key)
    hub.catalog.scrub()


# what is meant


def _meant(
    sessions: Sessions, rows: Sequence[SessionRow], seqs: Sequence[int] | None, user: str | None
) -> tuple[list[Erased], list[tuple[str, str]], list[tuple[str, str]]]:
    """Events, effects, and rows that repeat what they said of the world around."""
    outside: dict[tuple[str, str], None] = {}
    found: dict[tuple[str, int], Erased] = {}
    effects: dict[tuple[str, str], None] = {}
    wanted = None if seqs is None else set(seqs)
    for row in rows:
        seen: set[int] = set()
        own = timelines_of(sessions, row) if wanted is None else set[str]()
        for event in _events(sessions, row, own, whole=wanted is not None or user is not None):
            if wanted is None and event.kind in _NUMBERS:
                continue
            if wanted is not None and event.seq not in wanted:
                continue
            if user is not None and not _is_of(event, user):
                continue
            seen.add(event.seq)
            key = event.timeline, event.seq
            found[key] = Erased(event.timeline, event.seq, event.kind, event.hash.hex())
            if event.kind in ("begun", "ended") and "id" in event.data:
                effects[row.family, str(event.data["id"])] = None
            outside |= dict.fromkeys(said_outside(sessions, row, event))
        _add_summaries(sessions.standing(row).line.events(), found)
        if user is not None:  # which of the same number is meant is not looked at: nobody is there
            _add_summaries(_left(sessions, own), found, {seq for _, seq in found})
        if missing := (wanted or set()) - seen:
            raise Invalid(
                "no_event",
                f"session {row.name!r} has no event {min(missing)}"
                f"{f' of {user}' if user else ''}: `ortet journal {row.name}` lists them",
            )
    _add_shared(sessions, found, user)
    events = sorted(found.values(), key=lambda one: (one.timeline, one.seq))
    return events, list(effects), list(outside)


def _add_shared(sessions: Sessions, found: dict[tuple[str, int], Erased], user: str | None) -> None:
    """What shared memories were told by these events, and what was made of that; of a person also
    all that is known about them."""
    for name, event in _told(sessions):
        told = (event.data.get(word) or {} for word in ("told", "source"))
        made_of = {(one.get("timeline"), one.get("seq")) for one in told}
        if name == f"user:{user}" or not made_of.isdisjoint(found):
            key = event.timeline, event.seq
            found[key] = Erased(event.timeline, event.seq, event.kind, event.hash.hex())


def _told(sessions: Sessions) -> Iterator[tuple[str, Event]]:
    """All events of shared memories: as they are here, and as commits of other stores hold them."""
    for known in sessions.scopes.all():
        for event in known.events(sessions):
            yield known.name, event
    here = {row.timeline for _, row in scope_rows(sessions.hub.catalog)}
    for name, segment in shared_segments(sessions.hub):
        timeline = segment.timeline.hex()
        if timeline not in here:
            for row in unseal(sessions.hub.objects, segment):
                yield name, sessions.chain.read(row, timeline)


def _add_summaries(
    events: Iterable[Event], found: dict[tuple[str, int], Erased], known: Collection[int] = ()
) -> None:
    """A compaction or an episode may quote the messages it stands for, and a fact repeats what it
    was learned from: they go with them."""
    meant = set(known)
    for event in events:
        if (event.timeline, event.seq) in found:
            meant.add(event.seq)
        elif _is_from(event, found) or (
            event.kind in ("compaction", "episode")
            and any(
                event.data.get("first", 0) <= seq <= event.data.get("last", -1) for seq in meant
            )
        ):
            meant.add(event.seq)
            key = event.timeline, event.seq
            found[key] = Erased(event.timeline, event.seq, event.kind, event.hash.hex())


def _is_from(event: Event, found: Collection[tuple[str, int]]) -> bool:
    source = event.data.get("source") if event.kind in SHAREABLE else None
    return isinstance(source, dict) and (source.get("timeline"), source.get("seq")) in found


def _letters(
    sessions: Sessions, rows: Sequence[SessionRow], user: str | None
) -> list[tuple[str, str]]:
    catalog = sessions.hub.catalog
    return [
        (row.id, key)
        for row in rows
        for key, event in letters(catalog, row.id)
        if user is None or _is_of(event, user)
    ]


def _is_of(event: Event, user: str) -> bool:
    said = event.data.get("extra", {}) if event.kind == "message" else {}
    about = event.kind in SHAREABLE and event.data.get("scope") == f"user:{user}"
    return event.actor == user or about or (isinstance(said, dict) and said.get("user") == user)


def _events(
    sessions: Sessions, row: SessionRow, own: Collection[str], *, whole: bool
) -> Iterator[Event]:
    """Of the line of a session, all or what is its own; then of those timelines, restored away or
    not."""
    line = sessions.standing(row).line
    for event in line.events():
        if whole or event.timeline in own:
            yield event
    yield from _left(sessions, own)


def _left(sessions: Sessions, timelines: Collection[str]) -> Iterator[Event]:
    """All events of these timelines, in rows and, where those were trimmed, in commits."""
    hub, trimmed = sessions.hub, set[str]()
    for timeline in timelines:
        known = hub.catalog.timeline(timeline)
        after = known.at if known else 0
        while rows := hub.catalog.events(timeline, after):
            if rows[0].seq > after + 1:
                trimmed.add(timeline)
            for each in rows:
                yield sessions.chain.read(each, timeline)
            after = rows[-1].seq
    for timeline, row in sealed_rows(hub, trimmed):
        yield sessions.chain.read(row, timeline)


def timelines_of(sessions: Sessions, row: SessionRow) -> set[str]:
    """Those a session made: not what it shares with the one it was forked from, nor what it took
    over from a fork."""
    left = sessions.roll.left(row.id)
    mine = {span.timeline for span in _path(sessions, row)} | left
    forks = {row.id}
    others: set[str] = set()
    theirs: set[str] = set()  # where others stand now, or stood, whoever goes on from there
    for other in sessions.all():  # oldest first: a fork comes after what it was forked from
        if other.id != row.id:  # of any family: a session may adopt what is none of its own
            theirs |= {other.timeline, *sessions.roll.left(other.id)}
        if other.family == row.family and other.id != row.id:
            try:
                path = {span.timeline for span in _path(sessions, other)}
            except NotFound:
                if sessions.roll.has(other.id):
                    raise
                continue  # another process has removed it meanwhile
            if other.parent in forks:
                forks.add(other.id)
                path -= mine
            others |= path
    others = (others | theirs) - {row.timeline} - left
    own = mine - others
    todo = list(own)
    while todo:
        for child in sessions.hub.catalog.children(todo.pop()):
            if child.id not in others and child.id not in own:
                own.add(child.id)
                todo.append(child.id)
    return own


def _path(sessions: Sessions, row: SessionRow) -> list[Span]:
    hub = sessions.hub
    return Line(hub.catalog, hub.objects, sessions.chain, timeline=row.timeline).path()


def _hold(sessions: Sessions, events: Sequence[Erased], held: ExitStack) -> list[SessionRow]:
    """Nobody may write to a session that knows one of these events: Refused("lease_held"). Those
    sessions."""
    hub = sessions.hub
    known: list[SessionRow] = []
    meant: dict[str, int] = {}
    for event in events:
        meant[event.timeline] = min(event.seq, meant.get(event.timeline, event.seq))
    for row in sessions.all():
        path = _path(sessions, row)
        left = not meant.keys().isdisjoint(sessions.roll.left(row.id))
        if left or any(meant.get(span.timeline, span.upto + 1) <= span.upto for span in path):
            check_hold(hub, row)
            lease = sessions.lease(row)
            held.callback(hub.catalog.release, lease)
            _keep_out(sessions, row, lease, {(one.timeline, one.seq) for one in events})
            known.append(row)
    return known


def _keep_out(
    sessions: Sessions, row: SessionRow, lease: Lease, meant: Collection[tuple[str, int]]
) -> None:
    """A summary that goes must not bring back into context the messages it stands for: another
    compaction of the same span, without one, comes first."""
    where = sessions.standing(row)
    at, line = where.mind.core.summary, where.line
    if not at or row.status == ARCHIVED:
        return
    (event,) = line.events(at - 1, at)
    if (event.timeline, at) not in meant:
        return
    past = compaction_of(event)
    if all(e.erased or (e.timeline, e.seq) in meant for e in said(line.events(0, past.last))):
        return  # all of them go with it
    bare = msgspec.structs.replace(past, summary="")
    draft = Draft("compaction", data_of(bare), sessions.hub.author)
    made, _ = sessions.chain.make(line.tip(), draft, sessions.hub.clock.now_ns())
    sessions.hub.catalog.append(row.timeline, [made], lease=lease)
    reach("erase.kept-out")
