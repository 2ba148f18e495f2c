"""Catalog writes that are applied once, even if a client repeats them because an answer was lost.

An append is recognised by its events: they are chained and salted, so equal events are the same
append. Every other write stores a note, a row with the request id of the client, in the same
transaction. With its next write, the client lists notes that may be deleted.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from ortet._util.codec import decode, encode
from ortet.backends.base import Catalog, CatalogRow, Lease, RowChange
from ortet.backends.keys import check_name
from ortet.errors import Conflict, Invalid, NotFound, OrtetError

REQUEST_KIND = "request"
_STORE = ("store", "id")
_NOTE_TTL_NS = 3600 * 10**9
"""Age at which a note may be deleted; its client gave up long before."""
_ROWS_PER_PAGE = 200
_TRIES = 100


class RequestNote(msgspec.Struct, frozen=True):
    """Note that a request was applied."""

    time: int


class WriteRequest(msgspec.Struct, frozen=True):
    """A write request. `again`: it may be a retry. `done`: requests whose notes may be deleted."""

    request: str
    again: bool
    done: list[str]
    now: int


def new_boot() -> str:
    """Return an id of this server process, for signal tokens."""
    return os.urandom(8).hex()


def store_id(catalog: Catalog) -> str:
    """Return the id of the store, which is created at first use."""
    row = catalog.row(*_STORE)
    if row is None:
        try:
            row = catalog.put_row(*_STORE, os.urandom(16).hex().encode(), expect=0)
        except Conflict:  # another server created it first
            return store_id(catalog)
    return row.value.decode()


def was_done(
    catalog: Catalog, name: str, values: dict[str, Any], write_request: WriteRequest
) -> bool:
    """Return True if this write was already applied."""
    if not write_request.again:
        return False
    if name == "append" and values["events"]:
        return _has_events(catalog, values)
    return catalog.row(REQUEST_KIND, write_request.request) is not None


def write(catalog: Catalog, name: str, values: dict[str, Any], write_request: WriteRequest) -> Any:
    """Apply a write unless it was applied before. The result is the same."""
    if name != "append" or not values["events"]:
        check_name(write_request.request)
    if was_done(catalog, name, values, write_request):
        return _repeat_result(catalog, name, values)
    try:
        return _apply(catalog, name, values, write_request)
    except OrtetError:
        # The first attempt may have been applied meanwhile.
        if not was_done(catalog, name, values, write_request):
            raise
        return _repeat_result(catalog, name, values)


def _apply(catalog: Catalog, name: str, values: dict[str, Any], write_request: WriteRequest) -> Any:
    if name == "append":
        # An append that is known by its events needs no note: it is then a single statement.
        rows = values["rows"] if values["events"] else [*values["rows"], *_notes(write_request)]
        return catalog.append(**{**values, "rows": rows})
    if name == "move":
        return catalog.move(**{**values, "rows": [*values["rows"], *_notes(write_request)]})
    if name == "drop_row":
        gone = RowChange(check_name(values["kind"]), check_name(values["key"]), None)
        catalog.move([], verb="drop", rows=[gone, *_notes(write_request)])
        return None
    return _put_row(catalog, write_request, **values)


def _put_row(
    catalog: Catalog,
    write_request: WriteRequest,
    *,
    kind: str,
    key: str,
    value: bytes,
    expect: int | None,
) -> CatalogRow:
    for _ in range(_TRIES):
        version = expect
        if version is None:
            stored = catalog.row(kind, key)
            version = stored.version if stored else 0
        change = RowChange(kind, key, value, version)
        try:
            catalog.move([], verb="put", rows=[change, *_notes(write_request)])
        except Conflict as error:
            if error.kind != "row_moved" or expect is not None:
                raise
        else:
            return (
                CatalogRow(kind, key, value, version + 1)
                if version
                else _created_row(catalog, kind, key, value)
            )
    raise Conflict("row_moved", f"{kind} {key} is written by many at once: repeat the call")


def _created_row(catalog: Catalog, kind: str, key: str, value: bytes) -> CatalogRow:
    """Return a row that was just created; the catalog chooses the version.

    If another writer changed the row since, a version below the current one is correct: it is
    outdated.
    """
    stored = catalog.row(kind, key)
    if stored is None:
        return CatalogRow(kind, key, value, 1)
    return stored if stored.value == value else CatalogRow(kind, key, value, stored.version - 1)


def _repeat_result(catalog: Catalog, name: str, values: dict[str, Any]) -> Any:
    """Return the result of a write that was applied before."""
    if name == "move":
        leases = [catalog.lease(claim.name) for claim in values["claims"]]
        owners = [claim.owner for claim in values["claims"]]
        return [
            lease if lease is not None and lease.owner == owner else Lease(claim.name, owner, 0, 0)
            for lease, owner, claim in zip(leases, owners, values["claims"], strict=True)
        ]
    if name == "put_row":
        return _created_row(catalog, values["kind"], values["key"], values["value"])
    return None


def _has_events(catalog: Catalog, values: dict[str, Any]) -> bool:
    events = values["events"]
    try:
        stored = catalog.events(values["timeline"], events[0].seq - 1, len(events))
    except (NotFound, Invalid):
        return False
    return [(e.seq, e.head) for e in stored] == [(e.seq, e.head) for e in events]


def _notes(write_request: WriteRequest) -> list[RowChange]:
    return [_note(write_request), *_drop_settled_notes(write_request)]


def _note(write_request: WriteRequest) -> RowChange:
    return RowChange(
        REQUEST_KIND, write_request.request, encode(RequestNote(write_request.now)), expect=0
    )


def _drop_settled_notes(write_request: WriteRequest) -> list[RowChange]:
    return [RowChange(REQUEST_KIND, request, None) for request in write_request.done]


def drop_old_notes(catalog: Catalog, now: int) -> int:
    """Delete notes that dead clients left, and return their number."""
    dropped = 0
    after = ""
    while page := catalog.rows(REQUEST_KIND, after, _ROWS_PER_PAGE):
        old = [row for row in page if decode(RequestNote, row.value).time < now - _NOTE_TTL_NS]
        if old:
            gone = [RowChange(REQUEST_KIND, row.key, None) for row in old]
            catalog.move([], verb="forget", rows=gone)
            dropped += len(old)
        after = page[-1].key
    return dropped
