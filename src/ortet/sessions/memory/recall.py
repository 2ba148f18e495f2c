"""Recall: the journal's events as documents of an index, and what was found as it was said."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from ortet._util.validation import FLAG, SEVERAL, TEXT, TIMES, check_text, may_be, must_be
from ortet.errors import Invalid
from ortet.journal.conversation.superseded import Span as AsideSpan
from ortet.journal.conversation.superseded import is_aside
from ortet.journal.event_log import Line
from ortet.journal.events import Event
from ortet.memory.records import EVERYONE, TIERS, Doc, End, Found, Path, Query, Span, Tier
from ortet.sessions.history.participants import sealed
from ortet.sessions.hits import Hit, Recalled, Source
from ortet.sessions.memory.documents import document, ends, words_of
from ortet.sessions.memory.shared_scopes import AGENT, Known, check_scope, name_of, sealed_spans
from ortet.sessions.table import ARCHIVED, SessionRow
from ortet.sessions.times import Moment, ns_of

if TYPE_CHECKING:
    from ortet.sessions.manager import Sessions
    from ortet.sessions.reader import View

_PAGE = 2000
"""Events that are taken into the index at once."""
_TOLD: tuple[Tier, ...] = ("episodic", "semantic")
"""What a session tells to memories that it shares."""


def asked(
    query: str,
    k: int,
    *,
    tiers: Collection[str] | str | None,
    at: Moment | None,
    on: Moment | None,
    since: Moment | None,
    scope: str | None,
) -> Query:
    """What was asked, looked at."""
    check_text(query=query)
    must_be(TIMES, k=k)
    may_be(TEXT, scope=scope)
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


class Reach:
    """One line of events that can be recalled from: a session's own, or a shared memory's.

    `open` gives it, when an event has to be read.
    """

    def __init__(
        self, path: Path, open_: Callable[[], Line | Known], row: SessionRow | None = None
    ) -> None:
        self.path = path
        self.row = row  # of the session
        self._open = open_
        self._line: Line | Known | None = None
        self._read: dict[tuple[str, int], Event] = {}

    def events(self, sessions: Sessions, after: int, upto: int) -> Iterator[Event]:
        line = self._line = self._line or self._open()
        if isinstance(line, Known):
            return line.events(sessions, after, upto)
        return line.events(after, upto)

    def fetch(self, timeline: str, seqs: Sequence[int]) -> None:
        """Have these, which are on its path, at hand: one question for all of them."""
        line = self._line = self._line or self._open()
        near = line.line if isinstance(line, Known) else line
        if near is not None:
            for event in near.pick(timeline, sorted(seqs)):
                self._read[timeline, event.seq] = event

    def event(self, sessions: Sessions, timeline: str, seq: int) -> Event | None:
        """One that is on its path; None where another is in its place."""
        if (timeline, seq) in self._read:
            return self._read[timeline, seq]
        line = self._line = self._line or self._open()
        if isinstance(line, Known):
            found = next(line.events(sessions, seq - 1, seq), None)
            return found if found is not None and found.timeline == timeline else None
        return line.event(timeline, seq)


def reach_of(sessions: Sessions, view: View, word: str | None) -> list[Reach]:
    """What a session can recall from: all, or one scope, with what it has not told there yet; what
    it gave up counts there too."""
    name = name_of(view.row.agent, word) if word else ""
    line, shared = view.line, view.shared()
    if name and view.row.beliefs is None and all(known.name != name for known in shared):
        named = sessions.scopes.now(name)  # for this once
        shared += [named] if named is not None else []
    own = Path("", spans_of(sessions, line), _TOLD if word else TIERS)
    found = [Reach(own, lambda: line, view.row)]
    for known in shared:
        meant = word is None or known.name == name
        found.append(_shared(sessions, known, TIERS if meant else ()))
    return found


def reach_everywhere(
    sessions: Sessions,
    *,
    agent: Collection[str] | str | None,
    session: str | None,
    word: str | None,
    among: Sequence[SessionRow] | None = None,
) -> list[Reach]:
    """What all sessions, or some, can recall from; `among` these, if given, the oldest first. What
    several have been through is there once, believed as the first of them does: forks come after
    what they were forked from."""
    may_be(TEXT, session=session)
    agents = [agent] if agent is None or isinstance(agent, str) else agent
    must_be(SEVERAL, agent=agents)
    for named in agents:
        may_be(TEXT, agent=named)
    chosen = sessions.roll.get(sessions.roll.meant(session)) if session is not None else None
    rows = [chosen] if chosen else sessions.all() if among is None else among
    rows = [row for row in rows if agent is None or row.agent in agents]
    rows = [row for row in rows if not _is_away(sessions, row)]
    found: list[Reach] = []
    if word in (None, ""):
        for number, (row, spans) in enumerate(_spans_here(sessions, rows)):
            path = Path("", spans, believer=number)
            found.append(Reach(path, partial(line_of, sessions, row), row))
    names: set[str] = set()
    for row in rows:
        names |= {name_of(row.agent, one) for one in ({AGENT, *row.scopes} if not word else {word})}
    if word == "":
        names = set()
    everything = agent is None and session is None and word is None and among is None
    shared = sessions.scopes.all() if everything else map(sessions.scopes.now, sorted(names))
    told = (_shared(sessions, one) for one in shared if one is not None)
    for one in told:
        one.path = one.path._replace(believer=EVERYONE)
        found.append(one)
    return found


def line_of(sessions: Sessions, row: SessionRow) -> Line:
    """The events of a session, without what they add up to."""
    hub = sessions.hub
    head = hub.catalog.head(f"branch:{row.branch}")
    journal, _ = sealed(sessions, row, head.oid if head else None)
    return Line(hub.catalog, hub.objects, sessions.chain, timeline=row.timeline, base=journal)


def _is_away(sessions: Sessions, row: SessionRow) -> bool:
    """Whether its events are in its bundle."""
    return row.status == ARCHIVED and not sessions.hub.catalog.head(f"branch:{row.branch}")


def _spans_here(
    sessions: Sessions, rows: Sequence[SessionRow]
) -> Iterator[tuple[SessionRow, list[Span]]]:
    """Those of sessions, from rows alone unless some are another host's: a store has many."""
    for row, path in sessions.roll.paths(rows):
        if path and path[0].after:
            yield row, spans_of(sessions, line_of(sessions, row))
        else:
            yield row, [Span(span.timeline, span.after, span.upto) for span in path]


def _shared(sessions: Sessions, known: Known, tiers: tuple[Tier, ...] = TIERS) -> Reach:
    word = AGENT if known.name.startswith(f"{AGENT}:") else known.name
    spans = [Span(span.timeline, span.after, span.upto) for span in known.spans(sessions)]
    return Reach(Path(word, spans, tiers), lambda: known)


def spans_of(sessions: Sessions, line: Line) -> list[Span]:
    """The timelines of a line, those of other hosts, which are in segments, first."""
    path = line.path()
    first = path[0].after if path else line.base.seq
    strange = sealed_spans(sessions, line.base, first)
    return [Span(span.timeline, span.after, span.upto) for span in (*strange, *path)]


def recall(sessions: Sessions, reach: Sequence[Reach], query: Query, *, explain: bool) -> Recalled:
    """The best of all that can be reached."""
    must_be(FLAG, explain=explain)
    library = sessions.hub.library
    through: dict[str, list[Reach]] = {}
    for one in reach:
        for span in one.path.spans:
            through.setdefault(span.timeline, []).append(one)

    def news(span: Span, after: int) -> Iterator[tuple[int, list[Doc], list[End]]]:
        holder = next(one for one in through[span.timeline] if span in one.path.spans)
        return _news(sessions, holder, span, after)

    answer = library.search([one.path for one in reach], query, news)
    held = [(_holder(through[one.timeline], one), one) for one in answer.found]
    wanted: dict[tuple[Reach, str], list[int]] = {}
    for holder, place in held:
        if holder is not None:
            wanted.setdefault((holder, place.timeline), []).append(place.seq)
    for (reached, timeline), seqs in wanted.items():
        reached.fetch(timeline, seqs)
    hits = (_hit(sessions, *pair, explain=explain) for pair in held)
    found = Recalled(hit for hit in hits if hit is not None)
    found.dense = answer.dense
    return found


def recall_current(
    sessions: Sessions,
    reach: Sequence[Reach],
    query: Query,
    *,
    aside: Sequence[AsideSpan],
    explain: bool,
) -> Recalled:
    """The same for a session, without its messages that are set aside: the index has them all, as
    who goes back to them finds them again."""
    if not aside or "working" not in query.tiers:
        return recall(sessions, reach, query, explain=explain)
    k = query.k
    while True:
        found = recall(sessions, reach, msgspec.structs.replace(query, k=k), explain=explain)
        left = Recalled(one for one in found if not _is_aside(one, aside))
        left.dense = found.dense
        if len(left) >= query.k or len(found) < k:
            del left[query.k :]
            return left
        k *= 2


def _is_aside(hit: Hit, aside: Sequence[AsideSpan]) -> bool:
    return hit.source.kind == "message" and is_aside(aside, hit.source.seq)


def _news(
    sessions: Sessions, holder: Reach, span: Span, after: int
) -> Iterator[tuple[int, list[Doc], list[End]]]:
    """Pages of what the index has not seen of a span: up to which event, and what is in it."""
    while after < span.upto:
        upto = min(after + _PAGE, span.upto)
        docs: list[Doc] = []
        gone: list[End] = []
        for event in holder.events(sessions, after, upto):
            if event.timeline == span.timeline and not event.erased:
                doc = document(event)
                docs += [doc] if doc is not None else []
                gone += ends(event)
        yield upto, docs, gone
        after = upto


def _holder(reach: Sequence[Reach], one: Found) -> Reach | None:
    """By whom it is reached."""
    for holder in reach:
        spans = (span for span in holder.path.spans if span.timeline == one.timeline)
        if any(span.after < one.seq <= span.upto for span in spans):
            return holder
    return None


def _hit(sessions: Sessions, holder: Reach | None, one: Found, *, explain: bool) -> Hit | None:
    """As it was said. What is erased meanwhile is not there."""
    event = None if holder is None else holder.event(sessions, one.timeline, one.seq)
    if holder is None or event is None or event.erased:
        return None
    return Hit(
        text=words_of(event),
        score=one.score,
        source=_source(holder, event),
        tier=one.tier,
        time=one.time,
        id=one.key,
        role=str(event.data.get("role", "")),
        scores=one.scores if explain else None,
    )


def _source(holder: Reach, event: Event) -> Source:
    if holder.row is not None:
        row = holder.row
        scope = str(event.data.get("scope", ""))  # to be told, or told already
        return Source(
            event.timeline, event.seq, event.kind, session=row.id, name=row.name, scope=scope
        )
    told = event.data.get("told") or {}
    return Source(
        event.timeline,
        event.seq,
        event.kind,
        session=str(told.get("session", "")),
        name=str(event.data.get("session", "")),
        scope=holder.path.scope,
    )
