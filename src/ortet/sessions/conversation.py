"""The session verbs for conversation, plan, facts and decisions. Each appends one event."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ortet._util.validation import (
    CALLABLE,
    FRACTION,
    LIST,
    POSITIVE_COUNT,
    check_text,
    check_texts,
    optional,
    require,
)
from ortet.errors import Invalid, NotFound
from ortet.journal.conversation.compaction import (
    Compaction,
    Summarise,
    compaction_data,
    compaction_of,
    extract_summary,
)
from ortet.journal.events import Event, check_custom_kind
from ortet.journal.state.records import Fact, Message, SourceEventRef
from ortet.sessions.memory.episodes import compaction_episode, episode_data, last_episode_seq
from ortet.sessions.memory.facts import fact_in, facts_of
from ortet.sessions.memory.shared_scopes import check_scope
from ortet.sessions.reader import SessionReader
from ortet.sessions.recollect import plan_compaction
from ortet.sessions.results import RecallHit, fact_id
from ortet.sessions.times import Moment, ns_of
from ortet.sessions.writing.idempotent_turns import find_keyed_events

_MAX_TTL_SECONDS = 5e9
"""Highest lifetime of a note in seconds."""


class ConversationMixin(SessionReader):
    """The verbs of Session that only append events."""

    _note_ttl: float | None = None  # lifetime of notes without their own

    @abstractmethod
    def _add(self, kind: str, data: Mapping[str, Any], *, version: int = 1) -> Event: ...

    @abstractmethod
    def _add_all(
        self, kind: str, several: Sequence[Mapping[str, Any]], key: str = ""
    ) -> list[Event]: ...

    @abstractmethod
    def _check_open(self) -> None: ...

    @abstractmethod
    def _new_id(self) -> str: ...

    def say(self, role: str, content: Any, **extra: Any) -> Event:
        """Add a message.

        Args:
            role: who speaks, as "user" or "assistant".
            content: text, or the content parts of a model API.
            **extra: further fields of the message, such as tool_calls.
        """
        return self._add("message", message_data(role, content, extra))

    def say_all(
        self, messages: Iterable[tuple[str, Any] | Mapping[str, Any]], *, key: str = ""
    ) -> list[Event]:
        """Add several messages in one write: all or none.

        Args:
            messages: pairs (role, content), or dicts as a model API has them.
            key: an idempotency key. The same call again, also by another process, returns the
                events of the first call.

        Raises:
            Invalid: "key_reused" if other messages were recorded under the key.
        """
        require(LIST, messages=messages)
        check_text(key=key)
        said = []
        for message in messages:
            role, content, extra = "", None, {}
            if isinstance(message, tuple) and len(message) == 2:
                role, content = message
            elif type(message) is dict or isinstance(message, Mapping):
                extra = dict(message)
                role, content = extra.pop("role", ""), extra.pop("content", None)
            said.append(message_data(role, content, extra))
        if key and said and not self.is_replaying:
            known = find_keyed_events(self, key, said)
            return self._add_all("message", said, key) if known is None else known
        return self._add_all("message", said) if said else []

    def think(self, text: str) -> Event:
        """Record a thought of the agent. A thought is not a message of the conversation."""
        check_text(text=text)
        return self._add("thought", {"text": text})

    def note(self, key: str, value: Any, *, ttl: float | None = None) -> Event:
        """Keep a value under a key for a while.

        Args:
            key: the key. A later note replaces an earlier one.
            value: plain data; None ends the note.
            ttl: the lifetime in seconds; by default that of the profile.
        """
        check_text(key=key)
        data = {"key": key, "value": value}
        ttl = self._note_ttl if ttl is None else ttl
        if ttl is not None:
            if (
                isinstance(ttl, bool)
                or not isinstance(ttl, int | float)
                or not 0 <= ttl < _MAX_TTL_SECONDS
            ):
                raise Invalid("bad_ttl", f"ttl={ttl!r}: give seconds, or None for no end")
            data["expires"] = self._now() + int(ttl * 1e9)
        return self._add("note", data)

    def compact(self, keep_last: int = 20, summarise: Summarise | None = None) -> Compaction | None:
        """Leave all but the newest messages out of context, with a summary in their place.

        Nothing is deleted: `dropped()` returns these messages.

        Args:
            keep_last: the number of messages to keep.
            summarise: makes the summary; by default an extract.

        Returns:
            The compaction, or None if there is nothing to leave out.

        Raises:
            Conflict: "compacted" if the conversation was compacted concurrently.
        """
        self._check_open()
        optional(CALLABLE, summarise=summarise)
        past = plan_compaction(self, keep_last, summarise or extract_summary)
        if past is None:
            return None
        told = compaction_episode(self, self._new_id(), past)
        made = compaction_of(self._add("compaction", compaction_data(past)))
        if told is not None:
            self._add("episode", told)
        return made

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
        self._check_open()
        told = episode_data(
            self,
            self._new_id(),
            cause="milestone",
            events=self.events(last_episode_seq(self)),
            summary=summary,
            outcome=outcome,
            importance=importance,
            summarise=summarise,
        )
        return "" if told is None else str(self._add("episode", told).data["id"])

    def ask(self, text: str) -> str:
        """Ask a question that stays open until it is answered. Return its id."""
        check_text(text=text)
        event = self._add("question", {"id": self._new_id(), "text": text})
        return str(event.data["id"])

    def answer(self, question: str, answer: Any) -> Event:
        """Answer a question by its id.

        Raises:
            NotFound: "no_question" if it was not asked.
        """
        check_text(question=question)
        if self._state.questions.get(question) is None:
            raise NotFound("no_question", f"{question!r} was not asked: s.questions() lists them")
        return self._add("answer", {"id": question, "answer": answer})

    def plan(self, steps: Sequence[str]) -> Event:
        """Set the plan: the steps in order. The first step becomes the current one."""
        return self._add("plan", {"steps": check_texts("steps", steps)})

    def advance(self, to: int | None = None) -> Event:
        """Move to the next step of the plan, or to step `to`, counted from 0.

        Raises:
            Invalid: "bad_step" if the plan has no such step.
        """
        step = self._state.core.step + 1 if to is None else to
        if type(step) is not int or not 0 <= step <= len(self._state.core.plan):
            last = len(self._state.core.plan)
            raise Invalid("bad_step", f"step {step!r} is not in the plan: give 0 to {last}")
        return self._add("step", {"step": step})

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
        """Record what a failure taught, and return the id. See `learn`."""
        return self._fact("lesson", text, about, scope=scope)

    def forget(self, fact: str | Fact | RecallHit, *, why: str = "") -> Event:
        """Retract a fact. The fact and the reason stay recorded.

        A shared fact is retracted for others when the session commits.

        Raises:
            NotFound: "no_fact" if it is not known or already retracted.
        """
        known = self._require_fact(fact)
        check_text(why=why)
        shared = {"scope": known.scope} if known.scope else {}
        return self._add("fact", {"id": known.id, "gone": True, "why": why, **shared})

    def _require_fact(self, fact: str | Fact | RecallHit) -> Fact:
        id_ = fact_id(fact)
        found = fact_in(self._state, self.shared(), id_)
        if found is None:
            past = facts_of(self._state, self.shared(), past=True).get(id_)
            if past is not None:
                how = f"superseded by {past.ended_by}" if past.ended_by else "forgotten"
                raise NotFound(
                    "no_fact",
                    f"{id_!r} is believed no more, it was {how}: s.fact_history() has what came "
                    "after it",
                )
            raise NotFound("no_fact", f"{id_!r} is no fact that is known: s.facts() lists them")
        return found

    def decide(self, text: str, *, why: str = "", instead_of: Sequence[str] = ()) -> str:
        """Record a decision with its rejected alternatives, and return its id.

        Args:
            text: the decision.
            why: the reason.
            instead_of: the alternatives.
        """
        check_text(text=text, why=why)
        data = {"text": text, "why": why, "instead_of": check_texts("instead_of", instead_of)}
        return str(self._add("decision", {"id": self._new_id(), **data}).data["id"])

    def record(self, kind: str, data: Mapping[str, Any], *, version: int = 1) -> Event:
        """Record an event of a kind that your program defines.

        `s.records(kind)` reads these events.

        Args:
            kind: the kind, such as "myapp.ticket".
            data: plain data.
            version: the version of the schema of `data`; see `ortet.upcast`.
        """
        if isinstance(version, bool) or not isinstance(version, int) or version < 1:
            raise Invalid("bad_version", f"version {version!r}: give a number from 1")
        if not isinstance(data, Mapping):
            raise Invalid("not_json", f"{type(data).__name__} is no record: give a dict")
        return self._add(check_custom_kind(kind), data, version=version)

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
        data: dict[str, Any] = {"id": self._new_id(), "text": text, "about": about}
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
        return str(self._add(kind, data).data["id"])

    def _origin(self, source: Event | Message | SourceEventRef | int) -> dict[str, Any]:
        """Return the reference to the event that a fact comes from."""
        if isinstance(source, SourceEventRef):
            return {"timeline": source.timeline, "seq": source.seq, "session": source.session}
        seq = source if isinstance(source, int) else getattr(source, "seq", None)
        require(POSITIVE_COUNT, source=seq)
        assert isinstance(seq, int)
        for event in self.events(seq - 1, seq):
            return {"timeline": event.timeline, "seq": seq, "session": self.id}
        raise NotFound("no_event", f"there is no event {seq} yet: s.events() has all of them")


def message_data(role: Any, content: Any, extra: dict[str, Any]) -> dict[str, Any]:
    """Return the data of a message event."""
    if not role or not isinstance(role, str):
        raise Invalid("bad_role", f"role {role!r}: say who speaks, as 'user' or 'assistant'")
    data = {"role": role, "content": content}
    return {**data, "extra": extra} if extra else data
