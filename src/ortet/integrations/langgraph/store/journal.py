"""The journal of a LangGraph store: any process appends to it and reads what others wrote."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import RLock
from typing import TYPE_CHECKING, Any

import msgspec

from ortet._util.codec import encode
from ortet.backends.base import EventRow, RowChange
from ortet.config.environment import open_hub
from ortet.errors import Conflict, Corrupt, Refused
from ortet.integrations._shared.session_pool import hub_open_options, require_hub
from ortet.integrations.langgraph.store.items import (
    EXPIRED,
    ItemChange,
    ItemEntry,
    ItemId,
    ItemValueCache,
    changes_of,
    copy_value,
    drafts_of,
    entry_of,
    fold_items,
    id_of,
    kind_of,
    row_key,
    row_of,
)
from ortet.journal.events import Draft, Event, Tip
from ortet.sessions.environment.removal_rows import adapter_row_kind, drop_adapter_rows
from ortet.sessions.history.load import load_event_log
from ortet.sessions.table import ARCHIVED, CLOSED, SessionRow

if TYPE_CHECKING:
    from ortet.history.commits import CommitInfo
    from ortet.hub.hub import Hub
    from ortet.journal.event_log import EventLog

_MAX_ATTEMPTS = 1000
_PAGE = 1000
_MAX_GAP_EVENTS = 50
"""Gap between two wanted events up to which one query reads both."""
_EXPIRE_BATCH_ITEMS = 1000


class ItemJournal:
    """The items of one session, for any thread.

    It caches the end of the journal and values that cannot change. All else is read from the
    catalog.
    """

    def __init__(self, hub: Hub, name: str, agent: str) -> None:
        self._hub = require_hub(hub)
        self._catalog = hub.catalog
        self._sessions = hub.internals.session_manager
        self._chain = self._sessions.services.chain
        self._name, self._agent = name, agent
        self.reset()
        self.session = self._find_or_create(hub).id

    def reset(self) -> None:
        """Clear all caches and create a new lock.

        Also called in a forked child: a thread of the parent may have held the lock, and nobody
        would release it in the child.
        """
        self.lock = RLock()
        self._tip: tuple[str, Tip] = ("", Tip())
        self._indexed_timelines: set[str] = set()
        self._cached_log: tuple[str, EventLog] | None = None
        self._value_cache = ItemValueCache()
        self._row: SessionRow | None = None

    def _find_or_create(self, hub: Hub) -> SessionRow:
        row = self._sessions.table.find(self._agent, self._name)
        if row is None:
            try:
                hub.session(self._name, agent=self._agent).pause()
            except Refused as error:
                if error.kind != "lease_held":  # Another process has just created it.
                    raise
            row = self._sessions.table.find(self._agent, self._name)
            assert row is not None
        return row

    def _recreate_session(self) -> SessionRow:
        """Create the session again after it was removed.

        A second hub is opened, because another thread may be using this one.
        """
        with self.lock, open_hub(self._hub.url, **hub_open_options(self._hub)) as other:
            row = self._find_or_create(other)
            if row.id != self.session:
                for timeline in self._indexed_timelines:
                    drop_adapter_rows(self._catalog, timeline)
                self._indexed_timelines.clear()
                self.session = row.id
        return row

    @property
    def now(self) -> int:
        return self._hub.clock.now_ns()

    def row(self) -> SessionRow:
        """Return the session row. It is decoded again only if its version changed."""
        stored_row = self._catalog.row("session", self.session)
        if stored_row is None:
            self._row = self._recreate_session()
        elif self._row is None or self._row.version != stored_row.version:
            self._row = self._sessions.table.get(self.session)
        return self._row

    def timeline(self) -> str:
        """Return the current timeline of the session; a restore changes it."""
        timeline = self.row().timeline
        if timeline not in self._indexed_timelines:
            self._build_rows(timeline)
        return timeline

    # One item.

    def entry(self, id_: ItemId) -> ItemEntry | None:
        return self._entry(self.timeline(), id_)

    def _entry(self, timeline: str, id_: ItemId) -> ItemEntry | None:
        row = self._catalog.row(kind_of(timeline), row_key(id_))
        return entry_of(row.value) if row else None

    def get(self, id_: ItemId, *, refresh: bool) -> tuple[ItemEntry, dict[str, Any]] | None:
        """Return an item and its value; None if it does not exist or has expired."""
        timeline = self.timeline()
        entry = self._entry(timeline, id_)
        if entry is None or entry.is_expired(self.now):
            return None
        known = self._value_cache.values_for(timeline, self.epoch())
        value = known.get(entry.said)
        if value is None:
            value = self._values(timeline, [entry]).get(entry.said)
            if value is None:  # The value was erased.
                return None
            self._value_cache.keep(known, entry.said, value)
        if refresh and entry.ttl:
            self.refresh([id_])
        return entry, copy_value(value)

    def values(self, entries: Sequence[ItemEntry]) -> dict[int, dict[str, Any]]:
        """Return values by the number of the event that has them. Erased values are missing."""
        return self._values(self.timeline(), entries)

    def _values(self, timeline: str, entries: Sequence[ItemEntry]) -> dict[int, dict[str, Any]]:
        wanted = {entry.said: entry for entry in entries}
        seqs = [entry.said + n for entry in wanted.values() for n in range(entry.parts + 1)]
        events = self._read(timeline, seqs)
        values: dict[int, dict[str, Any]] = {}
        for seq, entry in wanted.items():
            pieces = [events.get(seq + n) for n in range(entry.parts + 1)]
            if any(one is None or one.erased for one in pieces):
                continue
            first, *rest = [one for one in pieces if one is not None]
            text = "".join(one.data["text"] for one in rest)
            values[seq] = msgspec.json.decode(text) if rest else first.data["value"]
        return values

    def vectors(self, entries: Sequence[ItemEntry]) -> dict[int, list[bytes]]:
        """Return vectors by the number of the event that put the item."""
        seqs = [e.vectors_after + n + 1 for e in entries for n in range(e.vectors)]
        events = self._read(self.timeline(), seqs)
        vectors: dict[int, list[bytes]] = {}
        for entry in entries:
            item_vectors = vectors.setdefault(entry.seq, [])
            for n in range(entry.vectors):
                event = events.get(entry.vectors_after + n + 1)
                if event is not None and not event.erased:
                    item_vectors += [b64decode(text) for _, text in event.data["vectors"]]
        return vectors

    def refresh(self, ids: Sequence[ItemId]) -> dict[ItemId, ItemEntry]:
        """Restart the time to live of items; return their new entries."""
        for _ in range(_MAX_ATTEMPTS):
            timeline, now = self.timeline(), self.now
            entries: dict[ItemId, ItemEntry] = {}
            rows: list[RowChange] = []
            for id_ in ids:
                row = self._catalog.row(kind_of(timeline), row_key(id_))
                entry = entry_of(row.value) if row else None
                if row and entry and entry.ttl and not entry.is_expired(now):
                    entries[id_] = entry.with_new_expiry(now)
                    rows.append(RowChange(row.kind, row.key, encode(entries[id_]), row.version))
            try:
                if rows:
                    self._catalog.move([], verb="refresh", actor=self._hub.store.author, rows=rows)
                return entries
            except Conflict as error:
                if error.kind != "row_moved":
                    # It was put at the same time, which already restarted its time to live.
                    raise
        return {}

    # All items.

    def rows(self) -> Iterator[tuple[ItemId, ItemEntry]]:
        kind, after = kind_of(self.timeline()), ""
        while page := self._catalog.rows(kind, after, _PAGE):
            for row in page:
                entry = entry_of(row.value)
                yield id_of(row.key, entry), entry
            after = page[-1].key

    def epoch(self) -> tuple[int, int]:
        """Return the sweep epoch, which changes when something is erased."""
        objects = self._hub.objects
        return objects.sweep_lock.epoch(), objects.epoch

    def last(self, timeline: str) -> int:
        return self._catalog.last_seq(timeline)

    def events(self, timeline: str, after: int, upto: int) -> Iterator[Event]:
        """Yield the events of the timeline itself, without its ancestors."""
        while after < upto and (page := self._catalog.events(timeline, after, _PAGE)):
            for row in page:
                yield self._chain.read(row, timeline)
            after = page[-1].seq

    def all_events(self) -> Iterator[Event]:
        """Yield all events, from the first event of the session family."""
        yield from self._full_log(self.timeline()).events()

    def commit(self, message: str) -> CommitInfo:
        """Commit under the lease of the session. Later writes of others go into the next commit."""
        with self._sessions.leased_session(self.row()) as session:
            return session.commit(message)

    # Writing.

    def write(self, changes: Iterable[ItemChange]) -> None:
        """Write all changes in one transaction, durable on return."""
        planned = [
            msgspec.structs.replace(one, value=self._hub.store.secrets.redact(one.value))
            for one in changes
        ]

        def drafts(timeline: str) -> list[Draft]:
            return drafts_of(
                planned,
                lambda id_: self._entry(timeline, id_),
                lambda entry: self._values(timeline, [entry]).get(entry.said),
                now=self.now,
                author=self._hub.store.author,
            )

        self._append(drafts)

    def expire(self, ids: Sequence[ItemId]) -> int:
        """Remove the items that have expired; return their number."""
        total = 0
        for start in range(0, len(ids), _EXPIRE_BATCH_ITEMS):
            some, gone = ids[start : start + _EXPIRE_BATCH_ITEMS], list[Any]()

            def drafts(timeline: str, some: Sequence[ItemId] = some, gone: list[Any] = gone) -> Any:
                entries = {id_: self._entry(timeline, id_) for id_ in some}
                gone[:] = [
                    [list(id_[0]), id_[1]]
                    for id_, entry in entries.items()
                    if entry is not None and entry.is_expired(self.now)
                ]
                return (
                    [Draft(EXPIRED, {"gone": list(gone)}, self._hub.store.author)] if gone else []
                )

            self._append(drafts)
            total += len(gone)
        return total

    def _append(self, drafts: Callable[[str], Sequence[Draft]]) -> None:
        """Append the events by compare-and-set on the last event number, with retry."""
        with self.lock:
            for _ in range(_MAX_ATTEMPTS):
                row = self.row()
                if row.status in (CLOSED, ARCHIVED):
                    raise _ended_session_error(row)
                timeline = self.timeline()
                tip = self._tip_of(timeline)
                events, rows, values, last = self._make_events(timeline, tip, drafts(timeline))
                if not events:
                    return
                try:
                    self._catalog.append(timeline, events, rows=rows)
                except Conflict as error:
                    self._tip = ("", Tip())
                    if error.kind != "seq_taken":
                        raise
                    continue
                self._tip = (timeline, last)
                known = self._value_cache.values_for(timeline, self.epoch())
                for seq, value in values.items():
                    self._value_cache.keep(known, seq, value)
                self._hub.store.notify(f"session:{self.session}")
                return
        raise Conflict("seq_taken", "too many processes write to this store: repeat the call")

    def _make_events(
        self, timeline: str, tip: Tip, drafts: Sequence[Draft]
    ) -> tuple[list[EventRow], list[RowChange], dict[int, dict[str, Any]], Tip]:
        events: list[EventRow] = []
        rows: dict[ItemId, RowChange] = {}
        values: dict[int, dict[str, Any]] = {}
        for draft in drafts:
            event_row, event = self._chain.make(tip, draft, self.now)
            tip = Tip(event.seq, event.hash, event.time)
            events.append(event_row)
            if "value" in event.data:
                values[event.seq] = event.data["value"]
            for id_, entry in changes_of(event, lambda one: self._entry(timeline, one)):
                rows[id_] = row_of(timeline, id_, entry)
        return events, list(rows.values()), values, tip

    def _tip_of(self, timeline: str) -> Tip:
        if self._tip[0] != timeline:
            newest = self._catalog.events(timeline, limit=1, newest=True)
            tip = self._chain.tip(newest[0]) if newest else self._full_log(timeline).tip()
            self._tip = (timeline, tip)
        return self._tip[1]

    # Reading.

    def _read(self, timeline: str, seqs: Iterable[int]) -> dict[int, Event]:
        """Return events by number, in as few queries as possible."""
        events: dict[int, Event] = {}
        for first, last, wanted in _runs(sorted(set(seqs))):
            for row in self._catalog.events(timeline, first - 1, last - first + 1):
                if row.seq in wanted:
                    events[row.seq] = self._chain.read(row, timeline)
            missing = wanted - events.keys()
            if missing:
                # They are older than this timeline, or only in commits because their rows were
                # trimmed.
                events |= self._read_from_log(timeline, missing)
        return events

    def _read_from_log(self, timeline: str, wanted: set[int]) -> dict[int, Event]:
        with self.lock:
            try:
                events = list(self._full_log(timeline).events(min(wanted) - 1, max(wanted)))
            except Corrupt:
                # The rows that the cached log relied on were trimmed after a later commit.
                self._cached_log = None
                events = list(self._full_log(timeline).events(min(wanted) - 1, max(wanted)))
        return {event.seq: event for event in events if event.seq in wanted}

    def _full_log(self, timeline: str) -> EventLog:
        """Return the event log with its ancestors. It is cached: later commits only add to it."""
        if self._cached_log is None or self._cached_log[0] != timeline:
            self._cached_log = (timeline, load_event_log(self._sessions.services, self.row())[0])
        return self._cached_log[1]

    def _build_rows(self, timeline: str) -> None:
        """Build the rows of a timeline that has none: the session is new, or was restored."""
        with self.lock:
            if not self._has_rows(timeline):
                there = fold_items(self._full_log(timeline).events())
                rows = [row_of(timeline, id_, entry) for id_, entry in there.items()]
                created = RowChange(
                    adapter_row_kind(timeline), kind_of(timeline), b"\x01", expect=0
                )
                try:
                    self._catalog.move(
                        [], verb="index", actor=self._hub.store.author, rows=[created, *rows]
                    )
                except Conflict as error:
                    if error.kind != "row_moved":  # Another process has built them.
                        raise
                self._drop_stale_rows(timeline)
            self._indexed_timelines.add(timeline)

    def _drop_stale_rows(self, timeline: str) -> None:
        """Delete the rows of timelines that the session no longer uses."""
        for old in self._sessions.table.former_timelines(self.session) - {timeline}:
            if self._has_rows(old):
                drop_adapter_rows(self._catalog, old)

    def _has_rows(self, timeline: str) -> bool:
        return self._catalog.row(adapter_row_kind(timeline), kind_of(timeline)) is not None


def _ended_session_error(row: SessionRow) -> Conflict:
    back = (
        f"bring it back with hub.unarchive({row.name!r})"
        if row.status == ARCHIVED
        else "put what is new into another, as OrtetStore(hub, name=…)"
    )
    return Conflict(
        "illegal_move",
        f"session {row.name!r}, which has these items, is {row.status}, and can only be read: "
        f"{back}",
        status=row.status,
    )


def _runs(seqs: Sequence[int]) -> Iterator[tuple[int, int, set[int]]]:
    """Group nearby numbers; yield first, last, and the wanted numbers of each group."""
    run: list[int] = []
    for seq in seqs:
        if run and (seq - run[-1] > _MAX_GAP_EVENTS or seq - run[0] >= _PAGE):
            yield run[0], run[-1], set(run)
            run = []
        run.append(seq)
    if run:
        yield run[0], run[-1], set(run)
