"""Events behind a commit: sealed into objects, each linked to the one before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from ortet.backend.abc import EventRow
from ortet.codec import decode, encode
from ortet.errors import Corrupt
from ortet.graph.records import Bodies, Header, Segment
from ortet.ids import Oid
from ortet.journal.events import Body
from ortet.store.abc import Kind, Objects

_ERASE = "close the session and erase that event (hub.erase(session, seqs=[N]), `ortet erase`)"


def seal(objects: Objects, timeline: str, rows: Sequence[EventRow], before: bytes) -> Oid:
    """Store these events, which follow those of segment `before`; returns the new segment."""
    if objects.search is not None:
        for row in rows:
            objects.search.data(row.body, partial(_told, row), _ERASE)
    bodies = objects.put(Kind.BODIES, encode(Bodies([(row.salt, row.body) for row in rows])))
    refs: dict[tuple[bytes, int], None] = {}
    for row in rows:
        if row.salt:
            refs.update(dict.fromkeys(decode(Body, row.body).refs))
    segment = Segment(
        timeline=bytes.fromhex(timeline),
        heads=[row.head for row in rows],
        bodies=bodies,
        before=before,
        refs=list(refs),
    )
    return objects.put(Kind.SEGMENT, encode(segment))


def _told(row: EventRow) -> str:
    header = decode(Header, row.head)
    return f"event {header.seq} ({header.kind})"


def unseal(objects: Objects, segment: Segment) -> list[EventRow]:
    """The events of a segment."""
    bodies = decode(Bodies, objects.get(objects.heir(segment.bodies))).items
    if len(bodies) != len(segment.heads):
        raise Corrupt("bad_segment", "a segment has not as many bodies as events")
    return [
        EventRow(decode(Header, head).seq, head, salt, body)
        for head, (salt, body) in zip(segment.heads, bodies, strict=True)
    ]


def segments(objects: Objects, last: bytes) -> Iterator[tuple[Oid, Segment]]:
    """This segment and all before it, newest first."""
    while last:
        oid = Oid(last)
        segment = decode(Segment, objects.get(objects.heir(oid)))
        yield oid, segment
        last = segment.before


def first_seq(segment: Segment) -> int:
    return decode(Header, segment.heads[0]).seq
