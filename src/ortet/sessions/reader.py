"""Read-only access to a session: its events, state and reports.

`SessionReader` needs no lease. `Session` extends it with the verbs that write.
"""

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
from ortet.journal.state.external_state import Collaboration, RateLimitWindow, ServiceToken
from ortet.journal.state.records import (
    Approval,
    Artifact,
    Decision,
    Effect,
    Message,
    Question,
    message_of,
)
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
    from ortet.journal.reports.checkpoint import AgentCheckpoint
    from ortet.sessions.environment.handover import Handover
    from ortet.sessions.export import Format
    from ortet.sessions.manager import SessionManager
    from ortet.store.context import StoreContext


class SessionReader(MemoryReaderMixin):
    """A session opened for reading. It takes no lease."""

    def __init__(
        self,
        sessions: SessionManager,
        row: SessionRow,
        event_log: EventLog,
        state: SessionState,
    ) -> None:
        self._sessions = sessions
        self._store = sessions.store
        self._row = row
        self._event_log = event_log
        self._state = state

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self.agent}, {self.status}>"

    # properties

    @property
    def id(self) -> str:
        """Return the id of the session."""
        return self._row.id

    @property
    def name(self) -> str:
        """Return the name, which is unique among the sessions of the agent."""
        return self._row.name

    @property
    def agent(self) -> str:
        """Return the name of the agent that the session belongs to."""
        return self._row.agent

    @property
    def status(self) -> str:
        """Return the status: "open", "active", "paused", "closed" or "archived"."""
        return self._row.status

    @property
    def head(self) -> CommitInfo | None:
        """Return the last commit of the session, or None."""
        found = self._store.catalog.head(f"branch:{self._row.branch}")
        return self._store.history.info(found.oid) if found else None

    @property
    def goal(self) -> str:
        """Return the goal, or ""."""
        return self._state.core.goal

    @property
    def row(self) -> SessionRow:
        """Return the catalog row of the session."""
        return self._row

    @property
    def event_log(self) -> EventLog:
        """Return the event log of the session."""
        return self._event_log

    @property
    def store(self) -> StoreContext:
        """Return the services of the store that the session is in."""
        return self._store

    @property
    def sessions(self) -> SessionManager:
        """Return the manager that opened the session."""
        return self._sessions

    @property
    def state(self) -> SessionState:
        """Return the state that the events add up to. Only events change it."""
        return self._state

    # events and state

    def events(self, after: int = 0, upto: int | None = None) -> Iterator[Event]:
        """Return the events in order, starting with those inherited from parent sessions.

        Entries of the inbox that are not in the journal yet follow at the end, without a sequence
        number. They have `waiting` set, and are left out if `upto` is given.

        Args:
            after: skip events up to this sequence number.
            upto: the last sequence number to return.
        """
        require(COUNT, after=after)
        optional(COUNT, upto=upto)
        return self._events(after, upto)

    def _events(self, after: int, upto: int | None) -> Iterator[Event]:
        yield from self._event_log.events(after, upto)
        if upto is None:
            yield from pending_events(self._store.catalog, self._row.id)

    def messages(self, last: int | None = None) -> list[Message]:
        """Return the messages that are in context, in order.

        Messages on an abandoned path of the conversation are left out.

        Args:
            last: return only this many of the newest messages. This reads only these.
        """
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
            return context_of(self, tokens, count)
        from ortet.sessions.memory.context import context_with_memory

        check_tokens(tokens)
        return context_with_memory(self, query, tokens, count)

    def briefing(self, tokens: int = 2000, *, count: TokenCounter = estimate_tokens) -> Briefing:
        """Return the mental state for the next worker, as Markdown and as data.

        Args:
            tokens: the size limit.
            count: counts the tokens of a text.
        """
        require(CALLABLE, count=count)
        return briefing_of(self, tokens, count)

    def environment(self) -> Environment | None:
        """Return the environment of the workspace as last recorded, or None."""
        return recorded_environments(self)[1]

    def handover(self, directory: str | os.PathLike[str]) -> Handover:
        """Write feature_list.json, progress.md and BRIEFING.md for the next worker.

        Args:
            directory: where to write the files.

        Raises:
            Conflict: a file of that name exists and was not written by a handover. Nothing is
                written.
        """
        from ortet.sessions.environment import handover

        place = handover.check_directory(directory, inside=False)
        return handover.write(place, handover.contents(self, ProgressLog()))

    def export_messages(self, format: Format, *, whole: bool = False) -> Any:
        """Return the conversation in the format of a model API, ready to be sent.

        Every tool call has a result. Thoughts are included where the API accepts them.

        Args:
            format: "openai" (a list of messages), "openai-responses" (a list of items) or
                "anthropic" ({"system", "messages"}).
            whole: include messages that compactions left out.
        """
        from ortet.sessions.export import export_messages

        return export_messages(self, format, whole=whole)

    def checkpoint(self) -> AgentCheckpoint:
        """Return goal, plan, conversation, knowledge and position as one portable record."""
        from ortet.sessions.portable.checkpoint import checkpoint_of

        return checkpoint_of(self)

    def compactions(self) -> list[Compaction]:
        """Return the compactions of the context, newest first."""
        return list(compactions(self._state.core.summary, self.events))

    def dropped(self, compaction: int = 0) -> list[Message]:
        """Return the messages that compactions left out, in order.

        Args:
            compaction: the event number of one compaction; 0 for all of them.
        """
        require(COUNT, compaction=compaction)
        return dropped_of(self, compaction)

    def decisions(self) -> list[Decision]:
        """Return all decisions."""
        return list(self._state.decisions)

    def questions(self) -> list[Question]:
        """Return the open questions."""
        return [question for question in self._state.questions if not question.answered]

    def approvals(self) -> list[Approval]:
        """Return the requested approvals with their answers.

        Answers that are still in the inbox are included.
        """
        return approvals_of(self._store.catalog, self._row.id, self._state)

    def comments(self) -> list[Event]:
        """Return the comments of people on the session.

        Comments are not messages: a message between a tool call and its result makes a model API
        refuse both.
        """
        return [event for event in self.events() if event.kind == "comment"]

    def records(self, kind: str | None = None) -> list[Event]:
        """Return the events of kinds that programs define, all or of one kind.

        `data` is in the newest schema that is registered in this process.
        """
        optional(TEXT, kind=kind)
        own = (event for event in self.events() if "." in event.kind)
        return [event for event in own if kind in (None, event.kind)]

    def notes(self) -> dict[str, Any]:
        """Return the notes that have not expired."""
        now = self._now()
        live = (note for note in self._state.notes if not note.expires or note.expires > now)
        return {note.key: note.value for note in live}

    def effects(self) -> list[Effect]:
        """Return all effects of this session and its family. A restore removes none of them."""
        return [deed.effect for deed in effect_rows(self._store.catalog, self._row.family)]

    def spent(self) -> dict[str, float]:
        """Return the amounts spent by the family and by sessions that work for it.

        A restore refunds nothing.
        """
        found = spent_by(self._store.catalog, self._row.family)
        # state of a session that came from another host
        for name, amount in self._state.core.spent.items():
            found[name] = max(found.get(name, 0.0), amount)
        return found

    def limits(self) -> dict[str, float]:
        """Return the hard limits of the family."""
        return levels(self._store.catalog, self._row)[0].account.limits

    def budget_left(self) -> dict[str, float]:
        """Return the remaining amount of each counter that has a limit.

        Limits of the session that this one works for are included.
        """
        return remaining_for(self._store.catalog, self._row)

    def model_calls(self) -> list[ModelCall]:
        """Return all recorded model calls, in order."""
        return list(calls_of(self.events()))

    def content(self, content: StoredContent) -> bytes:
        """Return the bytes of a recorded request or response."""
        return load(self._store.objects, content)

    def artifacts(self) -> list[Artifact]:
        """Return all versions of all artifacts, by name."""
        return list(self._state.artifacts)

    def artifact_data(self, name: str, version: int | None = None) -> bytes:
        """Return the content of an artifact; the last version by default.

        Raises:
            NotFound: there is no such artifact or version.
        """
        return data_of(self._store.objects, find(self._state.artifacts, name, version))

    def lineage(self, name: str, version: int | None = None) -> Lineage:
        """Return the artifact with the action and the reason that led to it."""
        artifact = find(self._state.artifacts, name, version)
        action = self._state.effects.get(artifact.action) if artifact.action else None
        return Lineage(artifact, action, artifact.why or (action.why if action else ""))

    # external state

    def collaborations(self) -> list[Collaboration]:
        """Return the collaborations by name: things that other people see or will see.

        A collaboration that an effect created is included even after a restore to an earlier
        commit.
        """
        return collaborations_of(self)

    def windows(self) -> list[RateLimitWindow]:
        """Return the rate limits by service, as known now.

        A window whose reset time has passed is `full`.
        """
        return windows_of(self)

    def tokens(self) -> list[ServiceToken]:
        """Return which entries of the vault belong to which services."""
        return list(self._state.tokens)

    def token(self, service: str) -> Secret:
        """Return the current secret for a service from the vault."""
        return token_of(self, service)

    def browser(self, *, current: bool = False) -> Browser:
        """Return the open pages and the storage state of the browser.

        Args:
            current: return the newest known state instead of the one in this session's state.
        """
        require(FLAG, current=current)
        return browser_of(self, current=current)

    @property
    def is_replaying(self) -> bool:
        """True if this session replays recorded events."""
        return False

    @property
    def steps(self) -> list[str]:
        """Return the steps of the plan."""
        return list(self._state.core.plan)

    @property
    def step(self) -> int:
        """Return the number of the current step, from 0."""
        return self._state.core.step

    def carry(self) -> str:
        """Return the session state as signed text for a client. `hub.from_carry` opens it."""
        from ortet.sessions.portable.carry_token import carry

        return carry(self, self._sessions)

    def _now(self) -> int:
        return self._store.clock.now_ns()


def _is_message(event: Event) -> bool:
    return event.kind == "message" and not event.erased
