"""Read effects from journals: those of commits that arrive, and rows that were lost.

The journal of a commit holds each effect as a `begun` and an `ended` event. Folded over all commits
that a store has, they give the rows of the ledger again (`ledger.py`). So a store that pulls,
imports or unarchives a commit knows what was done, also on branches that nobody restores.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ortet._util.codec import decode
from ortet.backends.base import Catalog, EventRow, RowChange
from ortet.errors import Corrupt
from ortet.history.records import Bodies, EventHeader, JournalHead, JournalSegment
from ortet.ids import Oid, to_hex
from ortet.journal.events import Event
from ortet.journal.state.records import Effect
from ortet.objects.base import Kind
from ortet.sessions.actions.actions import format_call
from ortet.sessions.actions.ledger import (
    BEGUN,
    DONE,
    FAILED,
    UNSETTLED,
    EffectRow,
    Ledger,
    StoredEffect,
    effect_change,
    is_newer,
    key_change,
    ledger_of,
)

if TYPE_CHECKING:
    from ortet.sessions.services import JournalServices

_EFFECT_KINDS = ("begun", "ended")
_SEEN = "deed-seen"
"""Row kind by commit id: the origin of a commit whose effects are in the ledger."""

_MAX_CALL_CHARS = 300


class RecordedEffects:
    """Effects folded from events, each in its latest known state, by ledger and id.

    An id alone is not enough: two sessions that imported one transcript have the same ids.
    `timelines` has the timeline on which each effect began.
    """

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], EffectRow] = {}
        self.timelines: dict[tuple[str, str], str] = {}

    def add(self, event: Event, ledger: str, timeline: str) -> None:
        """Add an event of kind begun or ended."""
        data = event.data
        id_ = str(data.get("id", ""))
        place = (ledger, id_)
        known = self.rows.get(place)
        if event.erased or not id_ or "whatif" in data:  # a changed outcome did not happen
            return
        if event.kind == "begun":
            found = _begun(event, ledger)
        elif known is not None:
            effect = replace(known.effect, state=data.get("state", UNSETTLED), ended=event.seq)
            found = replace(
                known, effect=effect, outcome=data.get("outcome"), error=data.get("error", "")
            )
        else:
            return
        if known is None or is_newer(found, known):
            self.rows[place] = found
            self.timelines.setdefault(place, timeline)


def _begun(event: Event, ledger: str) -> EffectRow:
    data = event.data
    effect = Effect(
        id=data["id"],
        name=data["name"],
        replay=data["replay"],
        state=BEGUN,
        key=data.get("key", ""),
        scope=data.get("scope", ""),
        why=data.get("why", ""),
        digest=data.get("digest", ""),
        begun=event.seq,
        time=event.time,
        actor=event.actor,
        where=data.get("where") or "outside",
    )
    said = {"args": data.get("args", []), "kwargs": data.get("kwargs", {})}
    call = format_call(effect.name, said)[:_MAX_CALL_CHARS] if effect.key else ""
    return EffectRow(effect, "", ledger=ledger, call=call)


def recovered_rows(events: Iterable[Event], lost: Sequence[Effect], ledger: str) -> list[EffectRow]:
    """Return the rows of effects of one journal. An effect that was not ended is unsettled."""
    found, wanted = RecordedEffects(), {effect.id for effect in lost}
    for event in events:
        if event.kind in _EFFECT_KINDS and event.data.get("id") in wanted:
            found.add(event, ledger, event.timeline)
    return [settled_or_open(row) for row in found.rows.values()]


def settled_or_open(row: EffectRow) -> EffectRow:
    """Return the row with an outcome that is not known if nobody here performs the effect."""
    if row.effect.state != BEGUN:
        return row
    return replace(row, effect=replace(row.effect, state=UNSETTLED))


def seen_origins(catalog: Catalog) -> set[str]:
    """Return the origins of the commits that arrived from other stores."""
    found: set[str] = set()
    after = ""
    while page := catalog.rows(_SEEN, after):
        found.update(row.value.decode() for row in page if row.value)
        after = page[-1].key
    return found


class JournalEffects:
    """The effects in the journals of commits. Each segment is read once.

    `heirs` has the replacements of objects that were erased in the store that commits come from.
    """

    def __init__(
        self, sessions: JournalServices, heirs: Mapping[Oid, tuple[Oid, Kind]] | None = None
    ) -> None:
        self._heirs = heirs or {}
        self.recorded = RecordedEffects()
        self._sessions = sessions
        self._objects = sessions.store.objects
        self._origins: dict[bytes, str] = {}

    def know(self, segment: bytes, origin: str) -> None:
        """Do not read a segment, nor those before it."""
        self._origins[segment] = origin

    def add_journal(self, segment: bytes) -> str:
        """Add the journal that ends with a segment, and return its origin; "" without events."""
        path: list[tuple[bytes, JournalSegment | None, str]] = []
        while segment and segment not in self._origins:
            found = decode(JournalSegment, self._get(segment))
            path.append((segment, found if _has_effects(found) else None, found.timeline.hex()))
            segment = found.before
        if not path:
            return self._origins.get(segment, "")
        origin = self._origins[segment] if segment else path[-1][2]
        for oid, found_segment, timeline in reversed(path):
            self._origins[oid] = origin
            if found_segment is not None:
                self._add_segment(found_segment, origin, timeline)
        return origin

    def add_events(self, events: Iterable[Event], origin: str) -> None:
        """Add events that no segment holds yet."""
        for event in events:
            if event.kind in _EFFECT_KINDS:
                self.recorded.add(event, ledger_of(origin), event.timeline)

    def _add_segment(self, segment: JournalSegment, origin: str, timeline: str) -> None:
        bodies = decode(Bodies, self._get(segment.bodies)).items
        for head, (salt, body) in zip(segment.heads, bodies, strict=True):
            header = decode(EventHeader, head)
            if header.kind in _EFFECT_KINDS:
                row = EventRow(header.seq, head, salt, body)
                event = self._sessions.chain.read(row, timeline)
                self.recorded.add(event, ledger_of(origin), timeline)

    def _get(self, oid: bytes) -> bytes:
        """Return an object, or what replaces it after an erasure."""
        heir = self._heirs.get(Oid(oid))
        return self._objects.get(heir[0] if heir else self._objects.replacement_of(Oid(oid)))


def _has_effects(segment: JournalSegment) -> bool:
    return any(decode(EventHeader, head).kind in _EFFECT_KINDS for head in segment.heads)


def arriving_rows(
    sessions: JournalServices,
    tips: Iterable[Oid],
    heirs: Mapping[Oid, tuple[Oid, Kind]] | None = None,
) -> list[RowChange]:
    """Return the rows of all effects in the journals of commits that arrive.

    They are written in the transaction that creates or moves the branches. All objects must be
    stored already.
    """
    store, effects = sessions.store, JournalEffects(sessions, heirs)
    chosen = list(dict.fromkeys(tips))
    origins: dict[Oid, str] = {}
    for oid in reversed(_new_commits(sessions, chosen, effects)):
        journal = store.history.state(oid).journal
        head = decode(JournalHead, store.objects.get(Oid(journal))) if journal else None
        origins[oid] = effects.add_journal(head.segment) if head is not None else ""
    rows = [
        RowChange(_SEEN, to_hex(oid), origins[oid].encode()) for oid in chosen if oid in origins
    ]
    known = _KnownRows(store.catalog)
    for place, found in sorted(effects.recorded.rows.items()):
        rows += known.changes(settled_or_open(found), effects.recorded.timelines[place])
    return rows


def _new_commits(
    sessions: JournalServices, tips: Sequence[Oid], effects: JournalEffects
) -> list[Oid]:
    """Return the commits whose effects this store has not read yet, newest first."""
    store, todo, found = sessions.store, list(tips), dict[Oid, None]()
    while todo:
        oid = todo.pop()
        if oid in found:
            continue
        seen = store.catalog.row(_SEEN, to_hex(oid))
        if seen is None:
            found[oid] = None
            todo += store.history.read(oid).parents
        elif seen.value and (journal := store.history.state(oid).journal):
            head = decode(JournalHead, store.objects.get(Oid(journal)))
            effects.know(head.segment, seen.value.decode())
    return list(found)


class _KnownRows:
    """The rows that are in the catalog, and the changes that add what journals say."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._ledgers: dict[str, Ledger] = {}
        self._new_keys: dict[tuple[str, str], bool] = {}

    def changes(self, row: EffectRow, timeline: str) -> Iterator[RowChange]:
        """Yield the changes for one effect that a journal holds."""
        ledger = self._ledgers.setdefault(row.ledger, Ledger(self._catalog, [row.ledger], {}))
        known = ledger.find(row.effect.id)
        if known is None:
            yield effect_change(row, expect=0)
        elif is_newer(row, known.row) and row.effect.state in (DONE, FAILED):
            merged = replace(known.row, effect=row.effect, outcome=row.outcome, error=row.error)
            yield effect_change(merged, expect=known.version)
        if row.effect.key:
            home = timeline if row.effect.scope == "timeline" else row.ledger
            yield from self._key_changes(row, home, ledger)

    def _key_changes(self, row: EffectRow, home: str, ledger: Ledger) -> Iterator[RowChange]:
        """Yield the change that puts an effect under its key.

        If two effects have one key, because two stores did not know of each other, the one that is
        done keeps it.
        """
        key, is_done = row.effect.key, row.effect.state == DONE
        known = self._new_keys.get((home, key))
        if known is None:
            holder: StoredEffect | None = None
            with suppress(Corrupt):  # a damaged key row is written again
                holder = ledger.find_in(home, key)
            known = holder is not None and holder.row.effect.state == DONE
            if holder is not None and holder.row.effect.id == row.effect.id:
                self._new_keys[home, key] = known or is_done
                return
            if holder is not None and not (is_done and not known):
                self._new_keys[home, key] = known
                return
        elif known or not is_done:
            return
        self._new_keys[home, key] = known or is_done
        yield key_change(home, key, row, expect=None)
