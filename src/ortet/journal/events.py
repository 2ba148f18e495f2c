"""Events: records, hash chain, encoding and reading.

Header and body are stored separately. The header commits to a salted hash of the body. A body can
therefore be erased while the chain stays valid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from ortet._util.codec import Hasher, StoredRecord, decode, encode
from ortet.backends.base import EventRow
from ortet.errors import Corrupt, Invalid
from ortet.history.records import EventHeader
from ortet.ids import Oid, Random
from ortet.journal import kinds
from ortet.journal.kinds import check_shape
from ortet.objects.base import Kind

MAX_BODY_BYTES = 1 << 20
SALT_BYTES = 16
_MAX_DEPTH = 64

ObjectRef = tuple[Oid, Kind]
"""Reference from an event to an object. The object is kept as long as the event."""


class EventBody(StoredRecord, frozen=True):
    """Body of an event. `version` is the schema version of `data`."""

    data: dict[str, Any]
    refs: list[tuple[bytes, int]] = []
    version: int = 1


class Event(msgspec.Struct, frozen=True):
    """One event, as readers see it. `data` is empty if the event was erased.

    `waiting` means that the event is in the inbox and has no number yet (see
    sessions/writing/inbox.py).
    """

    seq: int
    kind: str
    time: int
    actor: str
    data: dict[str, Any]
    hash: bytes
    timeline: str = ""
    refs: list[tuple[bytes, int]] = []
    version: int = 1
    erased: bool = False
    waiting: bool = False


class Tip(msgspec.Struct, frozen=True):
    """End of a chain: number, hash and time of its last event."""

    seq: int = 0
    hash: bytes = b""
    time: int = 0


class Draft(msgspec.Struct, frozen=True):
    """An event before it is written: no number, no time, no hash."""

    kind: str
    data: dict[str, Any]
    actor: str = ""
    refs: Sequence[ObjectRef] = ()
    version: int = 1


def header_time(head: bytes) -> int:
    """Return the time in an encoded header, or 0 for b""."""
    return decode(EventHeader, head).time if head else 0


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
            version, data = kinds.apply(kind, draft.version, draft.data)
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
            version, data = kinds.apply(header.kind, body.version, body.data)
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
        check_shape(draft.kind, draft.data)
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


_SCALARS = (str, int, type(None))
_EXACT = frozenset({str, int, bool, type(None)})
"""Exact types of nearly all values. Checking them first halves the time of `check_plain`."""
_ARRAYS = (list, tuple)


def check_plain(value: Any, depth: int = 0) -> None:
    """Raise Invalid unless the value can be written as JSON.

    All surfaces can then show the same data.
    """
    kind = type(value)
    if kind in _EXACT:
        return
    if kind is dict or isinstance(value, dict):
        if depth > _MAX_DEPTH:
            raise _too_deep()
        for key, item in value.items():
            if type(key) is not str and not isinstance(key, str):
                raise _not_plain(f"key {key!r} is not a string")
            if type(item) not in _EXACT:
                check_plain(item, depth + 1)
    elif kind is list or isinstance(value, _ARRAYS):
        if depth > _MAX_DEPTH:
            raise _too_deep()
        for item in value:
            if type(item) not in _EXACT:
                check_plain(item, depth + 1)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise _not_plain(f"{value} is no number that JSON has")
    elif not isinstance(value, _SCALARS):
        raise _not_plain(f"{type(value).__name__} is not JSON")


def is_plain(value: Any) -> bool:
    """Return True if the journal can store the value unchanged.

    Integers above 64 bits and lone surrogates cannot be stored.
    """
    try:
        check_plain(value)
        encode(value)
    except Invalid:
        return False
    return True


def _too_deep() -> Invalid:
    return _not_plain(f"it is nested more than {_MAX_DEPTH} deep")


def _not_plain(why: str) -> Invalid:
    return Invalid(
        "not_json",
        f"this cannot be recorded ({why}): give str, int, float, bool, None, list or dict",
    )
