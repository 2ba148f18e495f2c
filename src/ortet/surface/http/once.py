"""Idempotency keys: a write that is sent again, because its answer was lost, is done once.

The key is taken, in the catalog, before anything is done, and holds the answer afterwards. When a
server dies in between nobody can tell how far it came: the key is then answered with Unsettled.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

import msgspec

from ortet.backend.abc import RowChange
from ortet.codec import decode, encode
from ortet.errors import Conflict, Invalid, OrtetError, Unsettled
from ortet.session.hub import Hub
from ortet.session.leases import is_dead, process_here

ASKED = "asked"
"""Rows of this kind, by key and token, are writes that were asked for with a key."""

LONGEST = 200
KEEP_NS = 24 * 3600 * 10**9
_LARGEST = 1 << 20


class Answered(msgspec.Struct, frozen=True):
    """What was sent back."""

    status: int
    body: bytes
    etag: str = ""


class AskedRow(msgspec.Struct, frozen=True):
    digest: bytes  # of the request
    owner: str  # the process that does it
    time: int
    answer: Answered | None = None


def once(
    hub: Hub, key: str, token: str, request: bytes, do: Callable[[], Answered]
) -> tuple[Answered, bool]:
    """What `do` answers, and whether it was done before. An error of it frees the key."""
    name = sha256(f"{token}\0{check_key(key)}".encode()).hexdigest()
    digest = sha256(request).digest()
    me = f"{process_here(hub._parts.host)}:http"
    mine = AskedRow(digest, me, hub.clock.now_ns())
    version = _take(hub, name, mine)
    if isinstance(version, AskedRow):
        return _again(hub, version, digest, key), True
    try:
        answer = do()
    except OrtetError:
        _write(hub, name, None, version)  # nothing was done: it may be asked again
        raise
    if len(answer.body) > _LARGEST:
        _write(hub, name, None, version)
        return answer, False
    _write(hub, name, msgspec.structs.replace(mine, answer=answer), version)
    return answer, False


def check_key(key: str) -> str:
    if not 0 < len(key) <= LONGEST or not key.isprintable():
        raise Invalid("bad_key", f"Idempotency-Key: give 1 to {LONGEST} printable characters")
    return key


def _take(hub: Hub, name: str, mine: AskedRow) -> int | AskedRow:
    """The version of the row that is ours now, or what stands there."""
    while True:
        found = hub.catalog.row(ASKED, name)
        if found is not None:
            known = decode(AskedRow, found.value)
            if known.answer is None or mine.time - known.time < KEEP_NS:
                return known
        version = found.version if found else 0
        try:
            _write(hub, name, mine, version)
        except Conflict as error:
            if error.kind != "row_moved":
                raise
            continue
        return version + 1


def _again(hub: Hub, known: AskedRow, digest: bytes, key: str) -> Answered:
    if known.digest != digest:
        raise Invalid(
            "key_reused",
            f"Idempotency-Key {key!r} was used for another request: give each its own",
        )
    if known.answer is not None:
        return known.answer
    if is_dead(known.owner, hub._parts.host):
        raise Unsettled(
            "unsettled_request",
            "the server died while it did this: look whether it was done, and ask with another key",
        )
    raise Conflict("in_progress", "this request is being done: ask again for its answer")


def _write(hub: Hub, name: str, row: AskedRow | None, version: int) -> None:
    value = None if row is None else encode(row)
    hub.catalog.move([], verb="asked", rows=[RowChange(ASKED, name, value, expect=version)])
