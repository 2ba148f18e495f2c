"""Idempotency keys: a write that is sent again, because its answer was lost, is done once.

The key is taken, in the catalog, before anything is done, and holds the answer afterwards. When a
server dies in between nobody can tell how far it came: the key is then answered with Unsettled.
Keys lie in one table a day, which is dropped when it is two days old.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from hashlib import sha256
from threading import Thread

import msgspec

from ortet._util.codec import decode, encode
from ortet._util.deadlines import patient
from ortet.backends.base import Row, RowChange
from ortet.errors import Conflict, Invalid, OrtetError, Unavailable, Unsettled
from ortet.hub.hub import Hub
from ortet.server.session_pool.liveness import is_gone, owner_here

ASKED = "asked"
"""Rows of the kind asked/DAY, by key and token, are writes that were asked for with a key."""
_FIRST = ("serve", "asked-from")
"""The row that holds the first day which is not dropped yet."""

LONGEST = 200
DAY_NS = 24 * 3600 * 10**9
_LARGEST = 256 << 10
_PAGE = 200
_LATER, _AGAIN = 600.0, 0.2
"""Seconds for which it is tried to write what became of a request, and from one try to the next."""


class Answered(msgspec.Struct, frozen=True):
    """What was sent back."""

    status: int
    body: bytes
    etag: str = ""


class AskedRow(msgspec.Struct, frozen=True):
    """A map, so that later releases may add keys. Without an answer it is being done, or `lost`:
    nobody knows how far it came; `large`: it was done, and the answer is not kept."""

    digest: bytes  # of the request
    owner: str  # the process that does it
    time: int
    answer: Answered | None = None
    lost: bool = False
    large: bool = False


def once(
    hub: Hub, key: str, token: str, request: bytes, do: Callable[[], Answered]
) -> tuple[Answered, bool]:
    """What `do` answers, and whether it was done before. An error of it frees the key."""
    return _Once(hub, check_key(key), token, request).done(do)


def check_key(key: str) -> str:
    if not 0 < len(key) <= LONGEST or not (key.isascii() and key.isprintable()):
        raise Invalid("bad_key", f"Idempotency-Key: give 1 to {LONGEST} printable ASCII characters")
    return key


class _Once:
    """One request with a key."""

    def __init__(self, hub: Hub, key: str, token: str, request: bytes) -> None:
        self._hub = hub
        self._key = key
        self._name = sha256(f"{token}\0{key}".encode()).hexdigest()
        self._mine = AskedRow(sha256(request).digest(), owner_here(hub), hub.clock.now_ns())
        self._day = self._mine.time // DAY_NS
        self._version = 0

    def done(self, do: Callable[[], Answered]) -> tuple[Answered, bool]:
        known = self._take()
        if known is not None:
            return self._again(known), True
        try:
            answer = do()
        except OrtetError:
            self._end(None)  # nothing was done: it may be asked again
            raise
        except BaseException:
            self._end(msgspec.structs.replace(self._mine, lost=True))
            raise
        if len(answer.body) > _LARGEST:
            self._end(msgspec.structs.replace(self._mine, large=True))
        else:
            self._end(msgspec.structs.replace(self._mine, answer=answer))
        return answer, False

    def _end(self, row: AskedRow | None) -> None:
        """What became of it; later, where another process keeps the store locked: until then who
        asks again is told that it is being done."""
        try:
            self._write(row)
        except Unavailable as error:
            if error.kind != "busy":
                raise
            Thread(target=self._later, args=(row,), name="ortet-once", daemon=True).start()

    def _later(self, row: AskedRow | None) -> None:
        until = time.monotonic() + _LATER
        while time.monotonic() < until:
            try:
                with patient(_AGAIN):  # another may use the same connection meanwhile
                    self._write(row)
                return
            except Unavailable:
                time.sleep(_AGAIN)
            except OrtetError:
                return

    def _take(self) -> AskedRow | None:
        """None when it is ours now; else what stands there."""
        while True:
            found = self._find()
            if found is not None:
                return decode(AskedRow, found.value)
            # neither may be there: the clock of another server may be at another day
            others = [
                RowChange(f"{ASKED}/{self._day + step}", self._name, None, expect=0)
                for step in (-1, 1)
            ]
            try:
                self._write(self._mine, *others)
            except Conflict as error:
                if error.kind != "row_moved":
                    raise
                continue
            taken = self._find()  # a new row does not begin at 1 where rows were dropped before
            self._version = taken.version if taken is not None else 0
            return None

    def _find(self) -> Row | None:
        for day in (self._day, self._day - 1, self._day + 1):
            found = self._hub.catalog.row(f"{ASKED}/{day}", self._name)
            if found is not None:
                return found
        return None

    def _again(self, known: AskedRow) -> Answered:
        if known.digest != self._mine.digest:
            raise Invalid(
                "key_reused",
                f"Idempotency-Key {self._key!r} was used for another request: give each its own",
            )
        if known.answer is not None:
            return known.answer
        if known.large:
            raise Conflict(
                "done_before", "this was done, and its answer was too large to keep: look at it"
            )
        if known.lost or is_gone(self._hub, known.owner):
            raise Unsettled(
                "unsettled_request",
                "the server failed while it did this: look whether it was done, and ask with "
                "another key",
            )
        raise Conflict("in_progress", "this request is being done: ask again for its answer")

    def _write(self, row: AskedRow | None, *others: RowChange) -> None:
        value = None if row is None else encode(row)
        mine = RowChange(f"{ASKED}/{self._day}", self._name, value, expect=self._version)
        self._hub.catalog.move([], verb="asked", rows=[mine, *others])


def forget_keys(hub: Hub) -> int:
    """Drop what is two days old; how many there were."""
    catalog, count = hub.catalog, 0
    today = hub.clock.now_ns() // DAY_NS
    row = catalog.row(*_FIRST)
    first = int(row.value) if row is not None else today - 2
    for day in range(first, today - 1):
        while page := catalog.rows(f"{ASKED}/{day}", limit=_PAGE):
            gone = [RowChange(one.kind, one.key, None) for one in page]
            catalog.move([], verb="asked", rows=gone)
            count += len(page)
    if row is None or int(row.value) < today - 1:
        catalog.put_row(*_FIRST, str(today - 1).encode())
    return count
