"""Segments: events sealed into objects of a commit. Each segment links to the one before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import msgspec

from ortet._util.codec import StoredRecord, decode, encode
from ortet.backends.base import EventRow
from ortet.errors import Corrupt
from ortet.history.records import Bodies, EventHeader, JournalSegment
from ortet.ids import Oid
from ortet.objects.base import Kind, ObjectStore


class _BodyRefs(StoredRecord, frozen=True):
    """An event body of which only the references are decoded."""

    data: msgspec.Raw
    refs: list[tuple[bytes, int]] = []


_ERASE = "close the session and erase that event (hub.erase(session, seqs=[N]), `ortet erase`)"


_MAX_SEGMENT_BYTES = 4 << 20
_MAX_SEGMENT_EVENTS = 20_000
"""Limits of one segment: objects have a largest size, and one event costs a whole segment."""


def seal(objects: ObjectStore, timeline: str, rows: Sequence[EventRow], before: bytes) -> Oid:
    """Store events as segments that follow segment `before`. `rows` is not empty.

    Returns:
        Oid of the last new segment.
    """
    if objects.scanner is not None:
        for row in rows:
            objects.scanner.data(row.body, partial(_describe_row, row), _ERASE)
    last = Oid(before)
    for part in _split_rows(rows):
        last = _put(objects, timeline, part, last)
    return last


def _split_rows(rows: Sequence[EventRow]) -> Iterator[Sequence[EventRow]]:
    start = size = 0
    for at, row in enumerate(rows):
        more = len(row.head) + len(row.body)
        if at > start and (size + more > _MAX_SEGMENT_BYTES or at - start >= _MAX_SEGMENT_EVENTS):
            yield rows[start:at]
            start, size = at, 0
        size += more
    yield rows[start:]


def _put(objects: ObjectStore, timeline: str, rows: Sequence[EventRow], before: Oid) -> Oid:
    bodies = objects.put(Kind.BODIES, encode(Bodies([(row.salt, row.body) for row in rows])))
    refs: dict[tuple[bytes, int], None] = {}
    for row in rows:
        if row.salt:
            refs.update(dict.fromkeys(decode(_BodyRefs, row.body).refs))
    segment = JournalSegment(
        timeline=bytes.fromhex(timeline),
        heads=[row.head for row in rows],
        bodies=bodies,
        before=before,
        refs=list(refs),
    )
    return objects.put(Kind.SEGMENT, encode(segment))


def _describe_row(row: EventRow) -> str:
    header = decode(EventHeader, row.head)
    return f"event {header.seq} ({header.kind})"


def unseal(objects: ObjectStore, segment: JournalSegment) -> list[EventRow]:
    """Return the rows of a segment."""
    bodies = decode(Bodies, objects.get(objects.replacement_of(segment.bodies))).items
    if len(bodies) != len(segment.heads):
        raise Corrupt("bad_segment", "a segment has not as many bodies as events")
    return [
        EventRow(decode(EventHeader, head).seq, head, salt, body)
        for head, (salt, body) in zip(segment.heads, bodies, strict=True)
    ]


def iter_segments(objects: ObjectStore, last: bytes) -> Iterator[tuple[Oid, JournalSegment]]:
    """Yield this segment and all before it, newest first."""
    while last:
        oid = Oid(last)
        segment = decode(JournalSegment, objects.get(objects.replacement_of(oid)))
        yield oid, segment
        last = segment.before


def first_seq(segment: JournalSegment) -> int:
    """Return the number of the first event of a segment."""
    return decode(EventHeader, segment.heads[0]).seq
