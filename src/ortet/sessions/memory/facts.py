"""The reading verbs of a session for facts, episodes and recall."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, cast

from ortet._util.validation import CALLABLE, COUNT, FLAG, TEXT, optional, require
from ortet.errors import NotFound
from ortet.journal.event_log import EventLog
from ortet.journal.state.records import Episode, Fact
from ortet.journal.state.state import SessionState
from ortet.sessions.hits import RecallHit, fact_id
from ortet.sessions.memory.believing import episodes_of, fact_in, facts_of, load_shared_scopes
from ortet.sessions.memory.shared_scopes import SharedScope, check_scope
from ortet.sessions.table import SessionRow
from ortet.sessions.times import Moment, ns_of

if TYPE_CHECKING:
    from ortet.hub.hub import Hub
    from ortet.journal.state.merge import Contradiction
    from ortet.memory.extraction.contradictions import Detector
    from ortet.memory.working import WorkingMemory
    from ortet.sessions.hits import RecallResult
    from ortet.sessions.reader import SessionReader


class MemoryReaderMixin:
    """The part of SessionReader that reads facts and episodes."""

    _hub: Hub
    _row: SessionRow
    _event_log: EventLog
    _state: SessionState

    def shared(self) -> list[SharedScope]:
        """Return the shared scopes as far as this session sees them."""
        return load_shared_scopes(self._hub._session_manager(), self._row, self._state)

    def recall(
        self,
        query: str,
        k: int = 10,
        *,
        tiers: Collection[str] | str | None = None,
        at: Moment | None = None,
        on: Moment | None = None,
        since: Moment | None = None,
        scope: str | None = None,
        explain: bool = False,
    ) -> RecallResult:
        """Return the k memories nearest to a query, best first.

        It searches messages ("working"), episodes ("episodic") and facts ("semantic") of this
        session and its shared scopes. `h.text` is the exact content and `h.source` its event.
        Recall changes nothing.

        Args:
            query: the text to search for.
            k: the number of hits.
            tiers: restrict the search to these tiers.
            at: only what was known at this time.
            on: only facts that are valid at this time.
            since: only what happened from this time on.
            scope: search only this scope.
            explain: set `h.scores`.
        """
        from ortet.sessions.memory import recall as remembering

        asked = remembering.parse_query(
            query, k, tiers=tiers, at=at, on=on, since=since, scope=scope
        )
        self._flush_writes()
        minds = self._hub._session_manager()
        reach = remembering.searchable_logs(minds, cast("SessionReader", self), asked.scope)
        return remembering.recall_visible(
            minds, reach, asked, aside=self._state.core.aside, explain=explain
        )

    def _flush_writes(self) -> None:
        """Hook: make buffered events visible to readers."""

    def working(self, messages: int = 20) -> WorkingMemory:
        """Return goal, plan, notes, open questions, effects and the last messages.

        The result is cached and never stale.

        Args:
            messages: the number of messages.
        """
        from ortet.sessions.memory.at_hand import working_of

        require(COUNT, messages=messages)
        self._flush_writes()
        return working_of(cast("SessionReader", self), messages)

    def facts(
        self,
        *,
        scope: str | None = None,
        about: str | None = None,
        at: Moment | None = None,
        on: Moment | None = None,
        past: bool = False,
    ) -> list[Fact]:
        """Return the believed facts, oldest first.

        Args:
            scope: only facts of this scope; by default all that the session sees.
            about: only facts with this subject.
            at: facts believed at this time, retracted since or not.
            on: facts valid at this time, by their `since` and `until`.
            past: include retracted facts.
        """
        optional(TEXT, scope=scope, about=about)
        require(FLAG, past=past)
        believed, valid = ns_of("at", at), ns_of("on", on)
        word = check_scope(scope) if scope is not None else None
        found = facts_of(self._state, self.shared(), past=past or bool(believed)).values()
        return sorted(
            (
                fact
                for fact in found
                if (word is None or fact.scope == word)
                and (about is None or fact.about == about)
                and (not believed or _was_believed_at(fact, believed))
                and (not valid or holds(fact.since, fact.until, valid))
            ),
            key=lambda fact: (fact.time, fact.id),
        )

    def fact(self, id_: str | Fact | RecallHit) -> Fact:
        """Return one fact, believed or retracted, by its id or from a hit.

        Raises:
            NotFound: "no_fact" if it never existed.
        """
        id_ = fact_id(id_)
        shared = self.shared()
        found = fact_in(self._state, shared, id_)
        if found is None:
            found = facts_of(self._state, shared, past=True).get(id_)
        if found is None:
            raise NotFound("no_fact", f"{id_!r} is no fact that is known: s.facts() lists them")
        return found

    def fact_history(self, id_: str | Fact | RecallHit) -> list[Fact]:
        """Return a fact with all facts that it superseded or that superseded it, oldest first."""
        known = facts_of(self._state, self.shared(), past=True)
        first = self.fact(id_)
        chain = [*_superseded_chain(known, first), first]
        after = first
        seen = {fact.id for fact in chain}
        while after.ended_by and after.ended_by in known and after.ended_by not in seen:
            after = known[after.ended_by]
            seen.add(after.id)
            chain.append(after)
        return chain

    def contradictions(self, detector: Detector | None = None) -> list[Contradiction]:
        """Return pairs of believed facts that cannot both be true. `ours` is the older one.

        Nothing is retracted automatically. Settle a contradiction with `s.learn(…, supersedes=…)`
        or `s.forget(…)`.

        Args:
            detector: finds contradictions; by default a rule-based one.
        """
        from ortet.sessions.memory.opposing import contradictions

        optional(CALLABLE, detector=detector)
        return contradictions(self.facts(), detector)

    def episodes(
        self,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        outcome: str | None = None,
        session: str | None = None,
    ) -> list[Episode]:
        """Return the episodes of this session and published ones of others, oldest first.

        Args:
            since: only episodes that end at this time or later.
            until: only episodes that begin before this time.
            outcome: only episodes with this outcome.
            session: only episodes of the session with this name.
        """
        optional(TEXT, outcome=outcome, session=session)
        after, before = ns_of("since", since), ns_of("until", until)
        found = episodes_of(self._state, self.shared()).values()
        return sorted(
            (
                one
                for one in found
                if one.time >= after
                and (not before or (one.began or one.time) < before)
                and (outcome is None or one.outcome == outcome)
                and (session is None or one.session == session)
            ),
            key=lambda one: (one.time, one.id),
        )


def holds(since: int, until: int, moment: int) -> bool:
    """Return True if something is valid at a moment. 0 means no limit."""
    return (not since or since <= moment) and (not until or moment < until)


def _was_believed_at(fact: Fact, at: int) -> bool:
    return fact.time <= at and (not fact.ended or fact.ended > at)


def _superseded_chain(known: dict[str, Fact], fact: Fact) -> list[Fact]:
    found: list[Fact] = []
    seen = {fact.id}
    while fact.supersedes in known and fact.supersedes not in seen:
        fact = known[fact.supersedes]
        seen.add(fact.id)
        found.append(fact)
    return found[::-1]
