"""Events as records: drafts, stored bodies, and events as readers see them.

Header and body are stored separately. The header commits to a salted hash of the body. A body can
therefore be erased while the chain stays valid. `event_chain` makes and reads events.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from ortet._util.codec import StoredRecord, decode, encode
from ortet.errors import Invalid
from ortet.history.records import EventHeader
from ortet.ids import Oid
from ortet.objects.base import Kind

MAX_BODY_BYTES = 1 << 20
_MAX_DEPTH = 64
_CUSTOM_KIND = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)+")
_MAX_KIND_CHARS = 100

ObjectRef = tuple[Oid, Kind]
"""Reference from an event to an object. The object is kept as long as the event."""


class EventBody(StoredRecord, frozen=True):
    """Body of an event. `version` is the schema version of `data`."""

    data: dict[str, Any]
    refs: list[tuple[bytes, int]] = []
    version: int = 1


class Event(msgspec.Struct, frozen=True):
    """One event, as readers see it.

    Attributes:
        seq: Number of the event, from 1.
        kind: Kind of the event.
        time: When it was written, in ns since 1970.
        actor: Who did it.
        data: Content. It is empty if the event was erased.
        hash: Hash of the event in the chain.
        timeline: Id of the timeline that has it.
        refs: Objects that it refers to: pairs of an id and a kind.
        version: Version of the schema of `data`.
        erased: True if the content was erased.
        waiting: True if the event is in the inbox and has no number yet (see
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


def check_custom_kind(kind: Any) -> str:
    """Return the kind if a program may use it for its own events.

    It must contain a dot. Kinds of Ortet, of any release, never do.
    """
    if isinstance(kind, str) and len(kind) <= _MAX_KIND_CHARS and _CUSTOM_KIND.fullmatch(kind):
        return kind
    raise Invalid(
        "bad_kind",
        f"kind {kind!r}: name the program and the thing, as 'myapp.ticket', in lower case",
    )


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
