"""A session as its readers see it: what happened, and what is known."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ortet._util.validation import CALLABLE, COUNT, FLAG, TEXT, check_text, optional, require
from ortet.history.commits import CommitInfo
from ortet.journal.conversation.compaction import Compaction, compactions
from ortet.journal.conversation.context import ModelContext
from ortet.journal.conversation.superseded import is_superseded
from ortet.journal.conversation.text import TokenCounter, check_tokens, estimate_tokens
from ortet.journal.conversation.tool_calls import without_obsolete_results
from ortet.journal.environment import Environment
from ortet.journal.event_log import EventLog
from ortet.journal.events import Event
from ortet.journal.reports.briefing import Briefing
from ortet.journal.reports.progress import ProgressLog
from ortet.journal.state.around import Collaboration, RateLimitWindow, ServiceToken
from ortet.journal.state.records import Approval, Artifact, Decision, Effect, Message, Question
from ortet.journal.state.reducers import message_of
from ortet.journal.state.state import SessionState
from ortet.sessions.actions.approvals import approvals_of
from ortet.sessions.actions.artifacts import Lineage, StoredContent, data_of, find, load
from ortet.sessions.actions.budget import levels, remaining_for, spent_by
from ortet.sessions.actions.effects import effect_rows
from ortet.sessions.actions.model_calls import ModelCall, calls_of
from ortet.sessions.environment.environments import recorded_environments
from ortet.sessions.environment.external_state import (
    Browser,
    browser_of,
    collaborations_of,
    token_of,
    windows_of,
)
from ortet.sessions.memory.facts import MemoryReaderMixin
from ortet.sessions.recollect import briefing_of, context_of, dropped_of, last_messages
from ortet.sessions.table import SessionRow
from ortet.sessions.writing.inbox import pending_events
from ortet.vault.vault import Secret

if TYPE_CHECKING:
    from ortet.hub.hub import Hub
    from ortet.journal.reports.checkpoint import AgentCheckpoint
    from ortet.sessions.environment.handover import Handover
    from ortet.sessions.export import Format


class SessionReader(MemoryReaderMixin):
    """Reads; takes no lease."""

    def __init__(self, hub: Hub, row: SessionRow, event_log: EventLog, state: SessionState) -> None:
        self._hub = hub
        self._row = row
        self._event_log = event_log
        self._state = state

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self.agent}, {self.status}>"

    # what it is

    @property
    def id(self) -> str:
        return self._row.id

    @property
    def name(self) -> str:
        return self._row.name

    @property
    def agent(self) -> str:
        return self._row.agent

    @property
    def status(self) -> str:
        return self._row.status

    @property
    def head(self) -> CommitInfo | None:
        found = self._hub.catalog.head(f"branch:{self._row.branch}")
        return self._hub.history.info(found.oid) if found else None

    @property
    def goal(self) -> str:
        return self._state.core.goal

    @property
    def row(self) -> SessionRow:
        return self._row

    @property
    def event_log(self) -> EventLog:
        return self._event_log

    @property
    def hub(self) -> Hub:
        return self._hub

    @property
    def state(self) -> SessionState:
        """What its events add up to; only they change it."""
        return self._state

    # what is known

    def events(self, after: int = 0, upto: int | None = None) -> Iterator[Event]:
        """In order, from the first of the family on; then, unless `upto` is given, what came in
        beside the writer and waits to be taken in: `waiting`, without a number."""
        require(COUNT, after=after)
        optional(COUNT, upto=upto)
        return self._events(after, upto)

    def _events(self, after: int, upto: int | None) -> Iterator[Event]:
        yield from self._event_log.events(after, upto)
        if upto is None:
            yield from pending_events(self._hub.catalog, self._row.id)

    def messages(self, last: int | None = None) -> list[Message]:
        """Those in context, in order: all of them, or the `last` ones, which costs what they do.
        Not what was said on a way that was left since."""
        if last is not None:
            return last_messages(self, last)
        events = self.events(self._state.core.since)
        said = [message_of(event) for event in events if _is_message(event)]
        aside = self._state.core.aside
        return without_obsolete_results(
            [one for one in said if not is_superseded(aside, one.seq)] if aside else said
        )

    def context(
        self, query: str = "", tokens: int = 8000, *, count: TokenCounter = estimate_tokens
    ) -> ModelContext:
        """The summary and the newest messages that fit, for a model to go on with.

        `count` says how many tokens a text is. With a `query`, what it is for, the facts and
        episodes that are recalled by it, and messages of this session that do not fit any more,
        come last, with goal, plan and what is not settled.
        """
        check_text(query=query)
        require(CALLABLE, count=count)
        if not query:
            return context_of(self, tokens, count)
        from ortet.sessions.memory.context import context_with_memory

        check_tokens(tokens)
        return context_with_memory(self, query, tokens, count)

    def briefing(self, tokens: int = 2000, *, count: TokenCounter = estimate_tokens) -> Briefing:
        """The mental state, for whoever goes on: as Markdown, and as data."""
        require(CALLABLE, count=count)
        return briefing_of(self, tokens, count)

    def environment(self) -> Environment | None:
        """What surrounded the workspace when somebody last looked; None when nobody has."""
        return recorded_environments(self)[1]

    def handover(self, directory: str | os.PathLike[str]) -> Handover:
        """Write feature_list.json, progress.md and BRIEFING.md for the next worker into a
        directory. A file that is not ours is a Conflict, and then nothing is written."""
        from ortet.sessions.environment import handover

        place = handover.check_directory(directory, inside=False)
        return handover.write(place, handover.contents(self, ProgressLog()))

    def export_messages(self, format: Format, *, whole: bool = False) -> Any:
        """The conversation as a model API takes it, fit to be sent: "openai" (a list of messages),
        "openai-responses" (a list of items) or "anthropic" ({"system", "messages"}).

        Every call has its result; thoughts are there where that API takes them back. What
        compactions left out stays out unless it is to be `whole`.
        """
        from ortet.sessions.export import export_messages

        return export_messages(self, format, whole=whole)

    def checkpoint(self) -> AgentCheckpoint:
        """Goal, plan, conversation, knowledge and where to go on, as one portable record."""
        from ortet.sessions.portable.checkpoint import checkpoint_of

        return checkpoint_of(self)

    def compactions(self) -> list[Compaction]:
        """What was left out of context so far, the latest first."""
        return list(compactions(self._state.core.summary, self.events))

    def dropped(self, compaction: int = 0) -> list[Message]:
        """Messages that compactions left out, in order: of all, or of the one at an event."""
        require(COUNT, compaction=compaction)
        return dropped_of(self, compaction)

    def decisions(self) -> list[Decision]:
        return list(self._state.decisions)

    def questions(self) -> list[Question]:
        """Those that are open."""
        return [question for question in self._state.questions if not question.answered]

    def approvals(self) -> list[Approval]:
        """What humans were asked to allow, and their answers, also those not taken in yet."""
        return approvals_of(self._hub.catalog, self._row.id, self._state)

    def comments(self) -> list[Event]:
        """What people said beside the conversation. No messages: one between a tool call and its
        result would make a model API refuse both."""
        return [event for event in self.events() if event.kind == "comment"]

    def records(self, kind: str | None = None) -> list[Event]:
        """Events of programs' own kinds, or of one: `data` is of the newest schema known here."""
        optional(TEXT, kind=kind)
        own = (event for event in self.events() if "." in event.kind)
        return [event for event in own if kind in (None, event.kind)]

    def notes(self) -> dict[str, Any]:
        """Those whose time has not run out."""
        now = self._now()
        live = (note for note in self._state.notes if not note.expires or note.expires > now)
        return {note.key: note.value for note in live}

    def effects(self) -> list[Effect]:
        """Every deed of this session and of those it shares a family with, restored away or not."""
        return [deed.effect for deed in effect_rows(self._hub.catalog, self._row.family)]

    def spent(self) -> dict[str, float]:
        """By the family and those who work for it: no restore refunds anything."""
        found = spent_by(self._hub.catalog, self._row.family)
        for name, amount in self._state.core.spent.items():  # of a mind from another host
            found[name] = max(found.get(name, 0.0), amount)
        return found

    def limits(self) -> dict[str, float]:
        """The hard limits of the family."""
        return levels(self._hub.catalog, self._row)[0].account.limits

    def budget_left(self) -> dict[str, float]:
        """Of each counter that has a limit, here or where this session works for another."""
        return remaining_for(self._hub.catalog, self._row)

    def model_calls(self) -> list[ModelCall]:
        return list(calls_of(self.events()))

    def content(self, content: StoredContent) -> bytes:
        """The bytes of a request or response."""
        return load(self._hub.objects, content)

    def artifacts(self) -> list[Artifact]:
        """Every version, by name."""
        return list(self._state.artifacts)

    def artifact_data(self, name: str, version: int | None = None) -> bytes:
        """The content of a version, the last if none is given."""
        return data_of(self._hub.objects, find(self._state.artifacts, name, version))

    def lineage(self, name: str, version: int | None = None) -> Lineage:
        """What led to an artifact."""
        artifact = find(self._state.artifacts, name, version)
        action = self._state.effects.get(artifact.action) if artifact.action else None
        return Lineage(artifact, action, artifact.why or (action.why if action else ""))

    # the world around it

    def collaborations(self) -> list[Collaboration]:
        """What others see, or will, by name; what an effect made stays, restored away or not."""
        return collaborations_of(self)

    def windows(self) -> list[RateLimitWindow]:
        """Rate limits by service, as this agent knows them now; `full` where the time has come."""
        return windows_of(self)

    def tokens(self) -> list[ServiceToken]:
        """Which entries of the vault are for which services."""
        return list(self._state.tokens)

    def token(self, service: str) -> Secret:
        """What lets one into a service, as the vault has it now."""
        return token_of(self, service)

    def browser(self, *, current: bool = False) -> Browser:
        """What a browser had open, and its storage state: of this mind, or the `current` one."""
        require(FLAG, current=current)
        return browser_of(self, current=current)

    @property
    def is_replaying(self) -> bool:
        """Whether it re-enacts what was recorded."""
        return False

    @property
    def steps(self) -> list[str]:
        return list(self._state.core.plan)

    @property
    def step(self) -> int:
        return self._state.core.step

    def carry(self) -> str:
        """The mind as signed text for a client to keep; `hub.from_carry` goes on with it."""
        from ortet.sessions.portable.carry_token import carry

        return carry(self, self._hub._session_manager())

    def _now(self) -> int:
        return self._hub.clock.now_ns()


def _is_message(event: Event) -> bool:
    return event.kind == "message" and not event.erased
