"""What was erased elsewhere, and comes in a bundle: believed where it takes nothing away here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortet._util.codec import decode
from ortet.backends.base import RowChange
from ortet.errors import Corrupt
from ortet.history.records import Bodies, Header, Journal, Segment, State
from ortet.history.transfer.bundle import Imported
from ortet.hub.governance.rewrite_objects import shared_in
from ortet.hub.governance.tombstones import Erased, Receipt, Tombstone, erased_events, kept, signer
from ortet.ids import Oid

if TYPE_CHECKING:
    from ortet.sessions.manager import Sessions


def adopt_erased(sessions: Sessions, found: Imported, name: str) -> list[RowChange]:
    """Tombstones signed by this store, for objects it never had; a receipt for bodies that the
    bundle has not."""
    hub, mine = sessions.hub, signer(sessions.hub) if found.heirs else None
    by, now = f"bundle {name}", hub.clock.now_ns()
    heirs: dict[Oid, Oid] = {}
    rows: list[RowChange] = []
    for old, (new, kind) in found.heirs.items():
        # what is whole here stays whole, whatever a bundle says
        if mine is not None and hub.objects.heir(old) == old and not hub.objects.has(old):
            heirs[old] = new
            stone = Tombstone(old, new, int(kind), "", [], now, by)
            rows.append(kept(mine.tombstone(stone)))
    events = list(_bare(sessions, found, heirs).values())
    if events:
        receipt = Receipt(sessions.new_id(), now, by, "", events, [], [])
        rows.append(kept(signer(hub).receipt(receipt)))
    return rows


def _bare(
    sessions: Sessions, found: Imported, heirs: dict[Oid, Oid]
) -> dict[tuple[str, int], Erased]:
    """Events of the imported journals without a body, which no erasure here accounts for."""
    hub = sessions.hub
    known = erased_events(hub)
    bare: dict[tuple[str, int], Erased] = {}

    def heir(oid: bytes) -> Oid:
        return heirs.get(Oid(oid)) or hub.objects.heir(Oid(oid))

    seen: set[bytes] = set()
    todo: list[bytes] = list(found.refs.values())
    last: list[bytes] = []
    while todo:
        oid = todo.pop()
        if oid not in seen:
            seen.add(oid)
            commit = hub.history.read(Oid(oid))
            todo += commit.parents
            state = decode(State, hub.objects.get(commit.state))
            for journal in (state.journal, *(oid for _, oid in shared_in(hub, state.memory))):
                if journal:
                    last.append(decode(Journal, hub.objects.get(Oid(journal))).segment)
    while last:
        oid = last.pop()
        if not oid or oid in seen:
            continue
        seen.add(oid)
        segment = decode(Segment, hub.objects.get(heir(oid)))
        last.append(segment.before)
        items = decode(Bodies, hub.objects.get(heir(segment.bodies))).items
        if len(items) != len(segment.heads):
            raise Corrupt("bad_segment", "a segment has not as many bodies as events")
        timeline = segment.timeline.hex()
        for head, (salt, body) in zip(segment.heads, items, strict=True):
            header = decode(Header, head)
            if salt and hub.objects.hasher.oid(salt + body) != header.seal:
                raise Corrupt("bad_event", f"event {header.seq} is not what was recorded")
            if not salt and (timeline, header.seq) not in known:
                hash_ = hub.objects.hasher.oid(head).hex()
                bare[timeline, header.seq] = Erased(timeline, header.seq, header.kind, hash_)
    return bare
