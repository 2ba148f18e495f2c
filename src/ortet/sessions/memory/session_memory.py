"""The memory facet of a session: facts, lessons, episodes, recall, context and briefing."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from ortet._util.validation import (
    CALLABLE,
    COUNT,
    FRACTION,
    POSITIVE_COUNT,
    TEXT,
    check_text,
    optional,
    require,
)
from ortet.errors import Invalid, NotFound
from ortet.journal.conversation.context import ModelContext
from ortet.journal.conversation.text import TokenCounter, check_tokens, estimate_tokens
from ortet.journal.events import Event
from ortet.journal.state.merge import Contradiction
from ortet.journal.state.records import Episode, Fact, Message, SourceEventRef
from ortet.sessions.context import SessionContext
from ortet.sessions.conversation_state import context_of
from ortet.sessions.memory.episodes import episode_data, last_episode_seq
from ortet.sessions.memory.facts import (
    believed_facts,
    episodes_of,
    fact_in,
    facts_of,
    find_contradictions,
    set_shared_memory,
    shared_scopes_of,
    superseded_chain,
)
from ortet.sessions.memory.shared_scopes import SharedScope, check_scope
from ortet.sessions.results import RecallHit, fact_id
from ortet.sessions.times import Moment, ns_of
from ortet.sessions.writing.pipeline import VerbPipeline, need_writer

if TYPE_CHECKING:
    from ortet.journal.conversation.compaction import Summarise
    from ortet.journal.reports.briefing import Briefing
    from ortet.memory.extraction.contradictions import Detector
    from ortet.memory.working import WorkingMemory
    from ortet.sessions.results import RecallResult


class SessionMemory:
    """Facts, lessons and episodes of a session and of its shared scopes."""

    def __init__(self, context: SessionContext, pipeline: VerbPipeline | None = None) -> None:
        self._context = context
        self._pipeline = pipeline

    @property
    def _verbs(self) -> VerbPipeline:
        return need_writer(self._pipeline)

    def learn(
        self,
        text: str,
        *,
        about: str = "",
        scope: str | None = None,
        confidence: float = 1.0,
        since: Moment | None = None,
        until: Moment | None = None,
        source: Event | Message | SourceEventRef | int | None = None,
        supersedes: str | Fact | RecallHit | None = None,
    ) -> str:
        """Record a fact and return its id.

        Args:
            text: the fact.
            about: its subject.
            scope: who shares it: "session", "agent", "user:NAME" or "project:NAME". Shared facts
                are published by a commit, those of a fork when it is adopted.
            confidence: 0 to 1.
            since: when it starts to hold.
            until: when it stops to hold.
            source: the event that it comes from.
            supersedes: the fact that it replaces: an id, a Fact or a hit.
        """
        return self._fact(
            "fact",
            text,
            about,
            scope=scope,
            confidence=confidence,
            since=since,
            until=until,
            source=source,
            supersedes=supersedes,
        )

    def lesson(self, text: str, *, about: str = "", scope: str | None = None) -> str:
        """Record what a failure taught, and return the id.

        Args:
            text: the lesson.
            about: its subject.
            scope: who shares it; see `learn`.
        """
        return self._fact("lesson", text, about, scope=scope)

    def forget(self, fact: str | Fact | RecallHit, *, why: str = "") -> Event:
        """Retract a fact. The fact and the reason stay recorded.

        A shared fact is retracted for others when the session commits.

        Args:
            fact: its id, a Fact or a hit.
            why: the reason.

        Raises:
            NotFound: "no_fact" if it is not known or already retracted.
        """
        known = self._require_fact(fact)
        check_text(why=why)
        shared = {"scope": known.scope} if known.scope else {}
        return self._verbs.add("fact", {"id": known.id, "gone": True, "why": why, **shared})

    def milestone(
        self,
        summary: str = "",
        *,
        outcome: str = "",
        importance: float | None = None,
        summarise: Summarise | None = None,
    ) -> str:
        """Record the events since the last episode as an episode.

        Args:
            summary: what happened; by default made from messages, decisions and facts.
            outcome: how it ended.
            importance: 0 to 1.
            summarise: makes the summary.

        Returns:
            The id of the episode, or "" if nothing happened.
        """
        check_text(summary=summary, outcome=outcome)
        optional(CALLABLE, summarise=summarise)
        optional(FRACTION, importance=importance)
        self._verbs.check_open()
        told = episode_data(
            self._context,
            self._verbs.new_id(),
            cause="milestone",
            events=self._context.events(last_episode_seq(self._context)),
            summary=summary,
            outcome=outcome,
            importance=importance,
            summarise=summarise,
        )
        return "" if told is None else str(self._verbs.add("episode", told).data["id"])

    def refresh(self) -> None:
        """Follow the newest facts of shared memory scopes from now on.

        A restored session and each fork see the shared facts of their commit, until they publish a
        fact themselves.
        """
        context = self._context
        self._verbs.check_open()
        if context.row.beliefs is not None:
            context.dirty = context.dirty or bool(context.row.beliefs)
            set_shared_memory(context, self._verbs.held_lease.lease, None)
            context.dirty = context.dirty or bool(self.shared())

    # reading

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
        from ortet.sessions.memory.recall import recall_in

        return recall_in(
            self._context,
            query,
            k,
            tiers=tiers,
            at=at,
            on=on,
            since=since,
            scope=scope,
            explain=explain,
        )

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
        return believed_facts(self._context, scope=scope, about=about, at=at, on=on, past=past)

    def fact(self, id_: str | Fact | RecallHit) -> Fact:
        """Return one fact, believed or retracted, by its id or from a hit.

        Raises:
            NotFound: "no_fact" if it never existed.
        """
        id_ = fact_id(id_)
        shared = self.shared()
        found = fact_in(self._context.state, shared, id_)
        if found is None:
            found = facts_of(self._context.state, shared, past=True).get(id_)
        if found is None:
            raise NotFound("no_fact", f"{id_!r} is no fact that is known: s.facts() lists them")
        return found

    def fact_history(self, id_: str | Fact | RecallHit) -> list[Fact]:
        """Return a fact with all facts that it superseded or that superseded it, oldest first."""
        known = facts_of(self._context.state, self.shared(), past=True)
        first = self.fact(id_)
        chain = [*superseded_chain(known, first), first]
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
        optional(CALLABLE, detector=detector)
        return find_contradictions(self.facts(), detector)

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
        found = episodes_of(self._context.state, self.shared()).values()
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

    def shared(self) -> list[SharedScope]:
        """Return the shared scopes as far as this session sees them."""
        return shared_scopes_of(self._context)

    def working(self, messages: int = 20) -> WorkingMemory:
        """Return goal, plan, notes, open questions, effects and the last messages.

        The result is cached and never stale.

        Args:
            messages: the number of messages.
        """
        from ortet.sessions.memory.context import working_of

        require(COUNT, messages=messages)
        self._context.flush()
        return working_of(self._context, messages)

    def context(
        self, query: str = "", tokens: int = 8000, *, count: TokenCounter = estimate_tokens
    ) -> ModelContext:
        """Return the summary and the newest messages that fit, as input for a model.

        With a `query`, recalled facts, episodes and older messages follow at the end, together with
        the goal, the plan and open questions.

        Args:
            query: what the context is for; empty for no recall.
            tokens: the size limit.
            count: counts the tokens of a text.
        """
        check_text(query=query)
        require(CALLABLE, count=count)
        if not query:
            return context_of(self._context, tokens, count)
        from ortet.sessions.memory.context import context_with_memory

        check_tokens(tokens)
        return context_with_memory(self._context, query, tokens, count)

    def briefing(self, tokens: int = 2000, *, count: TokenCounter = estimate_tokens) -> Briefing:
        """Return the mental state for the next worker, as Markdown and as data.

        Args:
            tokens: the size limit.
            count: counts the tokens of a text.
        """
        require(CALLABLE, count=count)
        from ortet.sessions.memory.context import briefing_of

        return briefing_of(self._context, self._pipeline, tokens, count)

    # private

    def _require_fact(self, fact: str | Fact | RecallHit) -> Fact:
        id_ = fact_id(fact)
        found = fact_in(self._context.state, self.shared(), id_)
        if found is None and self._context.is_replaying:
            return self.fact(fact)  # it may have been retracted since in a shared scope
        if found is None:
            past = facts_of(self._context.state, self.shared(), past=True).get(id_)
            if past is not None:
                how = f"superseded by {past.ended_by}" if past.ended_by else "forgotten"
                raise NotFound(
                    "no_fact",
                    f"{id_!r} is believed no more, it was {how}: s.memory.fact_history() has what "
                    "came after it",
                )
            raise NotFound("no_fact", f"{id_!r} is no fact that is known: s.facts() lists them")
        return found

    def _fact(
        self,
        kind: str,
        text: str,
        about: str,
        *,
        scope: str | None = None,
        confidence: float = 1.0,
        since: Moment | None = None,
        until: Moment | None = None,
        source: Event | Message | SourceEventRef | int | None = None,
        supersedes: str | Fact | RecallHit | None = None,
    ) -> str:
        check_text(text=text, about=about)
        if not text.strip():
            raise Invalid("no_text", f"a {kind} that says nothing: give text")
        data: dict[str, Any] = {"id": self._verbs.new_id(), "text": text, "about": about}
        if word := check_scope(scope):
            data["scope"] = word
        if confidence != 1.0:
            require(FRACTION, confidence=confidence)
            data["confidence"] = float(confidence)
        if since is not None:
            data["since"] = ns_of("since", since)
        if until is not None:
            data["until"] = ns_of("until", until)
            if since is not None and data["until"] <= data["since"]:
                raise Invalid("bad_time", "a fact that ends before it begins: correct since, until")
        if source is not None:
            data["source"] = self._origin(source)
        if supersedes is not None:
            data["supersedes"] = self._require_fact(supersedes).id
        return str(self._verbs.add(kind, data).data["id"])

    def _origin(self, source: Event | Message | SourceEventRef | int) -> dict[str, Any]:
        """Return the reference to the event that a fact comes from."""
        if isinstance(source, SourceEventRef):
            return {"timeline": source.timeline, "seq": source.seq, "session": source.session}
        seq = source if isinstance(source, int) else getattr(source, "seq", None)
        require(POSITIVE_COUNT, source=seq)
        assert isinstance(seq, int)
        for event in self._context.events(seq - 1, seq):
            return {"timeline": event.timeline, "seq": seq, "session": self._context.id}
        raise NotFound("no_event", f"there is no event {seq} yet: s.events() has all of them")
