"""Constructors of backend errors, so that all implementations raise equal kinds and details."""

from __future__ import annotations

from ortet.backends.base import Lease
from ortet.errors import Conflict, Invalid, NotFound, Refused
from ortet.ids import Oid


def no_key(key: str) -> NotFound:
    return NotFound("no_key", f"the bucket has no {key!r}: it was never stored, or it was deleted")


def key_exists(key: str) -> Conflict:
    message = f"the bucket has a {key!r} already: objects are written once, choose another key"
    return Conflict("exists", message, key=key)


def head_moved(name: str, expect: Oid | None, actual: Oid | None) -> Conflict:
    return Conflict(
        "head_moved",
        f"{name} is at {_short(actual)}, not at {_short(expect)}: read the head again, then repeat",
        name=name,
        expect=expect and expect.hex(),
        found=actual and actual.hex(),
    )


def row_moved(kind: str, key: str, expect: int, actual: int) -> Conflict:
    return Conflict(
        "row_moved",
        f"{kind} {key} is at version {actual}, not {expect}: read it again, then repeat",
        name=f"{kind} {key}",
        expect=expect,
        found=actual,
    )


def lease_held(lease: Lease) -> Refused:
    return Refused(
        "lease_held",
        f"{lease.owner} is writing to {lease.name}: wait until it is done or its lease ends",
        owner=lease.owner,
        expires=lease.expires,
    )


def lease_lost(lease: Lease) -> Refused:
    return Refused(
        "lease_lost",
        f"the lease {lease.fence} of {lease.owner} on {lease.name} has ended: nothing was written; "
        "acquire it again and look at what changed",
        owner=lease.owner,
        fence=lease.fence,
    )


def _short(oid: Oid | None) -> str:
    return oid.hex()[:12] if oid else "nothing"


def no_timeline(timeline: str) -> NotFound:
    return NotFound("no_timeline", f"there is no timeline {timeline}: check the id")


def seq_taken(timeline: str, expect: int, last: int) -> Conflict:
    return Conflict(
        "seq_taken",
        f"timeline {timeline} ends with event {last}, so {expect} is not the next: another writer "
        "was faster; read what is new, then repeat",
        timeline=timeline,
        expect=expect,
        found=last,
    )


def bad_fork(timeline: str, seq: int) -> Invalid:
    return Invalid("bad_fork", f"timeline {timeline} has no event {seq}: fork at one it has")


def timeline_exists(timeline: str) -> Conflict:
    return Conflict("timeline_exists", f"there is a timeline {timeline} already: take another id")


def has_children(timeline: str) -> Conflict:
    return Conflict(
        "has_children",
        f"other timelines began on {timeline}: drop those first",
        timeline=timeline,
    )
