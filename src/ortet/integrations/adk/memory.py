"""`OrtetMemoryService`: what a user's conversations were about, found again by recall."""

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
from ortet.hub.hub import Hub
from ortet.integrations.adk.events import (
    EVENT,
    data_of,
    event_of,
    had,
    kept,
    plain_state,
    telling_of,
    words_of,
)
from ortet.integrations.adk.lending import in_thread, lent_by, name_of
from ortet.journal.events import Event
from ortet.memory.records import Path, Span
from ortet.sessions.hits import Hit
from ortet.sessions.memory import recall
from ortet.sessions.reader import View
from ortet.sessions.table import SessionRow
from ortet.sessions.writing.telling import Telling, tell, whole

ADDED = "adk.remembered"
"""In what a user keeps: a session of this store, up to one of its events, is to be found."""
ENTRY = "adk.memory"
"""Behind a fact: the rest of a memory that was given as such."""
GONE = "adk.forgotten"
"""The id of a memory that is not to be found any more."""

_MOST = 256


class _Kept:
    """What a user keeps, as the events of a timeline say up to `seq`."""

    def __init__(self, timeline: str) -> None:
        self.timeline = timeline
        self.seq = 0
        self.upto: dict[str, tuple[str, int]] = {}  # by name of a session: its id, and an event
        self.ids: set[str] = set()  # of events that were copied
        self.gone: set[str] = set()

    def take(self, hub: Hub, event: Event) -> None:
        if event.erased:
            return
        if event.kind == ADDED:
            self.upto[event.data["name"]] = event.data["id"], event.data["seq"]
        elif event.kind == GONE:
            self.gone.add(event.data["id"])
        elif event.kind == "message" and (found := data_of(hub, event)) is not None:
            self.ids.add(found["id"])


class OrtetMemoryService(BaseMemoryService):
    """A session that `OrtetSessionService` keeps in the same store is not copied: up to where it
    was added, its messages are found where they are. Events of others are kept beside the user's
    sessions, and memories given as such are facts there. A search gives at most `k`."""

    def __init__(self, hub: Hub, *, agent: str = "default", k: int = 10) -> None:
        self._lent = lent_by(hub, agent)
        self._known: dict[str, _Kept] = {}
        self._k = k

    async def add_session_to_memory(self, session: AdkSession) -> None:
        await in_thread(self._add_session, session)

    async def add_events_to_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        events: Sequence[AdkEvent],
        session_id: str | None = None,
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        del session_id, custom_metadata
        await in_thread(self._add_events, name_of(app_name, user_id), events)

    async def add_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        memories: Sequence[MemoryEntry],
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        more = plain_state(custom_metadata or {})
        await in_thread(self._add_memories, name_of(app_name, user_id), memories, more)

    async def search_memory(
        self, *, app_name: str, user_id: str, query: str
    ) -> SearchMemoryResponse:
        found = await in_thread(self._search, name_of(app_name, user_id), query)
        return SearchMemoryResponse(memories=found)

    async def delete_memory(
        self, *, app_name: str, user_id: str, memory_id: str | None = None
    ) -> None:
        if memory_id:
            await in_thread(self._forget, name_of(app_name, user_id), memory_id)

    # inside, in a thread

    def _add_session(self, session: AdkSession) -> None:
        place = name_of(session.app_name, session.user_id)
        name = name_of(session.app_name, session.user_id, session.id)
        id_, seq = self._up_to(name, session.events)
        if not seq:
            self._add_events(place, session.events)
            return
        with self._lent.writing(place) as kept_by:
            if self._kept(kept_by).upto.get(name) != (id_, seq):
                tell(kept_by, [Telling(ADDED, {"name": name, "id": id_, "seq": seq})])

    def _up_to(self, name: str, events: Sequence[AdkEvent]) -> tuple[str, int]:
        """The session of this store that these are of, and the last of them; 0 where they are not
        kept here."""
        ids, id_, seq = {event.id for event in events}, "", 0
        with suppress(NotFound), self._lent.reading(name) as view:
            id_ = view.id
            for event in view.events():
                if event.kind in ("message", EVENT):
                    found = data_of(view.hub, event)
                    if found is not None and found["id"] in ids:
                        ids.discard(found["id"])
                        seq = event.seq
        return id_, 0 if ids else seq

    def _add_events(self, place: str, events: Iterable[AdkEvent]) -> None:
        said = [event for event in events if event.content and event.content.parts]
        with self._lent.writing(place) as session:
            known = self._kept(session)
            new = {one.id: one for one in said if one.id not in known.ids | known.gone}
            if new:
                tell(session, [telling_of(one) for one in new.values()])

    def _add_memories(
        self, place: str, memories: Sequence[MemoryEntry], more: dict[str, Any]
    ) -> None:
        told: list[Telling] = []
        with self._lent.writing(place) as session:
            for memory in memories:
                entry = memory.model_dump(mode="json", exclude_none=True)
                entry["custom_metadata"] = {**more, **plain_state(memory.custom_metadata)}
                entry["id"] = memory.id or session.hub.new_id()
                fact = {"id": entry["id"], "text": words_of(memory.content), "about": ""}
                told += [Telling("fact", fact), Telling(ENTRY, kept("entry", entry))]
            tell(session, told)

    def _forget(self, place: str, id_: str) -> None:
        with suppress(NotFound), self._lent.writing(place, create=False) as session:
            if id_ not in self._kept(session).gone:
                told = [Telling(GONE, {"id": id_})]
                if session.mind.facts.get(id_) is not None:
                    told.append(Telling("fact", {"id": id_, "gone": True, "why": "deleted"}))
                tell(session, told)

    def _search(self, place: str, query: str) -> list[MemoryEntry]:
        if not query.strip():
            return []
        with suppress(NotFound), self._lent.reading(place) as view:
            known = self._kept(view)
            reach = list(self._reach(view.hub, place, known))
            k = self._k + len(known.gone)
            asked = recall.asked(query, k, tiers=None, at=None, on=None, since=None, scope=None)
            hits = recall.recall(view.hub._minds(), reach, asked, explain=False)
            entries = {one.id: one for one in map(partial(_entry, view.hub, reach), hits) if one}
            return [one for id_, one in entries.items() if id_ not in known.gone][: self._k]
        return []

    def _reach(self, hub: Hub, place: str, known: _Kept) -> Iterable[recall.Reach]:
        minds = hub._minds()
        for name, (id_, upto) in [(place, ("", 0)), *known.upto.items()]:
            row = minds.roll.find(self._lent.agent, name)
            if row is not None and id_ in ("", row.id):
                line = recall.line_of(minds, row)
                spans = recall.spans_of(minds, line)
                if upto:
                    spans = [Span(s.timeline, s.after, min(s.upto, upto)) for s in spans]
                path = Path("", [span for span in spans if span.after < span.upto])
                yield recall.Reach(path, lambda line=line: line, row)  # type: ignore[misc]

    def _kept(self, view: View) -> _Kept:
        known, timeline = self._known.pop(view.name, None), view.row.timeline
        if known is None or known.timeline != timeline:
            known = _Kept(timeline)
        upto = view.mind.core.events
        for event in view.events(known.seq, upto) if known.seq < upto else ():
            known.take(view.hub, event)
        known.seq = upto
        self._known[view.name] = known  # at the end: the one used last
        if len(self._known) > _MOST:
            del self._known[next(iter(self._known))]
        return known


def _entry(hub: Hub, reach: Sequence[recall.Reach], hit: Hit) -> MemoryEntry | None:
    """A hit as ADK has it; None for what no service of this package has said."""
    holder = next(one for one in reach if _is_of(one.row, hit))
    last = hit.source.seq + 1 if hit.tier == "semantic" else hit.source.seq
    for event in holder.events(hub._minds(), hit.source.seq - 1, last):
        if event.kind == ENTRY:
            return MemoryEntry.model_validate(had("entry", whole(hub, event)))
        found = event_of(hub, event)
        if found is not None and found.content is not None:
            when = datetime.fromtimestamp(found.timestamp, UTC).isoformat()
            return MemoryEntry(
                id=found.id, content=found.content, author=found.author, timestamp=when
            )
    return None


def _is_of(row: SessionRow | None, hit: Hit) -> bool:
    return row is not None and row.id == hit.source.session
