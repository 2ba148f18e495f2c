"""Recall: search over the events of sessions and shared scopes.

Events are indexed as documents when a search first needs them. Hits are read from the journal, so
that their text is exact and erased events do not appear.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from ortet._util.validation import FLAG, LIST, POSITIVE_COUNT, TEXT, check_text, optional, require
from ortet.errors import Invalid
from ortet.journal.conversation.superseded import SeqRange as AsideSpan
from ortet.journal.conversation.superseded import is_superseded
from ortet.journal.conversation.text import text_of
from ortet.journal.event_log import EventLog
from ortet.journal.events import Event
from ortet.journal.kinds.registry import kind_of
from ortet.journal.state.records import episode_of, fact_of, message_of
from ortet.memory.records import (
    EVERYONE,
    TIERS,
    EventSpan,
    FactEnd,
    MemoryDocument,
    MemoryMatch,
    Query,
    Tier,
    TimelinePath,
)
from ortet.sessions.history.load import sealed_journal
from ortet.sessions.memory.facts import shared_scopes_of
from ortet.sessions.memory.shared_scopes import (
    AGENT,
    SharedScope,
    check_scope,
    name_of,
    sealed_spans,
)
from ortet.sessions.results import HitSource, RecallHit, RecallResult
from ortet.sessions.table import ARCHIVED, SessionRow
from ortet.sessions.times import Moment, ns_of

if TYPE_CHECKING:
    from ortet.sessions.context import SessionContext, SessionServices


# Events as documents of the memory index, and the ends of facts.

_RULES = ("system", "developer")


def document(event: Event) -> MemoryDocument | None:
    """Return the document of an event, or None if the event is not indexed."""
    make = DOCUMENT_MAKERS.get(event.kind)
    return make(event) if make is not None else None


def _message_document(event: Event) -> MemoryDocument | None:
    message = message_of(event)
    text = text_of(message.content)
    if not text.strip() or message.role in _RULES or message.extra.get("synthetic"):
        return None
    name = message.extra.get("name") or message.extra.get("user") or ""
    speaker = name if isinstance(name, str) else ""
    return MemoryDocument(event.seq, "working", text, event.time, speaker=speaker)


def _fact_document(event: Event) -> MemoryDocument | None:
    if event.data.get("gone"):
        return None
    fact = fact_of(event)
    return MemoryDocument(
        event.seq,
        "semantic",
        fact.text,
        event.time,
        key=fact.id,
        about=fact.about,
        importance=fact.confidence,
        since=fact.since,
        until=fact.until,
        scope=fact.scope,
    )


def _episode_document(event: Event) -> MemoryDocument:
    episode = episode_of(event)
    return MemoryDocument(
        event.seq,
        "episodic",
        episode.summary,
        event.time,
        key=episode.id,
        about=episode.outcome,
        importance=episode.importance,
        scope=str(event.data.get("scope", "")),
    )


DOCUMENT_MAKERS: dict[str, Callable[[Event], MemoryDocument | None]] = {
    "message": _message_document,
    "fact": _fact_document,
    "lesson": _fact_document,
    "episode": _episode_document,
}
"""One function for each kind whose record says `indexed`."""


def ended_facts(event: Event) -> Iterable[FactEnd]:
    """Return the facts that an event retracts or supersedes."""
    if event.kind not in ("fact", "lesson"):
        return ()
    if event.data.get("gone"):
        return (FactEnd(event.seq, str(event.data["id"]), event.time),)
    if before := event.data.get("supersedes"):
        return (FactEnd(event.seq, str(before), event.time),)
    return ()


def words_of(event: Event) -> str:
    """Return the exact text of a message, fact or episode."""
    return kind_of(event.kind).words(event.data)


_PAGE = 2000
"""Number of events indexed at once."""
_SHARED_TIERS: tuple[Tier, ...] = ("episodic", "semantic")
"""Tiers that a session publishes to shared scopes."""


def parse_query(
    query: str,
    k: int,
    *,
    tiers: Collection[str] | str | None,
    at: Moment | None,
    on: Moment | None,
    since: Moment | None,
    scope: str | None,
) -> Query:
    """Return the checked query.

    Raises:
        Invalid: an argument is wrong.
    """
    check_text(query=query)
    require(POSITIVE_COUNT, k=k)
    optional(TEXT, scope=scope)
    given = TIERS if tiers is None else (tiers,) if isinstance(tiers, str) else tiers
    chosen = tuple(given) if isinstance(given, Collection) else ()
    if not chosen or not all(tier in TIERS for tier in chosen):
        raise Invalid("bad_tier", f"tiers={tiers!r}: give some of {', '.join(TIERS)}")
    return Query(
        text=query,
        k=k,
        tiers=tuple(tier for tier in TIERS if tier in chosen),
        at=ns_of("at", at),
        on=ns_of("on", on),
        after=ns_of("since", since),
        scope=None if scope is None else check_scope(scope),
    )


def recall_in(
    view: SessionContext,
    query: str,
    k: int,
    *,
    tiers: Collection[str] | str | None = None,
    at: Moment | None = None,
    on: Moment | None = None,
    since: Moment | None = None,
    scope: str | None = None,
    explain: bool = False,
) -> RecallResult:
    """Search the memory of one session; see `SessionMemory.recall`."""
    asked = parse_query(query, k, tiers=tiers, at=at, on=on, since=since, scope=scope)
    view.flush()
    reach = searchable_logs(view.services, view, asked.scope)
    return recall_visible(view.services, reach, asked, aside=view.state.core.aside, explain=explain)


class SearchableLog:
    """One event log that can be searched: that of a session or of a shared scope.

    `load` gives the log when an event must be read.
    """

    def __init__(
        self,
        path: TimelinePath,
        load: Callable[[], EventLog | SharedScope],
        row: SessionRow | None = None,
    ) -> None:
        self.path = path
        self.row = row  # row of the session
        self._load = load
        self._loaded: EventLog | SharedScope | None = None
        self._event_cache: dict[tuple[str, int], Event] = {}

    def events(self, sessions: SessionServices, after: int, upto: int) -> Iterator[Event]:
        line = self._loaded = self._loaded or self._load()
        if isinstance(line, SharedScope):
            return line.events(sessions, after, upto)
        return line.events(after, upto)

    def fetch(self, timeline: str, seqs: Sequence[int]) -> None:
        """Load these events with one catalog query."""
        line = self._loaded = self._loaded or self._load()
        near = line.line if isinstance(line, SharedScope) else line
        if near is not None:
            for event in near.pick_events(timeline, sorted(seqs)):
                self._event_cache[timeline, event.seq] = event

    def event(self, sessions: SessionServices, timeline: str, seq: int) -> Event | None:
        """Return an event on the path, or None if another event has its place."""
        if (timeline, seq) in self._event_cache:
            return self._event_cache[timeline, seq]
        line = self._loaded = self._loaded or self._load()
        if isinstance(line, SharedScope):
            found = next(line.events(sessions, seq - 1, seq), None)
            return found if found is not None and found.timeline == timeline else None
        return line.event(timeline, seq)


def searchable_logs(
    sessions: SessionServices, view: SessionContext, word: str | None
) -> list[SearchableLog]:
    """Return the logs that a session can search: all, or those of one scope.

    The session's own log is always included: it has facts and retractions that are not published
    yet.
    """
    name = name_of(view.row.agent, word) if word else ""
    line, shared = view.event_log, shared_scopes_of(view)
    if name and view.row.beliefs is None and all(known.name != name for known in shared):
        named = sessions.scopes.current(name)  # only for this search
        shared += [named] if named is not None else []
    own = TimelinePath("", spans_of(sessions, line), _SHARED_TIERS if word else TIERS)
    found = [SearchableLog(own, lambda: line, view.row)]
    for known in shared:
        meant = word is None or known.name == name
        found.append(_searchable_scope(sessions, known, TIERS if meant else ()))
    return found


def all_searchable_logs(
    sessions: SessionServices,
    *,
    agent: Collection[str] | str | None,
    session: str | None,
    word: str | None,
    among: Sequence[SessionRow] | None = None,
) -> list[SearchableLog]:
    """Return the logs that all sessions, or some, can search.

    Events that several sessions share are searched once, with the beliefs of the first of them.
    Forks come after their parents.

    Args:
        agent: only sessions of this agent or these agents.
        session: only this session.
        word: only this scope.
        among: only these sessions, oldest first.
    """
    optional(TEXT, session=session)
    agents = [agent] if agent is None or isinstance(agent, str) else agent
    require(LIST, agent=agents)
    for named in agents:
        optional(TEXT, agent=named)
    chosen = sessions.table.get(sessions.table.resolve(session)) if session is not None else None
    rows = [chosen] if chosen else sessions.all() if among is None else among
    rows = [row for row in rows if agent is None or row.agent in agents]
    rows = [row for row in rows if not _is_archived_away(sessions, row)]
    found: list[SearchableLog] = []
    if word in (None, ""):
        for number, (row, spans) in enumerate(_session_spans(sessions, rows)):
            path = TimelinePath("", spans, believer=number)
            found.append(SearchableLog(path, partial(session_event_log, sessions, row), row))
    names: set[str] = set()
    for row in rows:
        names |= {name_of(row.agent, one) for one in ({AGENT, *row.scopes} if not word else {word})}
    if word == "":
        names = set()
    everything = agent is None and session is None and word is None and among is None
    shared = sessions.scopes.all() if everything else map(sessions.scopes.current, sorted(names))
    told = (_searchable_scope(sessions, one) for one in shared if one is not None)
    for one in told:
        one.path = one.path._replace(believer=EVERYONE)
        found.append(one)
    return found


def session_event_log(sessions: SessionServices, row: SessionRow) -> EventLog:
    """Return the event log of a session without loading its state."""
    store = sessions.store
    head = store.catalog.head(f"branch:{row.branch}")
    journal, _ = sealed_journal(sessions, row, head.oid if head else None)
    return EventLog(
        store.catalog, store.objects, sessions.chain, timeline=row.timeline, base=journal
    )


def _is_archived_away(sessions: SessionServices, row: SessionRow) -> bool:
    """Return True if the events of an archived session are only in its bundle."""
    return row.status == ARCHIVED and not sessions.store.catalog.head(f"branch:{row.branch}")


def _session_spans(
    sessions: SessionServices, rows: Sequence[SessionRow]
) -> Iterator[tuple[SessionRow, list[EventSpan]]]:
    """Iterate over sessions with their spans.

    Catalog rows are enough, unless the first events are of another host. A store has many sessions.
    """
    for row, path in sessions.table.paths(rows):
        if path and path[0].after:
            yield row, spans_of(sessions, session_event_log(sessions, row))
        else:
            yield row, [EventSpan(span.timeline, span.after, span.upto) for span in path]


def _searchable_scope(
    sessions: SessionServices, known: SharedScope, tiers: tuple[Tier, ...] = TIERS
) -> SearchableLog:
    word = AGENT if known.name.startswith(f"{AGENT}:") else known.name
    spans = [EventSpan(span.timeline, span.after, span.upto) for span in known.spans(sessions)]
    return SearchableLog(TimelinePath(word, spans, tiers), lambda: known)


def spans_of(sessions: SessionServices, event_log: EventLog) -> list[EventSpan]:
    """Return the spans of a log. Those of other hosts, which are in segments, come first."""
    path = event_log.timeline_spans()
    first = path[0].after if path else event_log.base.seq
    strange = sealed_spans(sessions, event_log.base, first)
    return [EventSpan(span.timeline, span.after, span.upto) for span in (*strange, *path)]


def recall(
    sessions: SessionServices, logs: Sequence[SearchableLog], query: Query, *, explain: bool
) -> RecallResult:
    """Return the best hits of all these logs."""
    require(FLAG, explain=explain)
    library = sessions.library
    through: dict[str, list[SearchableLog]] = {}
    for one in logs:
        for span in one.path.spans:
            through.setdefault(span.timeline, []).append(one)

    def news(
        span: EventSpan, after: int
    ) -> Iterator[tuple[int, list[MemoryDocument], list[FactEnd]]]:
        holder = next(one for one in through[span.timeline] if span in one.path.spans)
        return _unindexed_pages(sessions, holder, span, after)

    answer = library.search([one.path for one in logs], query, news)
    held = [(_holder(through[one.timeline], one), one) for one in answer.found]
    wanted: dict[tuple[SearchableLog, str], list[int]] = {}
    for holder, place in held:
        if holder is not None:
            wanted.setdefault((holder, place.timeline), []).append(place.seq)
    for (reached, timeline), seqs in wanted.items():
        reached.fetch(timeline, seqs)
    hits = (_hit(sessions, *pair, explain=explain) for pair in held)
    found = RecallResult(hit for hit in hits if hit is not None)
    found.dense = answer.dense
    return found


def recall_visible(
    sessions: SessionServices,
    logs: Sequence[SearchableLog],
    query: Query,
    *,
    aside: Sequence[AsideSpan],
    explain: bool,
) -> RecallResult:
    """Search for a session, without its superseded messages.

    The index has superseded messages too, because a restore may make them current again.
    """
    if not aside or "working" not in query.tiers:
        return recall(sessions, logs, query, explain=explain)
    k = query.k
    while True:
        found = recall(sessions, logs, msgspec.structs.replace(query, k=k), explain=explain)
        left = RecallResult(one for one in found if not _is_aside(one, aside))
        left.dense = found.dense
        if len(left) >= query.k or len(found) < k:
            del left[query.k :]
            return left
        k *= 2


def _is_aside(hit: RecallHit, aside: Sequence[AsideSpan]) -> bool:
    return hit.source.kind == "message" and is_superseded(aside, hit.source.seq)


def _unindexed_pages(
    sessions: SessionServices, holder: SearchableLog, span: EventSpan, after: int
) -> Iterator[tuple[int, list[MemoryDocument], list[FactEnd]]]:
    """Iterate over pages of a span that are not indexed yet: last event, documents, ended facts."""
    while after < span.upto:
        upto = min(after + _PAGE, span.upto)
        docs: list[MemoryDocument] = []
        gone: list[FactEnd] = []
        for event in holder.events(sessions, after, upto):
            if event.timeline == span.timeline and not event.erased:
                doc = document(event)
                docs += [doc] if doc is not None else []
                gone += ended_facts(event)
        yield upto, docs, gone
        after = upto


def _holder(logs: Sequence[SearchableLog], match: MemoryMatch) -> SearchableLog | None:
    """Return the log that contains a match."""
    for holder in logs:
        spans = (span for span in holder.path.spans if span.timeline == match.timeline)
        if any(span.after < match.seq <= span.upto for span in spans):
            return holder
    return None


def _hit(
    sessions: SessionServices, holder: SearchableLog | None, match: MemoryMatch, *, explain: bool
) -> RecallHit | None:
    """Return the hit with its exact text, or None if the event was erased concurrently."""
    event = None if holder is None else holder.event(sessions, match.timeline, match.seq)
    if holder is None or event is None or event.erased:
        return None
    return RecallHit(
        text=words_of(event),
        score=match.score,
        source=_source(holder, event),
        tier=match.tier,
        time=match.time,
        id=match.key,
        role=str(event.data.get("role", "")),
        scores=match.scores if explain else None,
    )


def _source(holder: SearchableLog, event: Event) -> HitSource:
    if holder.row is not None:
        row = holder.row
        scope = str(event.data.get("scope", ""))  # the scope that it is, or will be, published to
        return HitSource(
            event.timeline, event.seq, event.kind, session=row.id, name=row.name, scope=scope
        )
    told = event.data.get("told") or {}
    return HitSource(
        event.timeline,
        event.seq,
        event.kind,
        session=str(told.get("session", "")),
        name=str(event.data.get("session", "")),
        scope=holder.path.scope,
    )
