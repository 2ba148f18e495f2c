"""Signed records of erasures: tombstones, receipts and pending erasures.

A tombstone says which object replaces an erased one. A receipt says which events lost their body.
Both are signed with the secret of the store.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from ortet._util.codec import decode, encode
from ortet.backends.base import Catalog, RowChange
from ortet.backends.sweep_epoch import EpochFencedCatalog
from ortet.errors import Corrupt
from ortet.ids import Oid, from_hex
from ortet.store.signing import store_signer

if TYPE_CHECKING:
    from ortet.store.context import StoreContext

TOMBSTONE_KIND, RECEIPT_KIND, PENDING_KIND = "tombstone", "erasure", "erasing"
"""Row kinds: a replaced object, a finished erasure, and an erasure that is not finished."""


class Tombstone(msgspec.Struct, frozen=True):
    """Record of a replaced object. `seqs` are the events of `timeline` that it lost."""

    old: bytes
    new: bytes
    kind: int
    timeline: str
    seqs: list[int]
    time: int
    by: str
    signature: bytes = b""


class ErasedEvent(msgspec.Struct, frozen=True):
    """One event without a body. `hash` is its hash in the chain, in hex."""

    timeline: str
    seq: int
    kind: str
    hash: str


class ErasureReceipt(msgspec.Struct, frozen=True):
    """Record of what an erasure destroyed.

    Attributes:
        id: Id of the erasure.
        time: When it was made, in ns since 1970.
        by: Who asked for it.
        session: Id of the session.
        events: The events that lost their content.
        replaced: Pairs of an old object and the object in its place, in hex.
        left: Old objects, in hex, that another process still holds in an unfinished pack. Repeat
            the call when that process has ended.
        signature: Signature of the store.
    """

    id: str
    time: int
    by: str
    session: str
    events: list[ErasedEvent]
    replaced: list[tuple[str, str]]
    left: list[str]
    signature: bytes = b""

    @property
    def complete(self) -> bool:
        """True if no erased object is left."""
        return not self.left


class PendingErasure(msgspec.Struct, frozen=True):
    """An erasure that has started. The next erasure finishes it first."""

    id: str
    by: str
    session: str
    events: list[ErasedEvent]
    effects: list[tuple[str, str]]  # (family, id) of effects whose arguments or outcome are erased
    # (session, key) of inbox messages that are not in the journal yet
    letters: list[tuple[str, str]] = []
    replaced: list[tuple[str, str]] = []
    rows: list[tuple[str, str]] = []  # (kind, key) of rows that repeat external state of the events
    signature: bytes = b""


def replacement_of(catalog: Catalog, oid: Oid) -> Oid | None:
    """Return the object that replaces an erased one, or None if it was not erased.

    After several erasures this is the newest replacement.
    """
    found: Oid | None = None
    while row := catalog.row(TOMBSTONE_KIND, (found or oid).hex()):
        found = Oid(decode(Tombstone, row.value).new)
    return found


def tombstones(catalog: Catalog) -> Iterator[Tombstone]:
    """Yield all tombstones. Raise Corrupt if a row names another object than its key."""
    after = ""
    while page := catalog.rows(TOMBSTONE_KIND, after):
        for row in page:
            record = decode(Tombstone, row.value)
            if from_hex(row.key) != record.old:
                raise Corrupt("bad_tombstone", f"tombstone {row.key} names another object")
            yield record
        after = page[-1].key


def receipts(catalog: Catalog) -> Iterator[ErasureReceipt]:
    """Yield the receipts of all erasures, oldest first."""
    after = ""
    while page := catalog.rows(RECEIPT_KIND, after):
        yield from (decode(ErasureReceipt, row.value) for row in page)
        after = page[-1].key


def record_row(record: Tombstone | ErasureReceipt) -> RowChange:
    """Return the row change that stores a tombstone or receipt."""
    if isinstance(record, Tombstone):
        return RowChange(TOMBSTONE_KIND, record.old.hex(), encode(record))
    return RowChange(RECEIPT_KIND, record.id, encode(record))


def erased_events(store: StoreContext) -> set[tuple[str, int]]:
    """Return (timeline, seq) of every event that was erased in this store.

    A missing body of any other event is damage. Raises Corrupt if a record has a wrong signature.
    """
    # A remote hub has no secret and trusts its server. `ortet verify` on the server checks.
    far = store.objects.is_remote and not isinstance(store.catalog, EpochFencedCatalog)
    mine = None if far else store_signer(store)
    found: set[tuple[str, int]] = set()
    records: list[Tombstone | ErasureReceipt] = [
        *tombstones(store.catalog),
        *receipts(store.catalog),
    ]
    for record in records:
        if mine is not None and not mine.has_valid_signature(record):
            raise Corrupt(
                "bad_signature",
                "a record of an erasure was not made by this store: restore catalog.db and "
                "local/secret from the same copy",
            )
        if isinstance(record, ErasureReceipt):
            found.update((one.timeline, one.seq) for one in record.events)
        else:
            found.update((record.timeline, seq) for seq in record.seqs)
    for row in store.catalog.rows(
        PENDING_KIND
    ):  # interrupted: only some of its events are erased yet
        pending = decode(PendingErasure, row.value)
        if mine is None or mine.has_valid_signature(pending):
            found.update((one.timeline, one.seq) for one in pending.events)
    return found
