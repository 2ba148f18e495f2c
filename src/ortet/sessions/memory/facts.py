"""What a session knows and has been through, with what it shares: the reading half of memory."""

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
    """The part of View that reads facts and episodes."""

    _hub: Hub
    _row: SessionRow
    _event_log: EventLog
    _state: SessionState

    def shared(self) -> list[SharedScope]:
        """The memories that it shares, as far as it knows them."""
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
        """The k memories nearest to a question, the best first: messages ("working"), episodes
        ("episodic") and facts ("semantic"), of this session and of the memories that it shares, or
        of one `scope`. `h.text` is exactly what was said, learned or told, `h.source` where.

        `at`: what could be known then; `on`: facts that hold at that moment; `since`: what happened
        from then on. With `explain`, `h.scores` says why. Recalling changes nothing.
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
        """Everything that was said is where readers find it."""

    def working(self, messages: int = 20) -> WorkingMemory:
        """Goal, plan, notes, open questions and effects, and the last messages: what an agent has
        at hand. Read through a cache, where it cannot be stale."""
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
        """What is believed, of every scope it can see or of one, the oldest first.

        `at`: what was believed then, ended since or not. `on`: what holds at that moment, by the
        `since` and `until` of each. `past`: what was given up, too.
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
        """One by its id, or of a hit, believed or given up; NotFound when it never was."""
        id_ = fact_id(id_)
        shared = self.shared()
        found = fact_in(self._state, shared, id_)
        if found is None:
            found = facts_of(self._state, shared, past=True).get(id_)
        if found is None:
            raise NotFound("no_fact", f"{id_!r} is no fact that is known: s.facts() lists them")
        return found

    def fact_history(self, id_: str | Fact | RecallHit) -> list[Fact]:
        """A fact with all that it superseded and that superseded it, the oldest first."""
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
        """Facts that are believed and cannot both be true: `ours` is the older. To settle one,
        `s.learn(…, supersedes=…)` or `s.forget(…)`; nothing is given up by itself."""
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
        """What happened, here and, where it was published, in other sessions; the oldest first."""
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
    """Whether something is valid at a moment; 0 is no limit."""
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
