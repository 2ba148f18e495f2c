"""Check the hash chain of events, and list the events of a session line by line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from ortet._util.codec import decode
from ortet.backends.base import EventRow
from ortet.errors import Corrupt, OrtetError
from ortet.history.records import EventHeader, JournalSegment
from ortet.hub.governance.rewrite_objects import reachable_journals
from ortet.hub.governance.tombstones import ErasureReceipt, erased_events, receipts, tombstones
from ortet.ids import Oid
from ortet.journal.event_chain import EventChain
from ortet.journal.event_log import EventLog
from ortet.journal.events import Event, Tip
from ortet.journal.kinds.registry import fold, kind_of
from ortet.journal.segments import iter_segments, unseal
from ortet.journal.state.state import SessionState
from ortet.objects.base import Kind
from ortet.sessions.memory.shared_scopes import scope_rows
from ortet.sessions.table import ARCHIVED

if TYPE_CHECKING:
    from ortet.sessions.manager import SessionManager

_MAX_TEXT_CHARS = 200


class AuditLine(msgspec.Struct, frozen=True):
    """One event of an audit.

    `what` is a short text. `why` is the reason that the author gave, or "".
    """

    seq: int
    time: int
    actor: str
    kind: str
    what: str
    why: str
    hash: str
    erased: bool = False


class AuditReport(msgspec.Struct, frozen=True):
    """The result of an audit.

    Attributes:
        session: Id of the session.
        name: Name of the session.
        agent: Agent of the session.
        status: Status of the session.
        events: Number of events.
        erased: Number of erased events.
        sealed: Number of events that are also in a commit.
        head: Hash of the last event. A copy of it, kept elsewhere, proves later that no event
            before it was changed.
        lines: One line for each event.
        erasures: Receipts of the erasures.
    """

    session: str
    name: str
    agent: str
    status: str
    events: int
    erased: int
    sealed: int
    head: str
    lines: list[AuditLine]
    erasures: list[ErasureReceipt]


def audit(sessions: SessionManager, id_: str) -> AuditReport:
    """Audit a session; see `Governance.audit`."""
    row = sessions.table.get(id_)
    line = sessions.services.load(row).line
    gone = erased_events(sessions.store)
    lines: list[AuditLine] = []
    tip = Tip()
    for timeline, found in line.rows_with_timeline():
        tip = sessions.services.chain.check(tip, [found])
        event = sessions.services.chain.read(found, timeline)
        if event.erased and (timeline, event.seq) not in gone:
            raise _missing_body(event.seq, timeline)
        lines.append(audit_line(event))
        if event.seq == line.base.seq and event.hash != line.base.hash:
            raise _broken_chain(event.seq)
    for _, segment in iter_segments(sessions.store.objects, line.base.segment):
        check_segment(sessions, segment, gone)
    timelines = {span.timeline for span in line.timeline_spans()}
    return AuditReport(
        session=row.id,
        name=row.name,
        agent=row.agent,
        status=row.status,
        events=len(lines),
        erased=sum(one.erased for one in lines),
        sealed=line.base.seq,
        head=tip.hash.hex(),
        lines=lines,
        erasures=[
            receipt
            for receipt in receipts(sessions.store.catalog)
            if any(event.timeline in timelines for event in receipt.events)
        ],
    )


def audit_line(event: Event) -> AuditLine:
    """Return an event as one line of an audit."""
    data = event.data
    what, why = kind_of(event.kind).line(data), data.get("why", "")
    return AuditLine(
        seq=event.seq,
        time=event.time,
        actor=event.actor,
        kind=event.kind,
        what="(erased)" if event.erased else what[:_MAX_TEXT_CHARS],
        why=why if isinstance(why, str) else str(why),
        hash=event.hash.hex(),
        erased=event.erased,
    )


# used by verify


def check_event_chains(sessions: SessionManager) -> Iterator[tuple[str, str]]:
    """Yield (where, what) for each problem in event rows, segments and erasure records."""
    try:
        gone = erased_events(sessions.store)
    except OrtetError as error:
        yield "erasures", error.message
        return
    yield from _check_rows(sessions, gone)
    seen: set[bytes] = set()
    buried = {one.old for one in tombstones(sessions.store.catalog) if one.kind == int(Kind.FOLD)}
    for journal in reachable_journals(sessions):
        try:
            for oid, segment in iter_segments(sessions.store.objects, journal.segment):
                if oid in seen:
                    break
                seen.add(oid)
                check_segment(sessions, segment, gone)
            if journal.fold in buried:
                _check_fold(sessions, journal.segment, journal.fold)
        except OrtetError as error:
            yield f"journal of {journal.seq} events", error.message


def _check_rows(
    sessions: SessionManager, erased: set[tuple[str, int]]
) -> Iterator[tuple[str, str]]:
    """Check every timeline once, starting at the event before its first."""
    done: dict[str, int] = {}
    for row in sessions.all():
        if row.status == ARCHIVED and sessions.store.catalog.head(f"branch:{row.branch}") is None:
            continue  # its events are in its bundle
        try:
            line = sessions.services.load(row).line
            for span in line.timeline_spans():
                after = max(span.after, done.get(span.timeline, 0))
                if after < span.upto:
                    _check_span(sessions.services.chain, line, after, span.upto, erased)
                    done[span.timeline] = span.upto
        except OrtetError as error:
            # otherwise another process removed the session concurrently
            if sessions.table.has(row.id):
                yield f"session {row.name}", error.message
    for name, scope in scope_rows(sessions.store.catalog):
        try:
            line = sessions.services.scopes.event_log(scope)
            for span in line.timeline_spans():
                _check_span(sessions.services.chain, line, span.after, span.upto, erased)
        except OrtetError as error:
            yield f"memory of {name}", error.message


def _check_span(
    chain: EventChain, log: EventLog, after: int, upto: int, erased: set[tuple[str, int]]
) -> None:
    tip = Tip()
    if after:
        (before,) = log.rows(after - 1, after)
        tip = chain.tip(before)
    for timeline, row in log.rows_with_timeline(after, upto):
        tip = chain.check(tip, [row])
        if not row.salt and (timeline, row.seq) not in erased:
            raise _missing_body(row.seq, timeline)
        if row.seq == log.base.seq and tip.hash != log.base.hash:
            raise _broken_chain(row.seq)


def check_segment(
    sessions: SessionManager, segment: JournalSegment, erased: set[tuple[str, int]]
) -> None:
    """Check the body hashes of a segment, and its link to the segment before."""
    objects, chain = sessions.store.objects, sessions.services.chain
    rows = unseal(objects, segment)
    header = decode(EventHeader, segment.heads[0])
    tip = Tip(header.seq - 1, header.prev)
    if segment.before:
        before = decode(JournalSegment, objects.get(objects.replacement_of(Oid(segment.before))))
        tip = chain.tip(EventRow(0, before.heads[-1], b"", b""))
    elif header.prev or header.seq != 1:
        raise Corrupt("broken_chain", f"nothing comes before event {header.seq}", seq=header.seq)
    chain.check(tip, rows)
    for row in rows:
        if not row.salt and (segment.timeline.hex(), row.seq) not in erased:
            raise _missing_body(row.seq, segment.timeline.hex())


def _check_fold(sessions: SessionManager, segment: bytes, old: bytes) -> None:
    """Check that the fold that replaces an erased one equals a fold of the remaining events."""
    objects = sessions.store.objects
    again = SessionState(sessions.services.maps)
    for _, each in reversed(list(iter_segments(objects, segment))):
        fold(again, (sessions.services.chain.read(row) for row in unseal(objects, each)))
    if not again.equals(SessionState.load(sessions.services.maps, objects, old)):
        raise Corrupt("bad_fold", "what stands for an erased mind is not what its events add up to")


def _missing_body(seq: int, timeline: str) -> Corrupt:
    return Corrupt(
        "missing_body",
        f"event {seq} of timeline {timeline} has lost its body and no erasure says so: restore it "
        "from a copy",
        seq=seq,
    )


def _broken_chain(seq: int) -> Corrupt:
    return Corrupt(
        "broken_chain",
        f"event {seq} in the catalog is not the one that was committed: restore it from a copy",
        seq=seq,
    )
