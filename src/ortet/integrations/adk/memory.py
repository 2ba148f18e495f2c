"""`OrtetMemoryService`: finds past conversations of a user by recall."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

from google.adk.events import Event as AdkEvent
from google.adk.memory import BaseMemoryService
from google.adk.memory.base_memory_service import SearchMemoryResponse
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.sessions import Session as AdkSession

from ortet.errors import NotFound
from ortet.hub.hub import Hub, hub_of
from ortet.integrations.adk.events import (
    EVENT,
    data_of,
    decode_field,
    encode_field,
    event_of,
    plain_state,
    spoken_text,
    to_journal_event,
)
from ortet.integrations.adk.sessions import adk_session_name, get_adk_session_pool, run_in_thread
from ortet.journal.events import Event
from ortet.memory.records import EventSpan, TimelinePath
from ortet.sessions.memory import recall
from ortet.sessions.reader import SessionReader
from ortet.sessions.results import RecallHit
from ortet.sessions.table import SessionRow
from ortet.sessions.writing.bulk_import import append_events
from ortet.sessions.writing.large_events import EventInput, full_data

SESSION_ADDED = "adk.remembered"
"""Event kind: a session of this store, up to one of its events, was added to the user's memory."""
MEMORY_ENTRY = "adk.memory"
"""Event kind after a fact: the other fields of a memory entry."""
MEMORY_FORGOTTEN = "adk.forgotten"
"""Event kind: the id of a memory that must no longer be found."""

_MAX_CACHED_USERS = 256


class _UserMemory:
    """The memory of a user, folded from the events of a timeline up to `seq`."""

    def __init__(self, timeline: str) -> None:
        self.timeline = timeline
        self.seq = 0
        self.added_sessions: dict[
            str, tuple[str, int]
        ] = {}  # by session name: its id and last added event
        self.copied_event_ids: set[str] = set()  # ids of copied events
        self.forgotten_ids: set[str] = set()

    def apply(self, hub: Hub, event: Event) -> None:
        if event.erased:
            return
        if event.kind == SESSION_ADDED:
            self.added_sessions[event.data["name"]] = event.data["id"], event.data["seq"]
        elif event.kind == MEMORY_FORGOTTEN:
            self.forgotten_ids.add(event.data["id"])
        elif event.kind == "message" and (fields := data_of(hub, event)) is not None:
            self.copied_event_ids.add(fields["id"])


class OrtetMemoryService(BaseMemoryService):
    """An ADK memory service on an Ortet store.

    A session that `OrtetSessionService` keeps in the same store is not copied: its messages are
    searched in place, up to where it was added. Events of other sessions are copied to the user's
    own session. Memory entries are facts there.

    Example:
        runner = Runner(..., memory_service=OrtetMemoryService(hub))
    """

    def __init__(self, hub: Hub, *, agent: str = "default", k: int = 10) -> None:
        """Use an open store.

        Args:
            hub: The open store.
            agent: Agent that owns the sessions.
            k: Largest number of entries that a search returns.
        """
        self._pool = get_adk_session_pool(hub, agent)
        self._memories: dict[str, _UserMemory] = {}
        self._k = k

    async def add_session_to_memory(self, session: AdkSession) -> None:
        """Make the messages of a session searchable for its user, up to now."""
        await run_in_thread(self._add_session, session)

    async def add_events_to_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        events: Sequence[AdkEvent],
        session_id: str | None = None,
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Copy events to the memory of a user. Events that are there already are skipped."""
        del session_id, custom_metadata
        await run_in_thread(self._add_events, adk_session_name(app_name, user_id), events)

    async def add_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        memories: Sequence[MemoryEntry],
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Store entries as facts of a user.

        Args:
            app_name: Name of the app.
            user_id: Id of the user.
            memories: The entries. An entry without an id gets one.
            custom_metadata: Data to store with each entry.
        """
        metadata = plain_state(custom_metadata or {})
        name = adk_session_name(app_name, user_id)
        await run_in_thread(self._add_memories, name, memories, metadata)

    async def search_memory(
        self, *, app_name: str, user_id: str, query: str
    ) -> SearchMemoryResponse:
        """Return the entries and messages of a user that match a query best, best first."""
        entries = await run_in_thread(self._search, adk_session_name(app_name, user_id), query)
        return SearchMemoryResponse(memories=entries)

    async def delete_memory(
        self, *, app_name: str, user_id: str, memory_id: str | None = None
    ) -> None:
        """Forget an entry. A search no longer returns it; the journal keeps it."""
        if memory_id:
            await run_in_thread(self._forget, adk_session_name(app_name, user_id), memory_id)

    # Synchronous bodies, run in a thread.

    def _add_session(self, session: AdkSession) -> None:
        memory_name = adk_session_name(session.app_name, session.user_id)
        name = adk_session_name(session.app_name, session.user_id, session.id)
        id_, seq = self._find_stored_events(name, session.events)
        if not seq:
            self._add_events(memory_name, session.events)
            return
        with self._pool.writing(memory_name) as memory:
            if self._catch_up(memory).added_sessions.get(name) != (id_, seq):
                append_events(
                    memory, [EventInput(SESSION_ADDED, {"name": name, "id": id_, "seq": seq})]
                )

    def _find_stored_events(self, name: str, events: Sequence[AdkEvent]) -> tuple[str, int]:
        """Return the id of the stored session with these events, and the number of the last one.

        The number is 0 if not all of them are stored here.
        """
        ids, id_, seq = {event.id for event in events}, "", 0
        with suppress(NotFound), self._pool.reading(name) as view:
            id_ = view.id
            for event in view.events():
                if event.kind in ("message", EVENT):
                    data = data_of(hub_of(view), event)
                    if data is not None and data["id"] in ids:
                        ids.discard(data["id"])
                        seq = event.seq
        return id_, 0 if ids else seq

    def _add_events(self, memory_name: str, events: Iterable[AdkEvent]) -> None:
        with_content = [event for event in events if event.content and event.content.parts]
        with self._pool.writing(memory_name) as session:
            known = self._catch_up(session)
            new = {
                event.id: event
                for event in with_content
                if event.id not in known.copied_event_ids | known.forgotten_ids
            }
            if new:
                append_events(session, [to_journal_event(event) for event in new.values()])

    def _add_memories(
        self, memory_name: str, memories: Sequence[MemoryEntry], metadata: dict[str, Any]
    ) -> None:
        inputs: list[EventInput] = []
        with self._pool.writing(memory_name) as session:
            for memory in memories:
                entry = memory.model_dump(mode="json", exclude_none=True)
                entry["custom_metadata"] = {**metadata, **plain_state(memory.custom_metadata)}
                entry["id"] = memory.id or session.internals.store.new_id()
                fact = {"id": entry["id"], "text": spoken_text(memory.content), "about": ""}
                inputs += [
                    EventInput("fact", fact),
                    EventInput(MEMORY_ENTRY, encode_field("entry", entry)),
                ]
            append_events(session, inputs)

    def _forget(self, memory_name: str, id_: str) -> None:
        with suppress(NotFound), self._pool.writing(memory_name, create=False) as session:
            if id_ not in self._catch_up(session).forgotten_ids:
                inputs = [EventInput(MEMORY_FORGOTTEN, {"id": id_})]
                if session.internals.state.facts.get(id_) is not None:
                    inputs.append(EventInput("fact", {"id": id_, "gone": True, "why": "deleted"}))
                append_events(session, inputs)

    def _search(self, memory_name: str, query: str) -> list[MemoryEntry]:
        if not query.strip():
            return []
        with suppress(NotFound), self._pool.reading(memory_name) as view:
            known = self._catch_up(view)
            reach = list(self._recall_scope(hub_of(view), memory_name, known))
            k = self._k + len(known.forgotten_ids)
            parsed_query = recall.parse_query(
                query, k, tiers=None, at=None, on=None, since=None, scope=None
            )
            hits = recall.recall(
                hub_of(view).internals.services, reach, parsed_query, explain=False
            )
            entries = {
                entry.id: entry
                for entry in map(partial(_entry, hub_of(view), reach), hits)
                if entry
            }
            remembered = [entry for id_, entry in entries.items() if id_ not in known.forgotten_ids]
            return remembered[: self._k]
        return []

    def _recall_scope(
        self, hub: Hub, memory_name: str, memory: _UserMemory
    ) -> Iterable[recall.SearchableLog]:
        sessions = hub.internals.session_manager
        for name, (id_, upto) in [(memory_name, ("", 0)), *memory.added_sessions.items()]:
            row = sessions.table.find(self._pool.agent, name)
            if row is not None and id_ in ("", row.id):
                log = recall.session_event_log(sessions.services, row)
                spans = recall.spans_of(sessions.services, log)
                if upto:
                    spans = [EventSpan(s.timeline, s.after, min(s.upto, upto)) for s in spans]
                path = TimelinePath("", [span for span in spans if span.after < span.upto])
                yield recall.SearchableLog(path, lambda log=log: log, row)  # type: ignore[misc]

    def _catch_up(self, view: SessionReader) -> _UserMemory:
        known, timeline = self._memories.pop(view.name, None), view.internals.row.timeline
        if known is None or known.timeline != timeline:
            known = _UserMemory(timeline)
        upto = view.internals.state.core.events
        for event in view.events(known.seq, upto) if known.seq < upto else ():
            known.apply(hub_of(view), event)
        known.seq = upto
        # Move it to the end: the order is least recently used first.
        self._memories[view.name] = known
        if len(self._memories) > _MAX_CACHED_USERS:
            del self._memories[next(iter(self._memories))]
        return known


def _entry(hub: Hub, reach: Sequence[recall.SearchableLog], hit: RecallHit) -> MemoryEntry | None:
    """Convert a hit to an ADK memory entry; None if it is not from a service of this package."""
    holder = next(one for one in reach if _is_source(one.row, hit))
    last = hit.source.seq + 1 if hit.tier == "semantic" else hit.source.seq
    for event in holder.events(hub.internals.services, hit.source.seq - 1, last):
        if event.kind == MEMORY_ENTRY:
            return MemoryEntry.model_validate(decode_field("entry", full_data(hub.store, event)))
        adk_event = event_of(hub, event)
        if adk_event is not None and adk_event.content is not None:
            when = datetime.fromtimestamp(adk_event.timestamp, UTC).isoformat()
            return MemoryEntry(
                id=adk_event.id, content=adk_event.content, author=adk_event.author, timestamp=when
            )
    return None


def _is_source(row: SessionRow | None, hit: RecallHit) -> bool:
    return row is not None and row.id == hit.source.session
