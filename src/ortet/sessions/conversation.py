"""The verbs of a session that record what its agent says, knows and decides: one event each."""

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
from ortet.journal.events import Event
from ortet.journal.state.records import Fact, Message, SourceEventRef
from ortet.journal.upcast import check_custom_kind
from ortet.sessions.hits import RecallHit, fact_id
from ortet.sessions.memory.believing import fact_in, facts_of
from ortet.sessions.memory.episodes import compaction_episode, episode_data, last_episode_seq
from ortet.sessions.memory.shared_scopes import check_scope
from ortet.sessions.reader import SessionReader
from ortet.sessions.recollect import plan_compaction
from ortet.sessions.times import Moment, ns_of
from ortet.sessions.writing.idempotent_turns import find_keyed_events

_MAX_TTL_SECONDS = 5e9
"""Seconds that can be added to a time."""


class ConversationMixin(SessionReader):
    """The half of Session that only appends."""

    _note_ttl: float | None = None  # for notes that are given no time

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
        """A message; `content` is text, or the parts a model API takes."""
        return self._add("message", message_data(role, content, extra))

    def say_all(
        self, messages: Iterable[tuple[str, Any] | Mapping[str, Any]], *, key: str = ""
    ) -> list[Event]:
        """Messages that belong together, as (role, content) or as a model API has them: written at
        once, so that all of them are there or none, for the price of one. Under a `key` they are
        said once: the same call again, also by another process, gives the events of then."""
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
        check_text(text=text)
        return self._add("thought", {"text": text})

    def note(self, key: str, value: Any, *, ttl: float | None = None) -> Event:
        """Scratch under a key, for `ttl` seconds (else as its profile says); value None ends it."""
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

        Nothing is deleted: `dropped()` reads them. None when there is nothing to leave out.
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
        """Remember what happened since the last episode as one; returns its id, "" when nothing
        did. Without a `summary`, one is made of what was said, decided and learned."""
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
        """A question that stays open until it is answered; returns its id."""
        check_text(text=text)
        event = self._add("question", {"id": self._new_id(), "text": text})
        return str(event.data["id"])

    def answer(self, question: str, answer: Any) -> Event:
        """To a question by its id."""
        check_text(question=question)
        if self._state.questions.get(question) is None:
            raise NotFound("no_question", f"{question!r} was not asked: s.questions() lists them")
        return self._add("answer", {"id": question, "answer": answer})

    def plan(self, steps: Sequence[str]) -> Event:
        """What is to be done, in order; the first step is the current one."""
        return self._add("plan", {"steps": check_texts("steps", steps)})

    def advance(self, to: int | None = None) -> Event:
        """On to the next step, or to one by its number from 0."""
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
        """A fact; returns its id.

        `scope` is who is to know it: "session" alone, or "agent", "user:NAME", "project:NAME", who
        are told when it is committed, of a fork when it is adopted. `since` and `until` say when it
        holds, `source` is the event that it comes from, and `supersedes` the fact that it replaces:
        an id, a Fact or a Hit.
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
        """What a failure taught; returns its id."""
        return self._fact("lesson", text, about, scope=scope)

    def forget(self, fact: str | Fact | RecallHit, *, why: str = "") -> Event:
        """Believe a fact no longer; that it was believed, and why no more, stays recorded. One that
        others share is forgotten here, and by them when that is committed."""
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
        """A decision with the roads not taken; returns its id."""
        check_text(text=text, why=why)
        data = {"text": text, "why": why, "instead_of": check_texts("instead_of", instead_of)}
        return str(self._add("decision", {"id": self._new_id(), **data}).data["id"])

    def record(self, kind: str, data: Mapping[str, Any], *, version: int = 1) -> Event:
        """An event of your program's own `kind`, as "myapp.ticket", whose meaning is yours.

        `version` is that of the schema of `data`; see `ortet.upcast`. `s.records(kind)` reads them.
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
        """The event that a fact was learned from."""
        if isinstance(source, SourceEventRef):
            return {"timeline": source.timeline, "seq": source.seq, "session": source.session}
        seq = source if isinstance(source, int) else getattr(source, "seq", None)
        require(POSITIVE_COUNT, source=seq)
        assert isinstance(seq, int)
        for event in self.events(seq - 1, seq):
            return {"timeline": event.timeline, "seq": seq, "session": self.id}
        raise NotFound("no_event", f"there is no event {seq} yet: s.events() has all of them")


def message_data(role: Any, content: Any, extra: dict[str, Any]) -> dict[str, Any]:
    """What the event of a message tells."""
    if not role or not isinstance(role, str):
        raise Invalid("bad_role", f"role {role!r}: say who speaks, as 'user' or 'assistant'")
    data = {"role": role, "content": content}
    return {**data, "extra": extra} if extra else data
