"""The conversation facet of a session: messages, plan, questions, decisions, notes and records.

Each writing verb appends one event. On a session that was opened for reading it raises
Refused("read_only").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

import msgspec
from msgspec import UNSET, UnsetType

from ortet._util.validation import (
    CALLABLE,
    COUNT,
    LIST,
    TEXT,
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
    compactions,
    extract_summary,
)
from ortet.journal.conversation.superseded import is_superseded
from ortet.journal.conversation.tool_calls import without_obsolete_results
from ortet.journal.events import Event, check_custom_kind
from ortet.journal.state.records import Decision, Message, Question, message_of
from ortet.sessions.context import SessionContext
from ortet.sessions.conversation_state import (
    dropped_of,
    last_messages,
    live_notes,
    open_questions,
    plan_compaction,
)
from ortet.sessions.memory.episodes import compaction_episode
from ortet.sessions.writing.idempotent_turns import find_keyed_events
from ortet.sessions.writing.pipeline import VerbPipeline, need_writer

if TYPE_CHECKING:
    from ortet.sessions.export import Format

_MAX_TTL_SECONDS = 5e9
"""Highest lifetime of a note in seconds."""


class SessionPlan(msgspec.Struct, frozen=True):
    """The plan of a session.

    Attributes:
        steps: The steps, in order.
        step: Number of the current step, from 0. It is the number of steps when the plan is
            finished.
    """

    steps: list[str]
    step: int

    @property
    def current(self) -> str:
        """Return the current step, or "" if the plan is finished or empty."""
        return self.steps[self.step] if self.step < len(self.steps) else ""


class Conversation:
    """Messages, plan, questions, decisions, notes and custom records of a session."""

    def __init__(
        self,
        context: SessionContext,
        pipeline: VerbPipeline | None = None,
        *,
        note_ttl: float | None = None,
    ) -> None:
        self._context = context
        self._pipeline = pipeline
        self._note_ttl = note_ttl  # lifetime of notes without their own

    @property
    def _verbs(self) -> VerbPipeline:
        return need_writer(self._pipeline)

    def say(self, role: str, content: Any, **extra: Any) -> Event:
        """Add a message.

        Args:
            role: who speaks, as "user" or "assistant".
            content: text, or the content parts of a model API.
            **extra: further fields of the message, such as tool_calls.
        """
        return self._verbs.add("message", message_data(role, content, extra))

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
        message_list = []
        for message in messages:
            role, content, extra = "", None, {}
            if isinstance(message, tuple) and len(message) == 2:
                role, content = message
            elif type(message) is dict or isinstance(message, Mapping):
                extra = dict(message)
                role, content = extra.pop("role", ""), extra.pop("content", None)
            message_list.append(message_data(role, content, extra))
        if key and message_list and not self._context.is_replaying:
            known = find_keyed_events(self._context, key, message_list)
            return self._verbs.add_all("message", message_list, key) if known is None else known
        return self._verbs.add_all("message", message_list) if message_list else []

    def think(self, text: str) -> Event:
        """Record a thought of the agent. A thought is not a message of the conversation.

        Args:
            text: the thought.
        """
        check_text(text=text)
        return self._verbs.add("thought", {"text": text})

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
            data["expires"] = self._context.now() + int(ttl * 1e9)
        return self._verbs.add("note", data)

    @overload
    def plan(self) -> SessionPlan: ...

    @overload
    def plan(self, steps: Sequence[str]) -> Event: ...

    def plan(self, steps: Sequence[str] | UnsetType = UNSET) -> Event | SessionPlan:
        """Set the plan, or return it.

        Setting a plan makes its first step the current one.

        Args:
            steps: the steps in order. Without this argument, the present plan is returned.

        Returns:
            The event, or without arguments the plan with its `steps` and the current `step`.
        """
        if isinstance(steps, UnsetType):
            core = self._context.state.core
            return SessionPlan(list(core.plan), core.step)
        return self._verbs.add("plan", {"steps": check_texts("steps", steps)})

    def advance(self, to: int | None = None) -> Event:
        """Move to the next step of the plan, or to step `to`, counted from 0.

        Raises:
            Invalid: "bad_step" if the plan has no such step.
        """
        step = self._context.state.core.step + 1 if to is None else to
        if type(step) is not int or not 0 <= step <= len(self._context.state.core.plan):
            last = len(self._context.state.core.plan)
            raise Invalid("bad_step", f"step {step!r} is not in the plan: give 0 to {last}")
        return self._verbs.add("step", {"step": step})

    def ask(self, text: str) -> str:
        """Ask a question that stays open until it is answered.

        Args:
            text: the question.

        Returns:
            The id of the question.
        """
        check_text(text=text)
        event = self._verbs.add("question", {"id": self._verbs.new_id(), "text": text})
        return str(event.data["id"])

    def answer(self, question: str, answer: Any) -> Event:
        """Answer a question.

        Args:
            question: the id of the question.
            answer: the answer, as plain data.

        Raises:
            NotFound: "no_question" if it was not asked.
        """
        check_text(question=question)
        if self._context.state.questions.get(question) is None:
            raise NotFound(
                "no_question", f"{question!r} was not asked: s.conversation.questions() lists them"
            )
        return self._verbs.add("answer", {"id": question, "answer": answer})

    def decide(self, text: str, *, why: str = "", instead_of: Sequence[str] = ()) -> str:
        """Record a decision with its rejected alternatives, and return its id.

        Args:
            text: the decision.
            why: the reason.
            instead_of: the alternatives.
        """
        check_text(text=text, why=why)
        data = {"text": text, "why": why, "instead_of": check_texts("instead_of", instead_of)}
        return str(self._verbs.add("decision", {"id": self._verbs.new_id(), **data}).data["id"])

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
        return self._verbs.add(check_custom_kind(kind), data, version=version)

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
        self._verbs.check_open()
        optional(CALLABLE, summarise=summarise)
        past = plan_compaction(self._context, keep_last, summarise or extract_summary)
        if past is None:
            return None
        episode = compaction_episode(self._context, self._verbs.new_id(), past)
        made = compaction_of(self._verbs.add("compaction", compaction_data(past)))
        if episode is not None:
            self._verbs.add("episode", episode)
        return made

    # reading

    def messages(self, last: int | None = None) -> list[Message]:
        """Return the messages that are in context, in order.

        Messages on an abandoned path of the conversation are left out.

        Args:
            last: return only this many of the newest messages. This reads only these.
        """
        if last is not None:
            return last_messages(self._context, last)
        events = self._context.events(self._context.state.core.since)
        messages = [message_of(event) for event in events if _is_message(event)]
        aside = self._context.state.core.aside
        return without_obsolete_results(
            [one for one in messages if not is_superseded(aside, one.seq)] if aside else messages
        )

    def compactions(self) -> list[Compaction]:
        """Return the compactions of the context, newest first."""
        return list(compactions(self._context.state.core.summary, self._context.events))

    def dropped(self, compaction: int = 0) -> list[Message]:
        """Return the messages that compactions left out, in order.

        Args:
            compaction: the event number of one compaction; 0 for all of them.
        """
        require(COUNT, compaction=compaction)
        return dropped_of(self._context, compaction)

    def export_messages(self, format: Format, *, whole: bool = False) -> Any:
        """Return the conversation in the format of a model API, ready to be sent.

        Every tool call has a result. Thoughts are included where the API accepts them.

        Args:
            format: "openai" (a list of messages), "openai-responses" (a list of items) or
                "anthropic" ({"system", "messages"}).
            whole: include messages that compactions left out.
        """
        from ortet.sessions.export import export_messages

        return export_messages(self._context, format, whole=whole)

    def decisions(self) -> list[Decision]:
        """Return all decisions."""
        return list(self._context.state.decisions)

    def questions(self) -> list[Question]:
        """Return the open questions."""
        return open_questions(self._context.state)

    def comments(self) -> list[Event]:
        """Return the comments of people on the session.

        Comments are not messages: a message between a tool call and its result makes a model API
        refuse both.
        """
        return [event for event in self._context.events() if event.kind == "comment"]

    def records(self, kind: str | None = None) -> list[Event]:
        """Return the events of kinds that programs define, all or of one kind.

        `data` is in the newest schema that is registered in this process.
        """
        optional(TEXT, kind=kind)
        own = (event for event in self._context.events() if "." in event.kind)
        return [event for event in own if kind in (None, event.kind)]

    def notes(self) -> dict[str, Any]:
        """Return the notes that have not expired."""
        return live_notes(self._context.state, self._context.now())


def message_data(role: Any, content: Any, extra: dict[str, Any]) -> dict[str, Any]:
    """Return the data of a message event."""
    if not role or not isinstance(role, str):
        raise Invalid("bad_role", f"role {role!r}: say who speaks, as 'user' or 'assistant'")
    data = {"role": role, "content": content}
    return {**data, "extra": extra} if extra else data


def _is_message(event: Event) -> bool:
    return event.kind == "message" and not event.erased
