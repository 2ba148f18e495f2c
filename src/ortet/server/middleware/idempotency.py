"""Idempotency keys: a write that is sent again because its answer was lost runs once.

The key is stored in the catalog before the operation runs, and the answer is added afterwards. If
the server dies in between, the outcome is unknown, and the key is answered with Unsettled. Keys are
stored under one row kind per day, which is deleted when it is two days old.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from hashlib import sha256
from threading import Thread

import msgspec

from ortet._util.codec import decode, encode
from ortet._util.lock_timeout import lock_timeout
from ortet.backends.base import CatalogRow, RowChange
from ortet.errors import Conflict, Invalid, OrtetError, Unavailable, Unsettled
from ortet.hub.hub import Hub
from ortet.server.session_pool.liveness import current_owner, has_owner_exited

IDEMPOTENCY_KIND = "asked"
"""Rows of kind asked/DAY hold requests with an idempotency key, by a hash of token and key."""
_FIRST_DAY_ROW = ("serve", "asked-from")
"""The row with the first day that is not deleted yet."""

MAX_KEY_LENGTH = 200
DAY_NS = 24 * 3600 * 10**9
_MAX_STORED_BODY_BYTES = 256 << 10
_ROWS_PER_PAGE = 200
_RECORD_RETRY_SECONDS, _RECORD_RETRY_INTERVAL_SECONDS = 600.0, 0.2
"""How long, and how often, the outcome of a request is written again after a failure."""


class RecordedResponse(msgspec.Struct, frozen=True):
    """The answer that was sent for a request."""

    status: int
    body: bytes
    etag: str = ""


class IdempotencyRow(msgspec.Struct, frozen=True):
    """The state of an idempotency key. Encoded as a map, so that later releases may add keys.

    Without an answer, the request is in progress, `lost` or `large`. `lost`: the server failed, and
    the outcome is unknown. `large`: the request succeeded, but its answer was too large to store.
    """

    digest: bytes  # hash of the request
    owner: str  # the process that handles it
    time: int
    answer: RecordedResponse | None = None
    lost: bool = False
    large: bool = False


def run_idempotent(
    hub: Hub, key: str, token: str, request: bytes, handler: Callable[[], RecordedResponse]
) -> tuple[RecordedResponse, bool]:
    """Run `handler` unless the key was used before.

    An OrtetError of the handler releases the key, so that the request can be sent again.

    Returns:
        The answer, and True if it is the stored answer of an earlier request.

    Raises:
        Invalid: The key is malformed, or was used for another request.
        Conflict: The request is in progress, or its answer was too large to store.
        Unsettled: The server failed during the request.
    """
    return _IdempotentRequest(hub, check_key(key), token, request).run(handler)


def check_key(key: str) -> str:
    """Return the key, or raise Invalid if it is malformed."""
    if not 0 < len(key) <= MAX_KEY_LENGTH or not (key.isascii() and key.isprintable()):
        raise Invalid(
            "bad_key", f"Idempotency-Key: give 1 to {MAX_KEY_LENGTH} printable ASCII characters"
        )
    return key


class _IdempotentRequest:
    """One request with an idempotency key."""

    def __init__(self, hub: Hub, key: str, token: str, request: bytes) -> None:
        self._hub = hub
        self._key = key
        self._row_key = sha256(f"{token}\0{key}".encode()).hexdigest()
        self._own_row = IdempotencyRow(
            sha256(request).digest(), current_owner(hub), hub.clock.now_ns()
        )
        self._day = self._own_row.time // DAY_NS
        self._version = 0

    def run(self, handler: Callable[[], RecordedResponse]) -> tuple[RecordedResponse, bool]:
        known = self._claim_key()
        if known is not None:
            return self._replay_response(known), True
        try:
            answer = handler()
        except OrtetError:
            self._record_outcome(None)  # the operation changed nothing: it may be sent again
            raise
        except BaseException:
            self._record_outcome(msgspec.structs.replace(self._own_row, lost=True))
            raise
        if len(answer.body) > _MAX_STORED_BODY_BYTES:
            self._record_outcome(msgspec.structs.replace(self._own_row, large=True))
        else:
            self._record_outcome(msgspec.structs.replace(self._own_row, answer=answer))
        return answer, False

    def _record_outcome(self, row: IdempotencyRow | None) -> None:
        """Write the outcome of the request; in the background if another process locks the store.

        Until then, a repeated request is answered with `in_progress`.
        """
        try:
            self._write(row)
        except Unavailable as error:
            if error.kind != "busy":
                raise
            Thread(target=self._retry_record, args=(row,), name="ortet-once", daemon=True).start()

    def _retry_record(self, row: IdempotencyRow | None) -> None:
        until = time.monotonic() + _RECORD_RETRY_SECONDS
        while time.monotonic() < until:
            try:
                with lock_timeout(
                    _RECORD_RETRY_INTERVAL_SECONDS
                ):  # short, because another thread may use the same connection
                    self._write(row)
                return
            except Unavailable:
                time.sleep(_RECORD_RETRY_INTERVAL_SECONDS)
            except OrtetError:
                return

    def _claim_key(self) -> IdempotencyRow | None:
        """Return None if the key was claimed now, else its existing row."""
        while True:
            existing = self._find()
            if existing is not None:
                return decode(IdempotencyRow, existing.value)
            # Require that the key is also absent for the days before and after: clocks of servers
            # may differ.
            others = [
                RowChange(f"{IDEMPOTENCY_KIND}/{self._day + step}", self._row_key, None, expect=0)
                for step in (-1, 1)
            ]
            try:
                self._write(self._own_row, *others)
            except Conflict as error:
                if error.kind != "row_moved":
                    raise
                continue
            taken = self._find()  # versions do not restart at 1 where rows were deleted
            self._version = taken.version if taken is not None else 0
            return None

    def _find(self) -> CatalogRow | None:
        for day in (self._day, self._day - 1, self._day + 1):
            row = self._hub.catalog.row(f"{IDEMPOTENCY_KIND}/{day}", self._row_key)
            if row is not None:
                return row
        return None

    def _replay_response(self, row: IdempotencyRow) -> RecordedResponse:
        if row.digest != self._own_row.digest:
            raise Invalid(
                "key_reused",
                f"Idempotency-Key {self._key!r} was used for another request: give each its own",
            )
        if row.answer is not None:
            return row.answer
        if row.large:
            raise Conflict(
                "done_before",
                "this request was done before, and its answer was too large to store: "
                "read the result",
            )
        if row.lost or has_owner_exited(self._hub, row.owner):
            raise Unsettled(
                "unsettled_request",
                "the server failed while it did this: look whether it was done, and ask with "
                "another key",
            )
        raise Conflict(
            "in_progress", "a request with this key is in progress: repeat it to get the answer"
        )

    def _write(self, row: IdempotencyRow | None, *others: RowChange) -> None:
        value = None if row is None else encode(row)
        mine = RowChange(
            f"{IDEMPOTENCY_KIND}/{self._day}", self._row_key, value, expect=self._version
        )
        self._hub.catalog.move([], verb="asked", rows=[mine, *others])


def drop_old_keys(hub: Hub) -> int:
    """Delete the keys that are two days old and return their number."""
    catalog, count = hub.catalog, 0
    today = hub.clock.now_ns() // DAY_NS
    row = catalog.row(*_FIRST_DAY_ROW)
    first = int(row.value) if row is not None else today - 2
    for day in range(first, today - 1):
        while page := catalog.rows(f"{IDEMPOTENCY_KIND}/{day}", limit=_ROWS_PER_PAGE):
            gone = [RowChange(one.kind, one.key, None) for one in page]
            catalog.move([], verb="asked", rows=gone)
            count += len(page)
    if row is None or int(row.value) < today - 1:
        catalog.put_row(*_FIRST_DAY_ROW, str(today - 1).encode())
    return count
