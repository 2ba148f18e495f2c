"""Make, hash-chain, encode and read events.

No other module knows how an event is linked to the event before it. The header of an event commits
to a salted hash of its body. Event data is checked against the schema of its kind before it is
written: an event that cannot be folded would make the session impossible to open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ortet._util.codec import Hasher, decode, encode
from ortet.backends.base import EventRow
from ortet.errors import Corrupt, Invalid
from ortet.history.records import EventHeader
from ortet.ids import Random
from ortet.journal import upcasts
from ortet.journal.events import MAX_BODY_BYTES, Draft, Event, EventBody, Tip, check_plain
from ortet.journal.kinds.registry import check_data

SALT_BYTES = 16


class EventChain:
    """Makes, chains, reads and checks events. No other code knows how events are linked."""

    def __init__(self, hasher: Hasher, random: Random) -> None:
        self._hasher = hasher
        self._random = random

    def make(self, tip: Tip, draft: Draft, now: int) -> tuple[EventRow, Event]:
        """Make the event that follows `tip`.

        Its time is never earlier than the time of the event before.
        """
        rows, events = self.make_all(tip, (draft,), lambda: now)
        return rows[0], events[0]

    def make_all(
        self, tip: Tip, drafts: Sequence[Draft], now: Callable[[], int]
    ) -> tuple[list[EventRow], list[Event]]:
        """Make the events that follow `tip`, one after the other."""
        oid, salts = self._hasher.oid, self._random(SALT_BYTES * len(drafts))
        seq, time, prev = tip.seq, tip.time, tip.hash
        rows, events = [], []
        for number, draft in enumerate(drafts):
            body = encode_body(draft)
            salt = salts[number * SALT_BYTES : (number + 1) * SALT_BYTES]
            seq, time = seq + 1, max(now(), time)
            kind, actor = draft.kind, draft.actor
            head = encode(EventHeader(seq, kind, time, actor, oid(salt + body), prev))
            prev = oid(head)
            version, data = upcasts.apply(kind, draft.version, draft.data)
            refs = [(bytes(one), int(sort)) for one, sort in draft.refs] if draft.refs else []
            rows.append(EventRow(seq, head, salt, body))
            events.append(Event(seq, kind, time, actor, data, prev, refs=refs, version=version))
        return rows, events

    def read(self, row: EventRow, timeline: str = "") -> Event:
        """Read an event from its row.

        Raises:
            Corrupt: kind "bad_event", if the body does not match the hash in the header.
        """
        header = decode(EventHeader, row.head)
        if not row.salt:
            version, data = 1, dict[str, Any]()
            refs, erased = list[tuple[bytes, int]](), True
        else:
            if self._hasher.oid(row.salt + row.body) != header.seal:
                raise Corrupt(
                    "bad_event",
                    f"event {header.seq} of timeline {timeline} is not what was recorded: run "
                    "`ortet verify`",
                    seq=header.seq,
                )
            body = decode(EventBody, row.body)
            version, data = upcasts.apply(header.kind, body.version, body.data)
            refs, erased = body.refs, False
        return Event(
            seq=header.seq,
            kind=header.kind,
            time=header.time,
            actor=header.actor,
            data=data,
            hash=self._hasher.oid(row.head),
            timeline=timeline,
            refs=refs,
            version=version,
            erased=erased,
        )

    def tip(self, row: EventRow) -> Tip:
        """Return the end of a chain whose last event is this row."""
        header = decode(EventHeader, row.head)
        return Tip(header.seq, self._hasher.oid(row.head), header.time)

    def check(self, tip: Tip, rows: Iterable[EventRow]) -> Tip:
        """Check that the rows follow `tip` without a gap, and return the new tip.

        Raises:
            Corrupt: If a link or a body does not match.
        """
        for row in rows:
            event, header = self.read(row), decode(EventHeader, row.head)
            if header.prev != tip.hash or header.seq != tip.seq + 1 or header.seq != row.seq:
                raise Corrupt(
                    "broken_chain",
                    f"event {row.seq} does not follow event {tip.seq}: the journal was tampered "
                    "with or damaged; restore it from a copy",
                    seq=row.seq,
                )
            tip = Tip(event.seq, event.hash, event.time)
        return tip


def encode_body(draft: Draft) -> bytes:
    """Return the canonical bytes of an event body.

    Raises:
        Invalid: If the data is not plain data, has a wrong shape, or is too large.
    """
    check_plain(draft.data)
    if draft.version == 1:
        check_data(draft.kind, draft.data)
    if not isinstance(draft.actor, str):
        raise Invalid("bad_value", f"{draft.actor!r} is nobody's name: give text")
    refs = [(bytes(oid), int(kind)) for oid, kind in draft.refs] if draft.refs else []
    body = encode(EventBody(draft.data, refs, draft.version))
    if len(body) > MAX_BODY_BYTES:
        raise Invalid(
            "payload_too_large",
            f"an event of {len(body)} bytes is more than {MAX_BODY_BYTES}: store the content as an "
            "artifact and say its name",
        )
    return body
