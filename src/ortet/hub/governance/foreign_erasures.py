"""Accept erasures of another store that arrive with a bundle or a transfer.

An erasure is accepted only for objects that this store does not have. It never deletes anything
here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortet._util.codec import decode
from ortet.backends.base import RowChange
from ortet.errors import Corrupt
from ortet.history.records import Bodies, EventHeader, JournalHead, JournalSegment, State
from ortet.history.transfer.bundle import BundleImport
from ortet.hub.governance.rewrite_objects import scope_journals
from ortet.hub.governance.tombstones import (
    ErasedEvent,
    ErasureReceipt,
    Tombstone,
    erased_events,
    record_row,
)
from ortet.ids import Oid
from ortet.store.signing import store_signer

if TYPE_CHECKING:
    from ortet.sessions.manager import SessionManager


def adopt_erasures(sessions: SessionManager, imported: BundleImport, name: str) -> list[RowChange]:
    """Return the rows that record the erasures of imported objects.

    The rows are tombstones for missing objects and a receipt for events without a body. Both are
    signed by this store.
    """
    store, mine = sessions.store, store_signer(sessions.store) if imported.heirs else None
    by, now = f"bundle {name}", store.clock.now_ns()
    heirs: dict[Oid, Oid] = {}
    rows: list[RowChange] = []
    for old, (new, kind) in imported.heirs.items():
        # An object that exists here stays, whatever the bundle says.
        if (
            mine is not None
            and store.objects.replacement_of(old) == old
            and not store.objects.has(old)
        ):
            heirs[old] = new
            stone = Tombstone(old, new, int(kind), "", [], now, by)
            rows.append(record_row(mine.sign_record(stone)))
    events = list(_events_without_body(sessions, imported, heirs).values())
    if events:
        receipt = ErasureReceipt(sessions.services.new_id(), now, by, "", events, [], [])
        rows.append(record_row(store_signer(store).sign_record(receipt)))
    return rows


def _events_without_body(
    sessions: SessionManager, found: BundleImport, replacements: dict[Oid, Oid]
) -> dict[tuple[str, int], ErasedEvent]:
    """Return imported events that have no body and are not in an erasure of this store."""
    store = sessions.store
    known = erased_events(store)
    bare: dict[tuple[str, int], ErasedEvent] = {}

    def heir(oid: bytes) -> Oid:
        return replacements.get(Oid(oid)) or store.objects.replacement_of(Oid(oid))

    seen: set[bytes] = set()
    todo: list[bytes] = list(found.refs.values())
    last: list[bytes] = []
    while todo:
        oid = todo.pop()
        if oid not in seen:
            seen.add(oid)
            commit = store.history.read(Oid(oid))
            todo += commit.parents
            state = decode(State, store.objects.get(commit.state))
            for journal in (
                state.journal,
                *(oid for _, oid in scope_journals(store, state.memory)),
            ):
                if journal:
                    last.append(decode(JournalHead, store.objects.get(Oid(journal))).segment)
    while last:
        oid = last.pop()
        if not oid or oid in seen:
            continue
        seen.add(oid)
        segment = decode(JournalSegment, store.objects.get(heir(oid)))
        last.append(segment.before)
        items = decode(Bodies, store.objects.get(heir(segment.bodies))).items
        if len(items) != len(segment.heads):
            raise Corrupt("bad_segment", "a segment has not as many bodies as events")
        timeline = segment.timeline.hex()
        for head, (salt, body) in zip(segment.heads, items, strict=True):
            header = decode(EventHeader, head)
            if salt and store.objects.hasher.oid(salt + body) != header.seal:
                raise Corrupt("bad_event", f"event {header.seq} is not what was recorded")
            if not salt and (timeline, header.seq) not in known:
                hash_ = store.objects.hasher.oid(head).hex()
                bare[timeline, header.seq] = ErasedEvent(timeline, header.seq, header.kind, hash_)
    return bare
